"""Every command and every snippet that the README pages and the help texts show.

A fenced block, or the help of a command, runs from top to bottom in a new folder with small
stand-ins for what a user has. Output that is shown is compared.
"""

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from command_line import invoke, run
from demonstration_weights import installed, needs_weights
from parity import peft_directory
from serving import Resident, running
from specstream_mlx.apps.writing_tools.tools import TOOLS
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_base
from tiny_gguf import tiny_gguf
from tiny_models import VOCAB_SIZE, stream_adapter_directory, tiny_llama_directory
from torch_tiny import saved, tiny_llama, tiny_model

from specstream_mlx import batch_generate, bundled, demonstration, load
from specstream_mlx.cli import doctor
from specstream_mlx.errors import install
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.serve.service import BASE

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / package for package in ("specstream_mlx", "apps", "convert", "benchmarks")]
PAGES = [*ROOT.glob("*.md"), *(page for package in PACKAGES for page in package.rglob("README.md"))]
PAGES = sorted(page.relative_to(ROOT) for page in PAGES)
SOURCES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in package.rglob("*.py"))

NOT_RUN = {
    "python -m pytest": "runs this test among others",
    "python -m ruff": "reads the clone; .ci/run runs it",
    "python -m mypy": "reads the clone; .ci/run runs it",
    "python -m specstream_mlx.convert.demo_model.train_adapters": "trains adapters for hours",
    "python -m specstream_mlx.convert.demo_model.prompt_sources": "reads clones of data sets; "
    "tests/convert/demo_model/test_prompt_sources.py runs it on a few lines",
    "specstream-mlx serve": "serves until it is told to end; tests/serve/test_command.py runs it",
    "specstream-mlx writing-tools": "the same; tests/apps/test_page.py runs it, and "
    "tests/cli/test_adapters.py in the terminal",
    "curl": "asks a server; tests/serve do",
    "mlx.launch": "starts several processes; tests/distributed do",
    ".venv/bin/pip install": "brings what is installed",
    "specstream-mlx train": "trains for an hour; tests/cli/test_train.py runs it on a tiny model",
    "specstream-mlx generate --model mlx-community": "downloads a model; "
    "tests/cli/test_cli.py runs directories and GGUF files",
    "specstream-mlx benchmark spec-bench": "reads the field's questions, which are not ours",
    "specstream-mlx benchmark speedup": "measures for minutes",
    "specstream-mlx benchmark quantization": "the same; tests/benchmarks/test_quantization.py runs "
    "it on a tiny model",
}
"""Commands that begin like this are counted, not run, and why."""

SET_UP = re.compile(r"bash setup\.sh( test)? && \.venv/bin/")

DRAWINGS = {
    "ARCHITECTURE.md: One decoding step",
    "ARCHITECTURE.md: The path of one option",
}
"""Headlines below which a block of text is a drawing, not an output."""

SLOW = {
    "README.md: Two commands",
    "README.md: Your own model",
    "convert/README.md: Training streams in PyTorch",
    "convert/README.md: Training LoRA in PyTorch",
    "convert/demo_model/README.md: Asking it",
    "specstream_mlx/cli/convert.py: convert",
    "specstream_mlx/cli/generate.py: generate",
    "benchmarks/README.md: Prediction for Apple chips",
}


@dataclass(frozen=True)
class Command:
    line: str  # without its ``SET_UP``
    shown: str | None = None  # the output below it

    @property
    def left_out(self) -> str | None:
        return next((start for start in NOT_RUN if self.line.startswith(start)), None)


@dataclass(frozen=True)
class Block:
    """A fenced block, or the examples of a help text."""

    place: str
    kind: str
    text: str
    after: str = ""

    @property
    def commands(self) -> list[Command]:
        if self.kind == "console":
            return console(self.text)
        return [Command(line) for line in logical_lines(self.text)]


FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


