"""The PyTorch side: reference implementation, trainer and converter to MLX."""
