"""Exchanges: further lines of the written text, with other names, numbers and things.

A line of written text teaches its names along with its wording. Exchanged consistently in input and
answer, and a third of the time for words that exist nowhere, they can only be copied.
"""

from .line import Exchanger

__all__ = ["Exchanger"]