def fences(page: Path) -> list[Block]:
    text = (ROOT / page).read_text()
    blocks = []
    for match in FENCE.finditer(text):
        headline = re.findall(r"^#+ (.*)$", text[: match.start()], re.M)[-1]
        after = re.match(r"\n\n```text\n(.*?)^```$", text[match.end() :], re.M | re.S)
        shown = after[1] if after else ""
        blocks.append(Block(f"{page}: {headline}", match["kind"], match["text"], shown))
    return blocks


EXAMPLES = "    Examples:\n"


def help_examples(source: Path) -> list[Block]:
    blocks = []
    for name, docstring in re.findall(
        r'^def (\w+)\((?:(?!^def ).)*?r?"""(.*?)"""', (ROOT / source).read_text(), re.M | re.S
    ):
        _, headline, examples = docstring.partition(EXAMPLES)
        if headline:
            lines = [line for line in examples.splitlines() if line.startswith(8 * " ")]
            blocks.append(Block(f"{source}: {name}", "help", "\n".join(lines)))
    return blocks


def logical_lines(text: str) -> list[str]:
    """Commands without comments; one goes on behind a backslash and within quotes."""
    lines, current = [], ""
    for line in text.splitlines():
        current += line + "\n"
        try:
            words = shlex.split(current, comments=True)
        except ValueError:  # a quotation or a backslash is open
            continue
        if words and not line.endswith("\\"):
            lines.append(SET_UP.sub("", current.strip()))
        if not line.endswith("\\"):
            current = ""
    assert not current.strip(), f"not a whole command: {current}"
    return lines


def console(text: str) -> list[Command]:
    commands = []
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines()
        length = next(n for n, line in enumerate(lines, start=1) if not line.endswith("\\"))
        commands.append(Command("\n".join(lines[:length]), "\n".join(lines[length:])))
    return commands


BLOCKS = [block for page in PAGES for block in fences(page)]
HELPS = [block for source in SOURCES for block in help_examples(source)]
SHELL = [block for block in (*BLOCKS, *HELPS) if block.kind in ("bash", "console", "help")]
RUN = list(  # what stands in two places is run once
    {
        tuple(command.line for command in block.commands): block
        for block in reversed(SHELL)
        if not all(command.left_out for command in block.commands)
    }.values()
)[::-1]
PYTHON = [block for block in BLOCKS if block.kind == "python"]


def cases(blocks: list[Block]) -> list:
    return [
        pytest.param(block, id=block.place, marks=[pytest.mark.slow] if block.place in SLOW else [])
        for block in blocks
    ]


def test_every_fence_is_of_a_kind_that_is_tested():
    kinds = {"bash", "console", "python", "text"}
    assert {block.kind for block in BLOCKS} == kinds
    for page in PAGES:
        marks = re.findall(r"^ *```", (ROOT / page).read_text(), re.M)
        assert len(marks) == 2 * sum(block.place.startswith(f"{page}: ") for block in BLOCKS)
    outputs = {block.after for block in PYTHON} - {""}
    texts = [block for block in BLOCKS if block.kind == "text" and block.text not in outputs]
    assert {block.place for block in texts} == DRAWINGS and len(texts) == len(DRAWINGS)


def test_every_example_of_a_help_text_is_found():
    for source in SOURCES:
        text = (ROOT / source).read_text()
        found = [block for block in HELPS if block.place.startswith(f"{source}: ")]
        assert text.count(EXAMPLES) == len(found), source
        assert all(block.commands for block in found)
        assert not re.search(r"^ +Example\b", text, re.M), source


def test_what_is_left_out_is_what_is_listed():
    commands = [command for block in SHELL for command in block.commands]
    left_out = [command for command in commands if command.left_out]
    assert {command.left_out for command in left_out} == set(NOT_RUN)
    assert {block.place for block in RUN} >= SLOW
    names = ("specstream-mlx ", "mlx.launch ", "python -m ", "bash ", "curl ", ".venv/bin/pip ")
    assert all(command.line.startswith(names) for command in commands)
    assert demonstration.INSTALL in (ROOT / "setup.sh").read_text()


