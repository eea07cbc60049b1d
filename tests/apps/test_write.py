"""What is written and said with tools; a tiny random model stands in for the demonstration's."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import refusal, run
from serving import serving
from specstream_mlx.apps.writing_tools import local_page, running_servers, tools, write
from starlette.testclient import TestClient
from tiny_installation import TEXT, expected

from specstream_mlx import bundled, load
from specstream_mlx.cli.options import ModelOptions
from specstream_mlx.serve import run as serving_run
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.service import Service, resident

pytestmark = pytest.mark.usefixtures("installed")


def refused(*args, **kwargs):
    return refusal(run(*args, **kwargs))


def test_write_is_a_filter(installed, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(f"{TEXT}\n")
    text = expected(installed, "fix")
    result = run("write", "fix", "-m", 8, stdin=f"{TEXT}\r\n")
    assert (result.exit_code, result.stdout) == (1, f"{text}\n")
    assert result.stderr == "The result was cut off at --max-tokens 8\n"
    found = json.loads(run("write", "fix", "-m", 8, "--json", "--file", file).stdout)
    assert (found["text"], found["finish_reason"]) == (text, "length")


@pytest.fixture
def announced(installed, tmp_path):
    """What a running server of one adapter says where ``write`` looks for it."""
    path = shutil.copytree(installed / "adapters/fix", tmp_path / "adapters/fix")
    base, tokenizer = load(installed / "base")
    concise = shutil.copytree(path, path.with_name("concise"))
    models = resident(base, {"fix": path, "concise": concise})
    service = Service(models, tokenizer, most_tokens=20)
    assert make_app(service, api_key="key").state.service is None  # nor one that others may reach
    assert make_app(service, hosts=frozenset()).state.service is None
    with serving(make_app(service)) as address:
        opened = SimpleNamespace(getsockname=lambda: ("127.0.0.1", int(address.split(":")[2])))
        with running_servers.announced(service, opened):
            (file,) = (tmp_path / "specstream-mlx/servers").iterdir()
            yield file
    assert not file.exists()


def test_write_asks_a_running_server(announced, installed, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    text, ask = expected(installed, "fix"), ("write", "fix", "-m", 8)
    with monkeypatch.context() as patch:
        patch.setattr(write, "_by_itself", None)
        result = run(*ask, stdin=TEXT)
        assert (result.exit_code, result.stdout) == (1, f"{text}\n")
        assert result.stderr == "The result was cut off at --max-tokens 8\n"
        found = json.loads(run(*ask, "--json", stdin=TEXT).stdout)
        assert (found["text"], found["generation_tokens"]) == (text, 8)
        assert found["accepted_length"] >= 1 and found["generation_tps"] > 0
        assert run(*ask, "--weights", "expanded", stdin=TEXT).stdout == f"{text}\n"
        served = run("write", "concise", "-m", 8, stdin=LETTER)
    whole = LETTER.strip()
    for one in ("i have not got it until now", "send it again, or write me why not"):
        whole = whole.replace(one, expected(installed, "fix", text=one).strip())
    assert served.stdout == f"{whole}\n"
    written = running_servers.written
    monkeypatch.setattr(running_servers, "written", lambda *_: None)
    assert run("write", "concise", "-m", 8, stdin=LETTER).stdout == f"{whole}\n"
    monkeypatch.setattr(running_servers, "written", written)
    alone = 0, running_servers.Piece("alone", 5, "stop")
    monkeypatch.setattr(write, "_by_itself", lambda *_: iter([alone]))
    assert run(*ask, "--weights", "packed", stdin=TEXT).stdout == "alone\n"  # the server's are not
    said = announced.read_text()
    assert run("write", "fix", "-m", 21, stdin=TEXT).stdout == "alone\n"  # more than it writes
    for change in (
        lambda: announced.write_text(said.replace('"version": "', '"version": "1')),
        lambda: announced.write_text(re.sub(r'"port": \d+', '"port": 1', said)),  # none is there
        lambda: announced.write_text("{"),
        lambda: announced.chmod(0o644),
        lambda: (tmp_path / "adapters/fix/adapters.safetensors").touch(),  # since it was loaded
    ):
        announced.chmod(0o600)
        announced.write_text(said)
        change()
        result = run(*ask, stdin=TEXT)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "alone\n", "")
    killed = announced.with_name("1.json")
    killed.write_text(said)
    killed.chmod(0o600)
    assert run(*ask, stdin=TEXT).stdout == "alone\n"
    assert not killed.exists()


LETTER = """hi ana,

