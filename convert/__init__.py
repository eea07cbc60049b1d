"""Conversion to MLX, and the PyTorch side: reference implementation and trainer."""
