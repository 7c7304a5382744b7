"""The native engine: a decoder step is one call into a small C++ library, compiled once on each machine."""
