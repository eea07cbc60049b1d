"""Many clients at once on a server of this process, of which a third leave: is every text right?

    python -m benchmarks.server_load                    # 16 clients, 5 minutes, all adapters
    python -m benchmarks.server_load --seconds 30 --clients 4

Clients stream texts of random adapters over the loopback. A third leaves in the middle, some read
slowly, some send too much. Afterwards each text is compared with what ``stream_generate`` alone
writes; a client that left must have got its beginning.
"""

import http.client
import json
import random
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any

import uvicorn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from starlette.applications import Starlette

from specstream_mlx import bundled, demonstration, keyed_sampler, load, stream_generate
from specstream_mlx.hardware import device
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.options import POSITIVE, integer, option
from specstream_mlx.prompts import in_template
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.run import listening
from specstream_mlx.serve.service import Service, resident
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from .report import OUTPUT, machine_suffix, measured_on, write_report

PROMPTS = (
    "Hi Ana, can you sned me the reports on monday? we needs them for the meeting.",
    "The gym is closed next week because the floor is being renewed. Fees are due on the 5th.",
    "i have worked in a bakery for three year and i likes to talk with customers",
    "please tell the team that the printer is broken",
)
LONGEST = 120.0
"""Seconds without news after which a request counts as stuck."""
_TEXTS, _QUEUE = 8, 32


@dataclass(frozen=True)
class Ask:
    model: str
    prompt: str
    temperature: float
    seed: int


@dataclass
class Load:
    counts: Counter[str] = field(default_factory=Counter)  # requests by how they ended
    complete: list[tuple[Ask, str]] = field(default_factory=list)  # texts that were read whole
    begun: list[tuple[Ask, str]] = field(default_factory=list)  # and in part
    memory: list[tuple[float, int]] = field(default_factory=list)  # pairs of seconds and bytes
    held: int = 0  # the most texts that waited or were written


def press(service: Service, seconds: float, clients: int, max_tokens: int, seed: int = 0) -> Load:
    """Let clients ask for texts, and return what became of it."""
    load, end, start = Load(), time.monotonic() + seconds, time.monotonic()
    with served(make_app(service)) as port:
        threads = [
            threading.Thread(
                target=_client,
                args=(port, random.Random(f"{seed} {n}"), list(service.models), max_tokens),
                kwargs={"end": end, "load": load},
            )
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            load.held = max(load.held, service.worker.waiting + service.worker.decoding)
            load.memory.append((time.monotonic() - start, _resident_bytes()))
            time.sleep(0.05)
        quiet = time.monotonic() + LONGEST
        while service.worker.decoding or service.worker.waiting:  # of those who left
            if time.monotonic() > quiet:
                load.counts["stuck in the server"] += 1
                break
            time.sleep(0.01)
    return load


def compare(
    load: Load, models: Mapping[str, SpeculativeModel], tokenizer: TokenizerWrapper, max_tokens: int
) -> list[tuple[Ask, str, str]]:
    """List (what was asked, text that came, text that should have) of all wrong texts."""
    expected: dict[Ask, str] = {}
    for ask in track(sorted({a for a, _ in (*load.complete, *load.begun)}, key=repr), "solo runs"):
        model = models[ask.model]
        said = {"role": "user", "content": in_template(ask.prompt, model.prompt_template)}
        sampler = keyed_sampler(ask.seed, ask.temperature) if ask.temperature else None
        responses = stream_generate(model, tokenizer, [said], max_tokens, sampler=sampler)
        expected[ask] = "".join(response.text for response in responses)
    wrong = [(a, text, expected[a]) for a, text in load.complete if text != expected[a]]
    cut = [(a, t, expected[a]) for a, t in load.begun if not expected[a].startswith(t)]
    return [*wrong, *cut]


def growth(memory: Sequence[tuple[float, int]]) -> float:
    """Resident bytes at the end over those after a third of the time, medians around both."""
    third = len(memory) // 3
    sizes = [size for _, size in memory]
    return median_high(sizes[-third:]) / median_high(sizes[third : 2 * third])


@contextmanager
def served(app: Starlette) -> Iterator[int]:
    """Serve an application in a thread, and yield the port."""
    opened = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=([opened],))
    thread.start()
    try:
        yield opened.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(LONGEST)
        assert not thread.is_alive()


