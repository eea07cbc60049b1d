"""What only MLX's CPU backend needs: fewer and fuller operations, bit for bit the same values."""
