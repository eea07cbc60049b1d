"""Freed memory is kept until it is given back."""

import platform
import subprocess
import sys

import pytest

FREE_HALF_A_GIGABYTE = """
import resource
from pathlib import Path
from specstream_mlx.convert.pytorch.freed_memory import give_freed_memory_back, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

keep_freed_memory()
pieces = [b"1" * (1 << 20) for _ in range(512)]
end = b"1" * (1 << 20)
full = resident()
del pieces
kept = resident()
give_freed_memory_back()
print(full, kept, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told what to keep")
def test_freed_memory_is_kept_and_given_back():
    command = [sys.executable, "-c", FREE_HALF_A_GIGABYTE]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    full, kept, after = map(int, found.split())
    assert kept > full - 50
    assert after < full - 450
