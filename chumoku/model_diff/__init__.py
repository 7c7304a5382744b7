"""Compare two finished models: which is better, what changed, and in which blocks and heads the difference is."""
