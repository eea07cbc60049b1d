"""What the rivals' trainer trains on."""

from tied_llama import data, tied, tied_mlx  # noqa: F401
