"""The ranks: processes that run one model together, each with a part of every layer.

Every rank runs the same program. Tensors pass between them by MLX's collectives alone. What rank 0
decides by a clock or a user it sends over a connection of its own (``link``), a line of JSON each:
a collective would wait for the pass that is under way.
"""

import os
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import UserError, shown
from ..files import parse_json, read_text
from .link import Link, connect, listen

_PACKAGES = ("specstream-mlx", "mlx", "mlx-lm")  # of which all ranks need the same version
_KEY_NUMBERS = 4
_STEP = "step"  # of ``Broadcast``; with ``None`` no step follows

_PRESENT: list["Ranks"] = []
"""The ranks of this process, once they are connected; there is one group for a program."""


class Ranks:
    """The processes of a group, two at least, as one of them sees them."""

    def __init__(self, group: mx.distributed.Group):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self._link = self._connected()

    @property
    def route(self) -> tuple[str, str]:
        """The backend and rank 0's address: over another cable a step takes another time."""
        return _backend()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, array: mx.array) -> mx.array:
        """Return rank 0's array, of one shape and dtype on all ranks, as a part of the graph."""
        # The other ranks compute theirs too, so that collectives stay in one order.
        summand = array if self.is_first else mx.depends(mx.zeros_like(array), array)
        return mx.distributed.all_sum(summand, group=self.group)

    def send(self, kind: str, value: Any = None) -> None:
        """Send a value of JSON to all others, without waiting for them; only rank 0 does."""
        last = kind == _STEP and value is None
        if self._link.ended and not last:
            raise UserError(f"rank {self._link.ended[0]} has ended, expected after rank 0")
        self._link.send([kind, value])

    def receive(self, kind: str) -> Any:
        """Wait for what rank 0 sends."""
        received, value = self._link.receive()
        while received == _STEP and value is None and kind != _STEP:
            # These are the steps before, which this rank has left too.
            received, value = self._link.receive()
        if received != kind:
            raise UserError(
                f"rank 0 went on with {received!r}, expected {kind!r}: the ranks disagree"
            )
        return value

    def same(self, value: Any) -> Any:
        """Return rank 0's value of JSON on all ranks."""
        if self.is_first:
            self.send("same", value)
            return value
        return self.receive("same")

    def agree(self, what: str, value: Any) -> None:
        """Check that a value of JSON, named ``what`` in the error, is the same on all ranks."""
        first = self.same(value)
        if first != value:
            raise UserError(f"{what} is {value} on rank {self.rank}, expected {first} as on rank 0")

    def failed(self, sentence: str) -> None:
        """Let rank 0 tell the user that this rank cannot continue."""
        self._link.send(["failed", sentence])

    def _connected(self) -> Link:
        """Connect to the other ranks; MLX's collectives carry the port and a key."""
        versions = {name: version(name) for name in _PACKAGES}
        if self.is_first:
            host = _address_of_first()
            listening = listen(host)
            key = [int.from_bytes(os.urandom(3)) for _ in range(_KEY_NUMBERS)]
            self._spread([listening.getsockname()[1], *key])
            return Link.of_first(listening, self.size, key, versions)
        port, *key = self._spread([0] * (1 + _KEY_NUMBERS))
        return Link.of_other(connect(_address_of_first(), port), self.rank, key, versions)

    def _spread(self, numbers: list[int]) -> list[int]:
        """Return rank 0's numbers on all ranks."""
        spread: Any = mx.distributed.all_sum(
            mx.array(numbers, mx.int32), group=self.group, stream=mx.cpu
        )
        return spread.tolist()


def ranks_of(group: mx.distributed.Group) -> Ranks | None:
    """Return the ranks of a group; ``None``: it is one process. The first call connects them."""
    if group.size() == 1:
        return None
    if not _PRESENT:
        _PRESENT.append(Ranks(group))
    return _PRESENT[0]


def reduction_costs(ranks: Ranks) -> dict[str, Any]:
    """Time reductions, on all ranks at once: seconds of a small one, bytes a second of a large."""
    medians = []
    for size, rounds in ((1 << 12, 40), (1 << 24, 3)):
        array, taken = mx.ones((size // 4,)), []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            mx.eval(mx.distributed.all_sum(array, group=ranks.group))
            taken.append(time.perf_counter() - start)
        medians.append(statistics.median(taken[1:]))
    costs = {"latency": medians[0], "bandwidth": (1 << 24) / medians[1]}
    return {"processes": ranks.size, "backend": ranks.route[0], **costs}


def _address_of_first() -> str:
    backend, address = _backend()
    if not address:
        raise UserError(
            f"the distributed backend is {backend}, which does not say where rank 0 is, expected "
            "ring or jaccl"
        )
    return address


def _backend() -> tuple[str, str]:
    """Return the name of the backend and rank 0's address, from what mlx.launch sets."""
    if hostfile := os.environ.get("MLX_HOSTFILE"):
        hosts = parse_json(read_text(Path(hostfile)), hostfile)
        try:
            return "ring", hosts[0][0].rpartition(":")[0]
        except (AttributeError, LookupError, TypeError):
            raise UserError(
                f"{hostfile} holds {shown(hosts)}, expected lists of addresses"
            ) from None
    if coordinator := os.environ.get("MLX_JACCL_COORDINATOR"):
        return "jaccl", coordinator.rpartition(":")[0]
    if address := os.environ.get("NCCL_HOST_IP"):
        return "nccl", address
    return "another", ""
