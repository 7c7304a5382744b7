"""Reading and writing model files of other programs."""
