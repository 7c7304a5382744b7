"""The words of the embedded corpus, as tables by class, and what may stand with what."""