def test_pages_and_messages_install_as_the_first_page_does():
    """In the clone's environment, groups of packages that pyproject.toml has."""
    found = []
    for place in (*PAGES, *SOURCES):
        text = (ROOT / place).read_text()
        found += [(str(place), *hint) for hint in re.findall(r"(\S*)pip install (\S+)", text)]
    found = [hint for hint in found if "pre-commit" not in hint]  # in an activated environment
    assert {"README.md", "specstream_mlx/errors.py", "convert/README.md"} < {
        hint[0] for hint in found
    }
    for place, before, what in found:
        assert before.strip("`(\"'f").endswith(".venv/bin/") and what in ("-e", "--no-deps"), place
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    sources = "".join((ROOT / source).read_text() for source in SOURCES)
    named = {
        *re.findall(r"install\([\"'](\w+)[\"']\)", sources),
        *(extra for _, extra in doctor._EXTRAS.values()),
    }
    assert named == {"serve", "torch", "coreml"} < groups.keys()
    assert f"`{install('serve')}`" in (ROOT / "README.md").read_text()


def test_flags_named_in_running_text_exist():
    """``specstream-mlx COMMAND --flag`` in backticks: such a command has such a flag."""
    helps: dict[str, str] = {}
    for page in PAGES:
        text = FENCE.sub("", (ROOT / page).read_text())
        for code in re.findall(r"`specstream-mlx ([^`]+)`", text):
            words = code.replace("\n", " ").split()
            names = [word for word in words[:2] if re.fullmatch(r"[a-z][a-z-]+", word)]
            name = " ".join(names if words[0] == "benchmark" else names[:1])
            helps[name] = helps.get(name) or run(*name.split(), "--help").output
            for flag in re.findall(r"--[a-z-]+", code):
                assert re.search(rf"{flag}\b", helps[name]), f"{page}: {code}"
    assert len(helps) > 3


def hugging_face(directory: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "head_dim": 16}
    saved(tiny_llama(tied=False, vocab=VOCAB_SIZE, **sizes), directory)


def torch_streams(directory: Path, hf: Path) -> None:
    model = tiny_model(base=load_base(hf), base_fingerprint=base_fingerprint(hf))
    write_adapter(model, directory)


def core_ml_package(path: Path) -> None:
    pytest.importorskip("coremltools", reason="the extra [coreml] is not installed")
    from specstream_mlx.convert.to_coreml.export import export
    from specstream_mlx.convert.to_coreml.supported import Sizes

    base = tiny_llama_directory(path.parent / "exported-model", bits=4)
    sql = stream_adapter_directory(path.parent / "exported-adapters/sql", base, mode="shared")
    export(base, path, [sql], Sizes(context=256, nodes=(4,), chunk=16, candidates=2))


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


DIALOGUE = (
    "Mia: Could we move the budget meeting from Monday to Friday? Tom: I'm afraid not, the "
    "projector stopped working. Mia: Okay, thank you. Please send me the sales report by noon.\n"
)
ANSWERS = "".join(
    json.dumps({"prompt": f"when is number {n}", "completion": "noon and the team " * 4}) + "\n"
    for n in range(4)
)

HF = "path/to/hf-model"
MAKERS: dict[str, Callable[[Path], object]] = {
    HF: hugging_face,
    "SmolLM2-135M-Instruct.Q4_1.gguf": lambda path: tiny_gguf().write(path),
    "path/to/mlx-model": partial(tiny_llama_directory, intermediate_size=128),  # groups of 64
    "my-model": partial(tiny_llama_directory, intermediate_size=128),
    "path/to/adapter": lambda path: stream_adapter_directory(path, path.parent / "mlx-model"),
    "streams": lambda path: stream_adapter_directory(path, path.parent / "my-model"),
    "my-streams": lambda path: stream_adapter_directory(path, path.parent / "my-model"),
    "runs/streams/adapter": lambda path: torch_streams(path, path.parents[2] / HF),
    "tools.mlpackage": core_ml_package,
    "sql": lambda path: peft_directory(path.parent / HF, path),
    "summarize": lambda path: peft_directory(path.parent / HF, path),
    "benchmarks/results": lambda path: shutil.copytree(ROOT / "benchmarks/results", path),
    "my.json": text('{"acceptance": [[0.6, 0.1], [0.5, 0.1]]}'),
    "answers.jsonl": text(ANSWERS),
    "runs/own.training/data/train.jsonl": text(ANSWERS),
    "runs/own.training/data/valid.jsonl": text(ANSWERS),
    "dialogue.txt": text(DIALOGUE),
    "doc.txt": text("The team meets at noon. " * 8),
    "prompts.txt": text("hello there my friend\nthe report is late today\n" * 2),
    "message.txt": text("Hi Ana, can you sned me the reports on monday\n"),
}
"""How to make what the examples take for granted, in the order in which it is made."""


