"""The words of the embedded corpus, one table per word class, and tables of words that can be combined."""
