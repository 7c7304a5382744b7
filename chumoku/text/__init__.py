"""Text ⇄ numbers: tokenizers (train, load, encode, decode) and Japanese. No torch in this room."""

from chumoku.text.stream_decoder import Stream
from chumoku.text.tokenizer import Tokenizer, load
from chumoku.text.training import KINDS, train

__all__ = ["KINDS", "Stream", "Tokenizer", "load", "train"]
