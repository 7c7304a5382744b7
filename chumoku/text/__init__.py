"""Text ⇄ token ids: tokenizers (train, load, encode, decode) and Japanese. This package does not import torch."""

from chumoku.text.formats.tokenizer_files import load
from chumoku.text.missing_tokenizer import MissingTokenizer
from chumoku.text.stream_decoder import Stream
from chumoku.text.tokenizer import Tokenizer
from chumoku.text.training import KINDS, train

__all__ = ["KINDS", "MissingTokenizer", "Stream", "Tokenizer", "load", "train"]
