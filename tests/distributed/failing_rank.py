"""The command line of a rank that fails at a certain moment: ``failing_rank.py MOMENT FILE ..``.

It writes the time at which it fails, or meets with what is not as on rank 0, to FILE.
"""

import os
import signal
import sys
import time
from pathlib import Path

from specstream_mlx import cli
from specstream_mlx.broadcast import Broadcast
from specstream_mlx.distributed import ranks
from specstream_mlx.distributed.ranks import Ranks

moment, file = sys.argv[1], Path(sys.argv[2])
del sys.argv[1:3]


def note_time(*_):
    file.write_text(str(time.time()))


def noted(function):
    """The function, which notes the time of its last call."""

    def call(*arguments):
        note_time()
        return function(*arguments)

    return call


def fail(signal_number=signal.SIGKILL):
    note_time()
    os.kill(os.getpid(), signal_number)


def in_step(number, then):
    """Fail before a step."""
    goes_on, steps = Broadcast.goes_on, []

    def counted(self, tokens):
        steps.append(tokens)
        if len(steps) == number:
            tokens = then(tokens) or tokens
        return goes_on(self, tokens)

    Broadcast.goes_on = counted


def other(tokens):
    note_time()
    return [token + 1 for token in tokens]


if moment == "decoding":
    in_step(3, lambda _: fail())
elif moment == "hanging":
    in_step(3, lambda _: fail(signal.SIGSTOP))
elif moment == "disagreeing":
    in_step(3, other)
elif moment == "version":
    own = ranks.version
    ranks.version = lambda name: "0.0.0" if name == "mlx-lm" else own(name)
    ranks.connect = noted(ranks.connect)
elif moment == "file":  # of other weights, or of another adapter
    Ranks.agree = noted(Ranks.agree)
else:
    raise ValueError(moment)
cli.main()
