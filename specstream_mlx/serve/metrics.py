"""What ``/metrics`` counts, in Prometheus's format."""

from functools import partial

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
        self._registry = registry = CollectorRegistry()
        name = "specstream_{}".format
        self.requests = Counter(
            name("requests"), "Requests.", ["path", "status"], registry=registry
        )
        self.left = Counter(name("clients_left"), "Clients that left early.", registry=registry)
        self.seconds = Histogram(
            name("request_seconds"), "Seconds to answer.", ["path"], registry=registry
        )
        tokens = "prompt cached written drafted accepted".split()
        self._tokens = {
            kind: Counter(name(f"{kind}_tokens"), f"Tokens {kind}.", ["model"], registry=registry)
            for kind in tokens
        }
        self._calls = Counter(
            name("target_calls"), "Forward passes of the target.", ["model"], registry=registry
        )
        for kind in ("waiting", "decoding", "kept_tokens"):
            gauge = Gauge(name(kind), f"{type(worker).__name__}: {kind}.", registry=registry)
            gauge.set_function(partial(getattr, worker, kind))

    def wrote(self, model: str, ended: Ended) -> None:
        """Count a text of a reply."""
        counts = {
            "prompt": ended.prompt_tokens,
            "cached": ended.cached_tokens,
            "written": ended.tokens,
            "drafted": ended.drafted_tokens,
            "accepted": ended.accepted_tokens,
        }
        for kind, count in counts.items():
            self._tokens[kind].labels(model).inc(count)
        self._calls.labels(model).inc(ended.target_calls)

    def text(self) -> bytes:
        """All counters as text."""
        return generate_latest(self._registry)
