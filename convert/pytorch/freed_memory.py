"""What becomes of memory that training steps free on a CPU: kept for the next, but not for ever."""

import ctypes
import sys
from contextlib import suppress


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, which every training step needs again.

    Giving a gigabyte back to the kernel at every step takes as long as the arithmetic on a CPU.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-4, 0)  # M_MMAP_MAX
            mallopt(-1, -1)  # M_TRIM_THRESHOLD


def give_freed_memory_back() -> None:
    """Give all freed memory back to the kernel; the next step pays to get pages again.

    Batches differ in length, and so what they free in size: pieces that nothing fits into add up to
    several gigabytes in some hundred steps.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
