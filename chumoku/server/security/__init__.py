"""Access control: API key, limits, connections."""
