"""The native engine: a decoder's whole step as one call into a small C++ library, compiled once on each machine."""
