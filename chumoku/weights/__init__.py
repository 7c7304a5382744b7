"""Reading, writing, converting and checking model weights."""
