"""GGUF, llama.cpp's file of a model: settings, tokenizer and weights in one.

open_gguf     reads it: settings at once, tensors where they lie, when they are asked for
write_gguf    writes one, through the `gguf` library
"""

from chumoku.weights.formats.gguf.reading import Gguf, TensorInfo, open_gguf
from chumoku.weights.formats.gguf.writing import write_gguf

__all__ = ["Gguf", "TensorInfo", "open_gguf", "write_gguf"]
