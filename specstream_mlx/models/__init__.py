"""What is known of model families, and the trained parts of streams."""
