"""Adapter directories: read, write, mount."""
