"""Draft trees, and the drafters that make them."""
