"""Evaluation: perplexity of texts, and scores of translations."""
