"""``specstream-mlx serve`` as users run it, and its page."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from specstream_mlx.serve.app import APIS

PAGE = Path(__file__).parents[2] / "specstream_mlx/serve/README.md"


def ask(address, path, values=None):
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def test_it_serves_until_it_is_interrupted_and_ends_what_it_began(tiny):
    base, shared = tiny.models["base"], tiny.models["base:shared"]
    command = [sys.executable, "-m", "specstream_mlx", "serve", "--port", "0"]
    command += ["--model", str(base.path), "--adapter-path", f"base={base.adapter.path}"]
    command += ["--adapter-path", f"shared={shared.adapter.path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr.readline() == "Serving base, base:shared\n"
        address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())[0]
        assert json.load(ask(address, "/health"))["status"] == "ok"
        said = [{"role": "user", "content": "the team"}]
        asked = {"model": "base:shared", "messages": said, "max_tokens": 100, "stream": True}
        with ask(address, "/v1/chat/completions", asked) as stream:
            stream.readline()
            server.send_signal(signal.SIGINT)
            text = stream.read().decode()
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason": "length"' in text
        assert server.wait(30) == 0
        assert server.stderr.read() == ""


@pytest.mark.parametrize("path", list(APIS))
def test_the_page_lists_every_field(path):
    page = PAGE.read_text()
    (row,) = re.findall(rf"^\| `{path}` \| (.*) \|$", page, re.M)
    fields = APIS[path][0].__annotations__
    listed = set(re.findall(r"`(\w+)`", row))
    assert listed <= set(fields)
    notes = "Labels without effect|Accepted only where"
    others = " ".join(re.findall(rf"^- (?:{notes}).*$", page, re.M))
    assert set(fields) - listed <= set(re.findall(r"`(\w+)`", others))
    refused = re.search(r"^Known to clients and refused: .*?\n\n", page, re.M | re.S)[0]
    assert not set(fields) & set(re.findall(r"`(\w+)`", refused))