def stand_ins(block: Block) -> list[str]:
    """The names of ``MAKERS`` that the commands read before one of them has written it."""
    needed, written = set(), set()
    for command in (one for one in block.commands if not one.left_out):
        words = shlex.split(command.line, comments=True)
        if words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
            needed.add("benchmarks/results")
        for before, word in zip(["", *words], words, strict=False):
            if before in ("--mlx-path", "--output", "--prompt-cache-file", "--record"):
                written.add(word)
            elif before in ("--adapter", "--tool", "--tasks") or word not in MAKERS:
                continue
            elif not any(Path(word).is_relative_to(one) for one in written):
                needed.add(word)
    return [name for name in MAKERS if name in needed]


def output_of_a_process(line: str, folder: Path) -> str:
    """What a command line prints, errors included."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}"
    return result.stdout


def output_of(line: str, folder: Path) -> str:
    """The same of ``specstream-mlx ..`` or ``python -m module ..``, sooner: in this process."""
    command, _, file = line.replace("\\\n", " ").partition(" < ")
    words = shlex.split(command, comments=True)
    stdin = (folder / file.strip()).read_bytes() if file else b""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("COLUMNS", "120")
        if words[0] == "specstream-mlx":
            result = run(*words[1:], stdin=stdin)
        else:
            assert words[:2] == ["python", "-m"], line
            patch.setattr(sys, "argv", words[2:])
            module = partial(runpy.run_module, words[2], run_name="__main__", alter_sys=True)
            result = invoke(lambda _: module(), [], stdin)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output


FIGURES = (
    (r"[\d.]+(?= (tokens-per-sec|tokens/s|GB|MB|ms|tokens per))", "#"),
    # how much is drafted depends on what steps cost on the machine
    (r"\d+ of \d+(?= drafted tokens)", "#"),
    (r"Target calls: \d+ instead of (\d+), call reduction [\d.]+", r"Target calls: # of \1"),
    (r"[\[\]]", ""),
)


def comparable(output: str) -> str:
    """An output without figures of speed, marks of drafts and line ends."""
    for pattern, instead in FIGURES:
        output = re.sub(pattern, instead, output)
    return " ".join(output.split())


def need_the_demonstration_model() -> None:
    """Make its base, before a command would say that it makes it."""
    if not installed():
        pytest.skip(f"needs the base's weights: {demonstration.INSTALL}")
    demonstration.base_path()


@pytest.mark.parametrize("block", cases(RUN))
def test_commands_do_what_is_shown(block, request, tmp_path, monkeypatch):
    """On the toy instead of the demonstration model, but for the first page and what is shown."""
    if block.place.startswith("README.md: ") or block.kind == "console":
        run = output_of_a_process
        need_the_demonstration_model()
    else:
        run = output_of
        tools = request.getfixturevalue("tools")
        request.getfixturevalue("toy")
        monkeypatch.setattr(bundled, "ROOT", tools)
    for name in stand_ins(block):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        MAKERS[name](tmp_path / name)
    for command in block.commands:
        if command.left_out:
            continue
        found = run(command.line, tmp_path)
        if command.shown is not None:
            assert comparable(found) == comparable(command.shown)


KEPT = {(name, tool.example): tool.answer for name, tool in TOOLS.items()} | {
    ("proofread", "i have worked in a bakery for three year and i likes to talk with customers"): (
        "I have worked in a bakery for three years and I like to talk with customers."
    ),
    ("proofread", "The parcel have arrived this morning but the box were open."): (
        "The parcel has arrived this morning but the box was open."
    ),
    (
        "proofread",
        "i have worked in a bakery for three year and i likes to talk with customers. can i come "
        "on tuesday at 10?",
    ): (
        "I have worked in a bakery for three years and I like to talk with customers. Can I come "
        "on Tuesday at 10?"
    ),
    ("proofread", "can you send me the invoice of the printer, we needs it on friday"): (
        "Can you send me the invoice of the printer, we need it on Friday?"
    ),
    ("professional", "can you send me the invoice of the printer, we needs it on friday"): (
        "Could you please send me the invoice of the printer? We need it on Friday."
    ),
    ("sql", "table t(name, city): what are the name?"): "SELECT name FROM t",
    (BASE, "Name three fruits."): "1. Bananas\n2. Oranges\n3. Grapes",
    (BASE, "What is the capital of France?"): "The capital of France is Paris.",
}
"""What the demonstration model writes for each text that is shown with a tool or the base."""

ON_THE_PAGE = {
    "proofread": "because they renew the floor. Training is in the school hall.",
    "friendly": "because they renew the floor, and training is in the school hall.",
    "professional": "because they renew the floor. The training is held in the school hall.",
    "concise": "because they renew the floor. Training is in the school hall.",
    "summarize": "because they renew the floor, and training is in the school hall.",
}
"""The same of the page's example, behind ``The gym is closed next week``."""


