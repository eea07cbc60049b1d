"""Progress bars on a pseudo-terminal, and silence elsewhere."""

import os
import pty
import re
import subprocess
import sys

_WORK = """
import time
from specstream_mlx.terminal import progress
progress.SECONDS = {seconds}
for _ in progress.track(range(2), "cases"):
    with progress.progress("steps") as show:
        for done in range(5):
            show(done, 5)
            time.sleep({pause})
print("result")
"""


def shown(seconds, pause):
    """What such work writes to a terminal on stderr."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _WORK.format(seconds=seconds, pause=pause)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, stdout=-1, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    result, _ = process.communicate(timeout=60)
    assert (process.returncode, result) == (0, b"result\n")
    return written.decode()


def test_bars_have_a_remaining_time_and_leave_and_short_work_has_none():
    written = shown(seconds=0.1, pause=0.2)
    assert "cases" in written and "steps" in written
    assert re.search(r"\d:\d\d:\d\d left", re.sub(r"\x1b\[\d*m", "", written))
    assert re.search(r"\x1b\[2K\x1b\[\?25h\s*$", written)  # erased again, the cursor is back
    assert shown(seconds=30, pause=0.01) == ""


def test_nothing_is_shown_where_stderr_is_no_terminal():
    """Not even where colour is forced."""
    command = [sys.executable, "-c", _WORK.format(seconds=0.1, pause=0.1)]
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"}
    process = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert (process.stdout, process.stderr) == (b"result\n", b"")
