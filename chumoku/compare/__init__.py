"""Compare choices of a recipe at equal cost, with paired seeds and intervals."""
