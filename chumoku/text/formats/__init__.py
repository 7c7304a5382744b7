"""Tokenizers in the files of other programs: reading and writing."""