def test_what_is_shown_is_known_to_give_what_a_person_would_keep():
    for block in (*SHELL, *PYTHON):
        texts = re.findall(r'(?:"content": |^text = )"(.+?)"', block.text, re.M)
        assert {*texts} <= {text for _, text in KEPT}, block.place
        for command in [] if block.kind == "python" else block.commands:
            words = shlex.split(command.line.replace("\\\n", ""))
            if "generate" in words and "--model" not in words and "-p" in words:
                name = words[words.index("--adapter") + 1] if "--adapter" in words else BASE
                assert (name, words[words.index("-p") + 1]) in KEPT, block.place


@pytest.mark.slow
@needs_weights
def test_the_demonstration_model_writes_it():
    example = TOOLS["proofread"].example
    start = "The gym is closed next week "
    kept = KEPT | {(name, example): f"{start}{rest}" for name, rest in ON_THE_PAGE.items()}
    kept["key_points", example] = (
        "- the gym is closed next week because they renew the floor; - training in the school hall"
    )
    model, tokenizer = load(demonstration.base_path())
    adapters = [bundled.streams_path() if name == BASE else name for name, _ in kept]
    prompts = [
        chat_prompt(tokenizer, text, model.with_adapter(adapter).prompt_template)
        for (_, text), adapter in zip(kept, adapters, strict=True)
    ]
    written = batch_generate(model, tokenizer, prompts, max_tokens=60, adapters=adapters).texts
    assert dict(zip(kept, written, strict=True)) == kept


SERVER = "http://127.0.0.1:8080"


@pytest.fixture
def server(toy_directory):
    place = toy_directory
    toy = Resident(place / "base", place / "streams", proofread=place / "adapters/sql")
    with running(toy.service()) as address:
        yield address


@pytest.mark.parametrize("block", cases(PYTHON))
def test_snippets_run_as_they_stand(block, toy_directory, capsys, request):
    text = block.text
    if SERVER in text:
        text = text.replace(SERVER, request.getfixturevalue("server"))
    if "demonstration." in block.text:
        need_the_demonstration_model()
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / "adapters/sql")
    prompt = chat_prompt(tokenizer, "table t(name, city): for t with city Paris, what is the name?")
    known = {"model": model, "tokenizer": tokenizer, "prompt": prompt}  # from a page's first one
    exec(compile(text, block.place, "exec"), known)
    if block.after:
        assert comparable(capsys.readouterr().out) == comparable(block.after)
