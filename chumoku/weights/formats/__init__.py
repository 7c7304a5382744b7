"""Model files of other programs: reading and writing."""
