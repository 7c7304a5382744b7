"""Weights: a model's directory, sealed against damage."""
