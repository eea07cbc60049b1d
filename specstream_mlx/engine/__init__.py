"""One decoding step."""
