"""Engines: what computes a decoding step (PyTorch, native library, GPU graphs)."""
