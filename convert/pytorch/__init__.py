"""The reference implementation in PyTorch, which MLX must agree with, and its trainer."""
