"""Tools to inspect a model: record, plot and edit what it computes."""
