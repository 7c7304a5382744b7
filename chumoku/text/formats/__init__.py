"""Reading and writing the tokenizer files of other programs."""
