"""``specstream-mlx serve`` as users run it, and its page."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from specstream_mlx.serve.app import APIS

PAGE = Path(__file__).parents[2] / "specstream_mlx/serve/README.md"


def test_it_serves_until_it_is_interrupted_and_ends_what_it_began(tiny):
    base, shared = tiny.models["base"], tiny.models["base:shared"]
    command = [sys.executable, "-m", "specstream_mlx", "serve", "--port", "0"]
    command += ["--model", str(base.path), "--adapter-path", f"base={base.adapter.path}"]
    command += ["--adapter-path", f"shared={shared.adapter.path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr.readline() == "Serving base, base:shared\n"
        address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())[0]
        assert httpx2.get(f"{address}/health").json()["status"] == "ok"
        said = [{"role": "user", "content": "the team"}]
        asked = {"model": "base:shared", "messages": said, "max_tokens": 100, "stream": True}
        with httpx2.stream("POST", f"{address}/v1/chat/completions", json=asked) as stream:
            pieces = stream.iter_text()
            next(pieces)
            server.send_signal(signal.SIGINT)
            text = "".join(pieces)
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason": "length"' in text
        assert server.wait(30) == 0
        assert server.stderr.read() == ""


@pytest.mark.parametrize("column", range(len(APIS)))
def test_the_page_lists_every_field(column):
    """Each row names fields, or an API's own names for them in its column."""
    page = PAGE.read_text().partition("| field |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1:-1] for row in page.split("\n")[2:]]
    taken, refused = set[str](), set[str]()
    for row in cells:
        names, own = re.findall(r"`(\w+)`", row[0]), row[column + 1].strip()
        into = refused if own == "refused" else taken if own else set[str]()
        into |= set(re.findall(r"`(\w+)`", own) or names)
    fields = {*list(APIS.values())[column][0].__annotations__}
    assert fields <= taken
    assert not fields & refused
