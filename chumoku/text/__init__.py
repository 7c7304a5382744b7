"""Text ⇄ numbers: tokenizers (train, load, encode, decode) and Japanese. No torch in this room."""

from chumoku.text.kinds import KINDS, train
from chumoku.text.stream import Stream
from chumoku.text.tokenizer import Tokenizer, load

__all__ = ["KINDS", "Stream", "Tokenizer", "load", "train"]
