"""The demonstration model and adapters by name: a tiny random model stands in for it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from command_line import refusal, run, succeeded
from parity import edit
from serving import serving
from tiny_models import LORA_KEYS, stream_adapter_directory, tiny_llama_directory, tiny_lora

from specstream_mlx import bundled, demonstration, generate, load
from specstream_mlx.adapters.files import LoraPart, write_adapter
from specstream_mlx.adapters.user_adapters import user_adapters
from specstream_mlx.bundled import tools
from specstream_mlx.bundled.parts import Work
from specstream_mlx.cli import write
from specstream_mlx.cli.options import ModelOptions
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.serve import local
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.service import Service, resident

TEXT = "please send the report"
TEMPLATE = "Fix this: {text}"


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    root = tmp_path_factory.mktemp("bundled")
    base = tiny_llama_directory(root / "base")
    stream_adapter_directory(root / "streams", base)
    fields = {"mode": "shared", "lora_rank": 4, "lora_scale": 2.0}
    stream_adapter_directory(root / "adapters/fix", base, prompt_template=TEMPLATE, **fields)
    stream_adapter_directory(root / "mine", base, seed=5, **fields)
    other = tiny_llama_directory(root / "other", hidden_size=32)
    stream_adapter_directory(root / "strange", other)
    return root


@pytest.fixture(autouse=True)
def installed(installation, monkeypatch, tmp_path):
    monkeypatch.setattr(bundled, "ROOT", installation)
    monkeypatch.setattr(demonstration, "base_path", lambda *_: installation / "base")
    monkeypatch.setattr(demonstration, "directory", lambda: installation / "base")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return installation


def refused(*args, **kwargs):
    return refusal(run(*args, **kwargs))


def expected(root, adapter, max_tokens=8, text=TEXT):
    model, tokenizer = load(root / "base", adapter_path=adapter)
    prompt = chat_prompt(tokenizer, text, model.prompt_template)
    return generate(model, tokenizer, prompt, max_tokens=max_tokens)


def test_an_adapter_is_added_listed_used_and_removed(installed):
    assert run("adapters", "add", "my-own.2", installed / "mine").exit_code == 0
    listed = json.loads(run("adapters", "list", "--json").stdout)["adapters"]
    found = [(row["name"], row["from"]) for row in listed]
    assert found == [("fix", "the package"), ("my-own.2", "you")]
    assert json.loads(run("adapters", "info", "my-own.2", "--json").stdout)["adapter"]
    result = run("write", "my-own.2", "-m", 8, stdin=TEXT)
    assert result.stdout == expected(installed, installed / "mine") + "\n"
    other = ("my-own.2", installed / "adapters/fix")
    assert "adapter 'my-own.2' already" in refused("adapters", "add", *other)
    assert run("adapters", "add", "--replace", *other).exit_code == 0
    assert run("write", "my-own.2", "-m", 8, stdin=TEXT).stdout == expected(installed, "fix") + "\n"
    assert run("adapters", "remove", "my-own.2").exit_code == 0
    assert user_adapters() == {}
    assert "there is no adapter 'my-own.2'" in refused("write", "my-own.2")


def test_an_adapter_for_another_base_is_listed_with_it_and_refused_without(installed, tmp_path):
    """With streams or LoRA alone; where it names no base, that of ``adapters add`` is."""
    other, parameters = installed / "other", {"rank": 4, "scale": 2.0, "dropout": 0.0}
    parameters["keys"] = LORA_KEYS
    tensors = tiny_lora(json.loads((other / "config.json").read_text()), 4, 0)
    (made := tmp_path / "lora").mkdir()
    write_adapter(made, LoraPart(tensors, parameters, 4), None, {})
    cases = {"streams": (installed / "strange", "other"), "lora": (made, str(other))}
    for name, (directory, base) in cases.items():
        succeeded(run("adapters", "add", name, directory, "--model", other))
        rows = json.loads(run("adapters", "list", "--json").stdout)["adapters"]
        assert {row["name"]: row["base_model"] for row in rows}[name] == base
        shown = "".join(run("adapters", "list").stdout.split())  # a long path is broken
        assert re.search(rf"{name}Yours:[^Y]*ondisk,for{base}", shown)
        asks = ("--adapter", name, "-p", "hi", "-m", 4)
        assert "--model" in refused("generate", "-q", *asks)
        assert base in refused("generate", "-q", *asks)
        succeeded(run("generate", "--model", other, *asks))
    succeeded(run("adapters", "add", "own", installed / "mine"))
    assert "own" in run("adapters", "list").stdout


def test_a_damaged_adapter_is_named_and_the_others_are_listed(installed):
    for name in ("broken", "whole"):
        assert run("adapters", "add", name, installed / "mine").exit_code == 0
    (user_adapters()["broken"] / "adapter_config.json").write_text("{")
    for flags in ((), ("--json",)):
        result = run("adapters", "list", *flags)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("broken is left out: ")
        assert "adapter_config.json" in line
        found = [name in result.stdout for name in ("broken", "fix", "whole")]
        assert found == [False, True, True]


def test_a_name_is_never_a_path(installed, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for name in ("../x", "a/b", "", "..", "-x", "x" * 65, "ü"):
        for command in (("add", "--", name, installed / "mine"), ("remove", "--", name)):
            assert "expected" in refused("adapters", *command)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_adapter_of_the_base_is_not_kept(installed):
    for path in ("strange", "base", "nowhere"):
        refused("adapters", "add", "x", installed / path)
    assert "adapter of the package" in refused("adapters", "add", "fix", installed / "mine")
    assert "adapter of the package" in refused("adapters", "remove", "fix")
    assert user_adapters() == {}


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
        with local.announced(service, opened):
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
    written = local.written
    monkeypatch.setattr(local, "written", lambda *_: None)
    assert run("write", "concise", "-m", 8, stdin=LETTER).stdout == f"{whole}\n"
    monkeypatch.setattr(local, "written", written)
    alone = 0, local.Written("alone", 5, "stop")
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
    written = [(number, local.Written(text, 4, end, 2)) for number, text, end in pieces]
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
    ended = local.Written("Done.", 4, "stop", 2)

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


PARTS = json.loads((Path(__file__).parents[1] / "parts.json").read_text())


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case["tool"])
def test_a_text_in_parts(case):
    """The page has the same cases."""
    work, shown = Work(case["tool"], case["text"]), ""
    assert work.prompts == case["parts"]
    for number, text in enumerate(case["written"]):
        shown += "".join(work.add(number, letter, False) for letter in text)
        shown += work.add(number, "", True)
    assert shown == work.result == case["result"]


def test_long_texts_are_cut_between_sentences():
    long = " ".join(["We meets on sunday, and we has to go."] * 150)
    for tool, most in (("proofread", 600), ("summarize", 4000), (None, len(long)), ("sql", 9999)):
        sent = Work(tool, long).prompts
        assert " ".join(sent) == long and all(most / 2 < len(one) <= most for one in sent[:-1])
        assert (len(sent) == 1) == (most >= len(long))


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


def test_texts_that_tools_know():
    dialogue, prose = "Ana: are you there? Ben: yes", "The library is closed."
    cases = {"summarize": dialogue, "describe": "name[Luna], age[3]", "proofread": prose}
    for name, text in cases.items():
        assert tools.TOOLS[name].objection(text) is None
    for name in ("summarize", "describe", "sql"):
        assert tools.TOOLS[name].objection(prose)
    assert tools.TOOLS["sql"].objection("table a(id), table b(a_id): which are in b?") is None
    assert tools.TOOLS["sql"].objection("table a(id)")  # without a question


def test_info_is_shown_in_80_columns(base, shared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(mx, "load", None)  # no weights are read
    assert "is not a directory here" in run("adapters", "info", shared).stderr
    assert f"{base} is a base model" in refusal(run("adapters", "info", base, "--model", base))
    text = run("adapters", "info", shared, "--model", base).stdout
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\u2026" not in text
    assert re.search(r"pruner 1,024 \(\d\.\d+% of the base\)", text)


def test_what_does_not_fit_is_described_and_noted(base, shared, tmp_path):
    other = tiny_llama_directory(tmp_path / "other", intermediate_size=128)
    assert "made for another base" in run("adapters", "info", shared, "--model", other).stderr
    copy = shutil.copytree(base, tmp_path / "base")
    edit(copy / "config.json", model_type="mamba")
    assert "model_type is 'mamba', which is refused" in run("adapters", "info", copy).stderr


STREAMS = "the bundled streams"
USED, FIT = "Using SmolLM2-135M-Instruct", "The bundled streams fit this model; --no-streams leaves"


@pytest.mark.parametrize(
    ("flags", "adapter", "note"),
    [
        ([], STREAMS, f"{USED} with the bundled streams"),
        (["--model", "smollm2"], STREAMS, FIT),
        (["--model", "base"], STREAMS, FIT),
        (["--model", "other"], None, "No streams are mounted, so only lookup may draft"),
        (["--no-streams"], None, USED),
        (["--adapter", "fix"], "fix", f"{USED} with fix"),
    ],
)
def test_what_is_mounted_by_itself(flags, adapter, note, installed, monkeypatch):
    monkeypatch.chdir(installed)
    result = run("generate", "-p", "hi", "-m", 4, "--json", *flags)
    assert result.stderr.startswith(note)
    assert json.loads(result.stdout)["adapter"] == adapter


def test_streams_that_a_user_has_added_draft_for_the_model_that_they_fit(installed, tmp_path):
    """A LoRA beside them would change the text, so that one has to be named."""
    base = ("--model", installed / "other")
    command = ("generate", "-p", "hi", "-m", 4, *base)
    lora = stream_adapter_directory(tmp_path / "lora", installed / "other", lora_rank=4)
    assert run("adapters", "add", "task", lora, *base).exit_code == 0
    assert run(*command).stderr.startswith("No streams are mounted")
    assert run("adapters", "add", "faster", installed / "strange", *base).exit_code == 0
    assert run(*command).stderr.startswith("The streams faster fit this model; --no-streams leaves")
