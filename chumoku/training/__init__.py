"""Training: the rate at each step, what is minimised, and by which rule."""
