"""What lies in a directory, without reading a weight."""
