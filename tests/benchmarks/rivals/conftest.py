"""What the rivals' trainer trains on."""

from torch_tiny import data, tied, tied_mlx  # noqa: F401
