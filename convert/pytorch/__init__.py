"""The reference implementation in PyTorch, and its trainer."""
