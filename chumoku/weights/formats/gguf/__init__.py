"""GGUF, llama.cpp's model file: settings, tokenizer and weights in one file.

open_gguf     opens a file: reads its fields, and tensors on request
write_gguf    writes a file, with the `gguf` library
"""

from chumoku.weights.formats.gguf.reading import Gguf, TensorInfo, open_gguf
from chumoku.weights.formats.gguf.writing import write_gguf

__all__ = ["Gguf", "TensorInfo", "open_gguf", "write_gguf"]
