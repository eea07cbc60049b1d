"""What ``/metrics`` counts, in Prometheus's format."""

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .decoding import Ended
from .worker import Worker


class Metrics:
    """Counters of one server.

    Attributes:
        requests: by path and status.
        left: clients that left before their reply was complete.
        seconds: until a reply's head was sent, of a whole reply all of it.
    """

    def __init__(self, worker: Worker):
        self._registry = CollectorRegistry()
        new: dict[str, Any] = {"registry": self._registry}
        name = "specstream_{}".format
        self.requests = Counter(name("requests"), "Requests.", ["path", "status"], **new)
        self.left = Counter(name("clients_left"), "Clients that left early.", **new)
        self.seconds = Histogram(name("request_seconds"), "Seconds to answer.", ["path"], **new)
        self._tokens = {
            kind: Counter(name(f"{kind}_tokens"), f"Tokens {kind}.", ["model"], **new)
            for kind in ("prompt", "cached", "written", "drafted", "accepted")
        }
        help = "Forward passes of the target."
        self._calls = Counter(name("target_calls"), help, ["model"], **new)
        for kind in ("waiting", "decoding", "kept_tokens"):
            gauge = Gauge(name(kind), f"Worker: {kind}.", **new)
            gauge.set_function(partial(getattr, worker, kind))

    def wrote(self, model: str, ended: Ended) -> None:
        """Count a text of a reply."""
        last = ended.last
        written, drafts = last.generation_tokens, (last.drafted_tokens, last.accepted_tokens)
        counts = (last.prompt_tokens, ended.cached_tokens, written, *drafts)
        for counter, count in zip(self._tokens.values(), counts, strict=True):
            counter.labels(model).inc(count)
        self._calls.labels(model).inc(last.target_calls)

    def text(self) -> bytes:
        """Return all counters as text."""
        return generate_latest(self._registry)
