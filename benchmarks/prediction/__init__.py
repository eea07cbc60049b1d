"""The prediction for Apple chips: a cost model of Metal, its sources, and what it says of M1 to M5.

Nothing in here was measured on a Mac. ``specstream-mlx benchmark speedup`` on one replaces it.
"""
