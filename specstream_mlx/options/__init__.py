"""Options: each is one field of a dataclass, with its kind of values, its default and its help.

Command lines, the checks of Python's functions and both trainers are made from these fields. Pure
Python: neither MLX nor torch nor a library of command lines is imported here.
"""