def _client(
    port: int, rng: random.Random, names: Sequence[str], most: int, *, end: float, load: Load
) -> None:
    while time.monotonic() < end:
        ask = Ask(rng.choice(names), rng.choice(PROMPTS), rng.choice([0.0, 0.8]), rng.randint(0, 1))
        kind = rng.choices(("reads on", "leaves", "reads slowly", "asks too much"), (50, 33, 9, 8))
        try:
            load.counts[_request(port, rng, ask, most, kind[0], load)] += 1
        except TimeoutError:
            load.counts["stuck"] += 1
        except (OSError, http.client.HTTPException) as error:
            load.counts[f"broken off: {type(error).__name__}"] += 1


def _request(port: int, rng: random.Random, ask: Ask, most: int, kind: str, load: Load) -> str:
    """Send one request, and return how it ended."""
    body: dict[str, Any] = {
        "model": ask.model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": most,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "stream": True,
    }
    if kind == "asks too much":
        long = [[{"role": "user", "content": text}] for text in ("x" * (2 << 20), "noon " * 30_000)]
        body |= rng.choice([{"messages": long[0]}, {"messages": long[1]}, {"n": 1 << 20}])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)
    try:
        headers = {"Content-Type": "application/json"}
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has all
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        if reply.status != 200:
            if reply.status == 429:
                time.sleep(min(1.0, float(reply.headers["Retry-After"])))
            return f"status {reply.status}"
        stays, text = rng.randint(1, most // 2 + 1) if kind == "leaves" else None, ""
        for event in _events(reply):
            text += "".join(choice["delta"].get("content", "") for choice in event["choices"])
            if stays is not None:
                stays -= 1
                if not stays:
                    load.begun.append((ask, text))
                    return "left"
            if kind == "reads slowly":
                time.sleep(0.2)
        load.complete.append((ask, text))
        return "complete" if kind != "reads slowly" else "complete, read slowly"
    finally:
        with suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the values of a stream's events."""
    for line in reply:
        said = line.decode().removeprefix("data: ").strip()
        if said == "[DONE]":
            return
        if line.startswith(b"data: "):
            event = json.loads(said)
            if "error" in event:
                raise http.client.HTTPException(event["error"]["message"])
            yield event
    raise http.client.IncompleteRead(b"")


def _resident_bytes() -> int:
    """Bytes of this process in memory; where the system does not tell, the most so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(
    seconds: float = option(300.0, POSITIVE, "Time of the load."),
    clients: int = option(16, integer(1), "Clients at a time."),
    max_tokens: int = option(48, integer(1), "Tokens of a text."),
    output: Path = OUTPUT,
) -> None:
    """Press on a server with clients that come and go, and compare all their texts."""
    base, tokenizer = load(demonstration.base_path(), adapter_path=bundled.streams_path())
    models = resident(base, {name: bundled.adapter_path(name) for name in bundled.adapter_names()})
    service = Service(models, tokenizer, most_texts=_TEXTS, most_waiting=_QUEUE)
    pressed = press(service, seconds, clients, max_tokens)
    wrong = compare(pressed, models, tokenizer, max_tokens)
    facts = device.describe() | {"seconds": seconds, "clients": clients, "max_tokens": max_tokens}
    values = {
        "facts": facts,
        "counts": dict(pressed.counts),
        "compared": len(pressed.complete) + len(pressed.begun),
        "wrong": [[repr(ask), text, right] for ask, text, right in wrong],
        "most_held": pressed.held,
        "memory_growth": growth(pressed.memory),
        "resident_bytes": pressed.memory[-1][1],
    }
    lines = [f"{measured_on(facts)}; {clients} clients for {seconds:.0f} s.", ""]
    lines += [f"- {name}: {count}" for name, count in pressed.counts.most_common()]
    lines += [
        f"- texts compared with solo runs: {values['compared']}, wrong: {len(wrong)}",
        f"- most texts that waited or were written: {pressed.held} of {_QUEUE + _TEXTS}",
        f"- memory at the end over that after a third: {values['memory_growth']:.3f}",
    ]
    print(write_report(output, f"server-load-{machine_suffix(facts)}", values, lines))


if __name__ == "__main__":
    program(main)()
