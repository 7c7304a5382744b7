"""Training: recipes, data, objectives, optimizers, schedules, the training loop and checkpoints."""
