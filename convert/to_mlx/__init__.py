"""Conversion of base models and adapters to MLX; torch is not needed for safetensors files."""
