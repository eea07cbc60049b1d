"""Training of streams, pruner and LoRA in MLX."""
