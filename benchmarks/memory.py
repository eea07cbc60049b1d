"""Memory of the running process."""

import resource
import sys


def peak_bytes() -> int:
    """The process's peak resident memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
