"""Core ML export: an MLX model, its adapters and their streams as one package of functions."""
