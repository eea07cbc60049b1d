"""Help for MLX's CPU backend: fewer and fuller operations, bit for bit the same values."""
