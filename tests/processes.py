"""Local processes of one group, over MLX's ring, each with a hard time limit."""

import json
import os
import socket
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import ExitStack
from pathlib import Path

WRITER = Path(__file__).with_name("rank_writer.py")


Ended = namedtuple("Ended", "code out error")


class Processes:
    """Processes that run a command each, as ``mlx.launch`` would start them."""

    def __init__(self, folder, *commands):
        with ExitStack() as stack:
            free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in commands]
            hosts = [[f"127.0.0.1:{one.getsockname()[1]}"] for one in free]
        hostfile = folder / "hosts.json"
        hostfile.write_text(json.dumps(hosts))
        self.started = [
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, command in enumerate(commands)
        ]

    def ended(self, seconds=300):
        """Wait until all have ended; those that have not within the time are killed."""
        until, found = time.monotonic() + seconds, []
        for process in self.started:
            try:
                out, error = process.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                out, error = process.communicate()
                error += f"\nkilled after {seconds} s"
            found.append(Ended(process.returncode, out, error))
        return found


def written(folder, size, jobs):
    """What each of ``size`` processes writes; see ``rank_writer.py``."""
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    ended = Processes(folder, *[[WRITER, file]] * size).ended(1800)  # a busy machine takes long
    for rank, one in enumerate(ended):
        assert one.code == 0, f"rank {rank}: {one.error[-2000:]}"
    return [json.loads(one.out) for one in ended]
