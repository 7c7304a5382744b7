"""Decoding: text from models."""
