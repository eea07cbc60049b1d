"""Bases and adapters of PyTorch's formats to MLX."""
