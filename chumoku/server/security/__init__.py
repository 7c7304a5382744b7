"""Who may connect and ask: keys, limits, connections."""