- i have not got it until now
* send it again, or write me why not

greets
ben
"""


def test_proofread_leaves_out_what_changes_the_text(installed, tmp_path, monkeypatch):
    shutil.copytree(installed / "adapters/fix", tmp_path / "adapters/proofread")
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    parts = ["Hi Ana,", "We meet on ", "Saturday at noon.", "The key", ""]
    pieces = [(1, parts[1], None), (1, parts[2], "stop"), (3, "", "stop"), (2, "The key.", "stop")]
    pieces.append((0, parts[0], "stop"))
    written = [(number, running_servers.Piece(text, 4, end, 2)) for number, text, end in pieces]
    monkeypatch.setattr(write, "_by_itself", lambda *_: iter(written))
    text = "hi ana,\n\nwe meets on sunday at noon\n\n- the key\n\nBen\n"
    result = run("write", "proofread", stdin=text)
    corrected = "Hi Ana,\n\nWe meet on sunday at noon.\n\n- The key\n\nBen\n"  # items: no stop
    assert (result.exit_code, result.stdout) == (0, corrected)
    assert result.stderr == (
        "Left as it was: 'Saturday' in the place of 'sunday' changes a weekday\n"
        "Left as it was: taking 'Ben' out changes a line\n"
    )
    whole = run("write", "proofread", "--take-all", stdin=text)
    assert (whole.stdout, whole.stderr) == (corrected.replace("sunday", "Saturday"), "")
    found = json.loads(run("write", "proofread", "--json", stdin=text).stdout)
    assert found["text"] == corrected.strip()
    assert found["left_out"][0] == {"old": "sunday", "new": "Saturday", "changes": "a weekday"}
    assert (found["generation_tokens"], found["accepted_length"]) == (16, 2)


def test_writing_tools_in_the_terminal(installed, tmp_path, monkeypatch):
    for name in ("concise", "proofread", "sql", "key_points"):
        shutil.copytree(installed / "adapters/fix", tmp_path / "adapters" / name)
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    ended = running_servers.Piece("Done.", 4, "stop", 2)

    def answered(source, chats, *_):
        yield from ((number, ended) for number in reversed(range(len(chats))))

    monkeypatch.setattr(write, "_by_itself", answered)
    result = run("writing-tools", "--in-terminal")
    example = f"An example\n{tools.TOOLS['proofread'].example}\n\n"
    assert result.stdout.startswith(f"{example}proofread\n")
    assert result.stdout.endswith("\n\nconcise\nDone.\n\nkey_points\n- Done.\n")
    (file := tmp_path / "text.txt").write_text(LETTER)
    result = run("writing-tools", "--file", file, "--tool", "concise")
    assert result.stdout == "concise\nhi ana,\n\n- Done.\n* Done.\n\ngreets\nben\n"
    assert run("writing-tools", "--tool", "concise", stdin=LETTER).stdout == result.stdout
    assert "this text has none" in refused("writing-tools", "--file", file, "--tool", "sql")
    assert run("writing-tools", "--tool", "sql", "--tool", "concise").stdout == (
        f"{example}concise\nDone.\n\nAn example\n{tools.TOOLS['sql'].example}\n\nsql\nDone.\n"
    )
    assert "expected one of concise" in refused("writing-tools", "--tool", "nothing")
    assert "both given" in refused("writing-tools", "--in-terminal", "--port", 0)


def test_texts_of_several_adapters_are_what_each_writes_alone(installed):
    source = ModelOptions(None, adapter="fix").source()
    pairs = [("fix", TEXT), ("mine", TEXT), ("fix", "send it"), ("mine", "please")]
    tasks = [
        write.Task(name, installed / ("adapters/fix" if name == "fix" else name), text)
        for name, text in pairs
    ]
    results = dict.fromkeys(tasks, "")
    for task, new in write.in_order(tasks, write.written(source, tasks, 8)):
        results[task] += new
    for task, (name, text) in zip(tasks, pairs, strict=True):
        adapter = "fix" if name == "fix" else installed / name
        assert results[task] == task.work.result == expected(installed, adapter, text=text)


def test_each_tool_says_what_it_is_and_what_it_does_not_know(installed, tmp_path, monkeypatch):
    for name in ("proofread", "sql"):
        shutil.copytree(installed / "adapters/fix", tmp_path / "adapters" / name)
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    monkeypatch.setitem(tools.TOOLS, "sql", replace(tools.TOOLS["sql"], right=7))
    sql, proofread = tools.TOOLS["sql"], tools.TOOLS["proofread"]
    nothing, listed = run("write"), run("adapters", "list")
    assert (nothing.exit_code, nothing.stdout, listed.exit_code) == (2, "", 0)
    for said in (nothing.stderr, listed.stdout):
        said = " ".join(said.split())
        for tool in (sql, proofread):
            for words in (tool.does, f"Takes {tool.takes}.", tool.example, f"-> {tool.answer}"):
                assert words in said
        assert "sql Writes an SQL query." in said and "friendly" not in said
        assert "Experimental, 7 of 16 typed test texts right. Apache-2.0." in said
        assert said.count("9 of 16 typed test texts right. Apache-2.0.") == 1
    assert re.search(r"LoRA, [\d.]+ kB on disk", listed.stdout.replace("shared", "LoRA"))
    assert "--weights packed" in listed.stdout
    rows = json.loads(run("adapters", "list", "--json").stdout)["adapters"]
    about = json.loads(run("adapters", "info", "sql", "--json").stdout)["tool"]
    assert [row["tool"] for row in rows] == [proofread.facts(), about]
    assert about["experimental"] and about["licence"] == "Apache-2.0"
    assert run("adapters", "info", "sql").stdout.startswith("sql           Writes an SQL query.\n")
    known, unknown = "table t(name, city): what is the name?", "what is the name?"
    sentence = f"sql takes {sql.takes}, and this text has none"
    answered = run("write", "sql", "-m", 8, stdin=unknown)
    assert answered.stderr.startswith(f"{sentence}: what follows is made up\n")
    assert answered.stdout.strip() and answered.exit_code == 1  # cut off
    assert sentence in run("generate", "--adapter", "sql", "-m", 4, "-p", unknown).stderr
    assert refused("write", "sql", "--strict", stdin=unknown) == f"error: {sentence}"
    for command in (("write", "sql", "--strict"), ("generate", "--adapter", "sql", "-p", known)):
        assert sentence not in run(*command, "-m", 4, stdin=known).stderr


def test_a_server_says_of_a_tool_what_the_list_says(installed, tmp_path, monkeypatch):
    shutil.copytree(installed / "adapters/fix", tmp_path / "adapters/sql")
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    servers = tmp_path / "specstream-mlx/servers"

    def served(app, opened):
        (file,) = servers.iterdir()  # by which ``write`` finds it
        assert json.loads(file.read_text())["port"] == opened.getsockname()[1]
        with TestClient(app, "http://localhost") as client:
            base, sql = client.get("/v1/models").json()["data"]
        assert sql["specstream"]["tool"] == tools.TOOLS["sql"].facts()
        assert (sql["id"], "tool" in base["specstream"]) == ("base:sql", False)

    for module in (serving_run, local_page):
        monkeypatch.setattr(module, "serve", served)
    assert run("serve", "--port", 0).exit_code == 0
    assert not any(servers.iterdir())
    shown = run("writing-tools", "--no-browser")
    assert (shown.exit_code, shown.stderr[:33]) == (0, "Writing tools at http://127.0.0.1")
    assert not any(servers.iterdir())


def test_texts_that_tools_know():
    dialogue, prose = "Ana: are you there? Ben: yes", "The library is closed."
    cases = {"summarize": dialogue, "describe": "name[Luna], age[3]", "proofread": prose}
    for name, text in cases.items():
        assert tools.TOOLS[name].objection(text) is None
    for name in ("summarize", "describe", "sql"):
        assert tools.TOOLS[name].objection(prose)
    assert tools.TOOLS["sql"].objection("table a(id), table b(a_id): which are in b?") is None
    assert tools.TOOLS["sql"].objection("table a(id)")  # without a question
