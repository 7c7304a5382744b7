"""Training: the rate at each step, what is minimized, and by which rule."""
