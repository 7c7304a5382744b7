"""The routes that show the inside of a model."""
