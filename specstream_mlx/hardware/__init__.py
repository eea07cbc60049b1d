"""What differs by machine."""
