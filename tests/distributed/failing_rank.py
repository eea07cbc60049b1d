"""The command line of a rank that fails at a certain moment: ``failing_rank.py MOMENT FILE ..``.

It writes the time at which it fails to FILE.
"""

import os
import signal
import sys
import time
from pathlib import Path

from specstream_mlx import cli
from specstream_mlx.distributed import ranks
from specstream_mlx.generation.broadcast import Broadcast

moment, file = sys.argv[1], Path(sys.argv[2])
del sys.argv[1:3]
goes_on, steps = Broadcast.goes_on, []


def fails(self, tokens):
    """Fail before the third step."""
    steps.append(tokens)
    if len(steps) == 3:
        file.write_text(str(time.time()))
        if moment == "disagreeing":
            tokens = [token + 1 for token in tokens]
        else:
            os.kill(os.getpid(), signal.SIGSTOP if moment == "hanging" else signal.SIGKILL)
    return goes_on(self, tokens)


if moment == "version":
    own = ranks.version
    ranks.version = lambda name: "0.0.0" if name == "mlx-lm" else own(name)
else:
    Broadcast.goes_on = fails
cli.main()
