"""Scores: how good a model's answers are."""
