"""Engines compute decoding steps: PyTorch, the native library, or GPU graphs."""
