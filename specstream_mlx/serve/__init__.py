"""A server: one resident base, many adapters, the APIs that clients know."""
