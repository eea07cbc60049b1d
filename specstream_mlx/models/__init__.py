"""Model families that can be run, and the trained parts of streams."""
