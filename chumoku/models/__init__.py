"""Config → encoder, decoder, encoder-decoder. The settings, presets and counts need no torch."""
