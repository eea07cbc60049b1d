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
    """What such work writes to a terminal on stderr, and what to stdout."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK.format(seconds=seconds, pause=pause)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    result, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return written.decode(), result.decode()


def test_bars_have_a_remaining_time_and_leave():
    written, result = shown(seconds=0.1, pause=0.2)
    assert "cases" in written and "steps" in written
    assert re.search(r"\d:\d\d:\d\d left", re.sub(r"\x1b\[\d*m", "", written))
    assert re.search(r"\x1b\[2K\x1b\[\?25h\s*$", written)  # erased again, the cursor is back
    assert result == "result\n"


def test_short_work_shows_nothing():
    assert shown(seconds=30, pause=0.01) == ("", "result\n")


def test_nothing_is_shown_where_stderr_is_no_terminal():
    """Not even where colour is forced."""
    process = subprocess.run(
        [sys.executable, "-c", _WORK.format(seconds=0.1, pause=0.1)],
        capture_output=True,
        env=os.environ | {"FORCE_COLOR": "1", "TERM": "xterm"},
        timeout=60,
    )
    assert (process.stdout, process.stderr) == (b"result\n", b"")
