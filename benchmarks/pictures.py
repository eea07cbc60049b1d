"""The README's pictures: what a session looks like, the page, and the drafters side by side.

    python -m benchmarks.pictures session    # two terminals, as fast as they wrote here
    python -m benchmarks.pictures page       # of the writing tools, in Chromium
    python -m benchmarks.pictures rivals     # a plot of what ``rivals`` has counted

Of the session, both sides write the same text in turns; the pair with the median speed is shown.
"""

import base64
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import mlx_lm
from mlx_lm.generate import GenerationResponse as PlainResponse

from specstream_mlx import UserError, demonstration, load, stream_generate
from specstream_mlx.files import read_json
from specstream_mlx.generation.text import decoding_rate
from specstream_mlx.hardware import device
from specstream_mlx.hardware.cpu import stock_modules
from specstream_mlx.options import FILE, TEXT, choice, option
from specstream_mlx.prompts import encode_prompt
from specstream_mlx.terminal.commands import program
from specstream_mlx.terminal.progress import track

from . import browser
from .report import RESULTS, write_text
from .rivals.methods import LOOKUP
from .rivals.report import means_of
from .rivals.texts import ADAPTERS, OF_BASE

WIDTH = 880
RIVALS = RESULTS / "rivals-linux-x86_64.json"
_ROOT = Path(__file__).parents[1]
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_SANS = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"


def _drawing(height: float, title: str, style: str, body: Sequence[str]) -> str:
    """An SVG file."""
    first = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"'
    first += f' width="{WIDTH}" height="{height:g}" role="img"><title>{escape(title)}</title>'
    back = _box(0.5, 0.5, WIDTH - 1, height - 1, "back", ' rx="10"')
    return "\n".join((first, f"<style>{style}</style>", back, *body, "</svg>\n"))


def _text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{more}>{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} class="{kind}"{more}/>'


# A session ----------------------------------------------------------------------------------------

MESSAGE = (
    "We has moved the workshop to the big room on the second floor. Please brings your own laptop "
    "and a notebook, because we will be working in small group all day. Lunch are served at noon, "
    "and everyone is welcome to stay for coffee afterwards."
)
PAIRS = 5
_MOST = 200  # tokens
_WARM_UP = 2  # pairs in which some steps are timed, to know what drafts cost here
_HOLD = 4.0  # seconds for which the whole text stands

_LETTER, _LINE = 7.8, 20  # of a terminal's text
_EDGE, _PANE, _COLUMNS = 20, 412, 49

_TERMINAL = f"""text{{font:13px {_MONO};fill:#d6dae0;white-space:pre}}
.back{{fill:#14171c;stroke:#3d444e}} .pane{{fill:#1d2128;stroke:#343b45}}
.head,.small{{fill:#9aa3af}} .small{{font-size:11px}} .result{{fill:#fff;font-weight:700}}
.drafted{{fill:#5fd787;font-weight:700}} rect.own{{fill:#9aa3af}} rect.drafted{{fill:#5fd787}}"""


@dataclass(frozen=True)
class Call:
    """A forward pass and what it wrote."""

    seconds: float  # since the prompt was given
    pieces: list[tuple[str, bool]] = field(default_factory=list)  # texts, and which were drafted


@dataclass(frozen=True)
class Recording:
    """A text as it was written."""

    calls: list[Call]
    rate: float  # tokens per second after the first

    @property
    def text(self) -> str:
        return "".join(text for call in self.calls for text, _ in call.pieces)

    @property
    def figures(self) -> str:
        tokens = sum(len(call.pieces) for call in self.calls)
        return f"{tokens} tokens, {len(self.calls)} passes, {self.rate:.1f} tokens/s"


def recorded(responses: Callable[[], Iterator[PlainResponse]]) -> Recording:
    """Write a text with either program, whose responses say which pass they are of."""
    began, calls, rate = time.perf_counter(), list[Call](), 0.0
    for response in responses():
        if getattr(response, "target_calls", response.generation_tokens) > len(calls):
            calls.append(Call(time.perf_counter() - began))
        calls[-1].pieces.append((response.text, response.from_draft))
        rate = decoding_rate(response)
    return Recording(calls, rate)


def both_sides(message: str) -> tuple[Recording, Recording]:
    """mlx_lm's recording and ours, of the pair with the median speed."""
    model, tokenizer = load(demonstration.base_path(), adapter_path="proofread")
    prompt = encode_prompt(tokenizer, message, model.prompt_template)
    pairs = []
    for _ in track(range(_WARM_UP + PAIRS), "pairs"):
        with stock_modules(model.model):
            asked = model.model, tokenizer, prompt, _MOST
            plain = recorded(partial(mlx_lm.stream_generate, *asked))
        ours = recorded(partial(stream_generate, model, tokenizer, prompt, _MOST))
        if plain.text != ours.text:
            raise UserError(f"mlx_lm wrote {plain.text!r} and we {ours.text!r}, expected the same")
        pairs.append((plain, ours))
    return sorted(pairs[_WARM_UP:], key=lambda pair: pair[1].rate / pair[0].rate)[PAIRS // 2]


def session(plain: Recording, ours: Recording, message: str, machine: str) -> str:
    """Draw a terminal for each; what moves stands as it ends where nothing may move."""
    whole = max(plain.calls[-1].seconds, ours.calls[-1].seconds) + _HOLD
    command = f'$ specstream-mlx generate --adapter proofread --show-drafts -p "{message}"'
    lines = _lines(command, (WIDTH - 2 * _EDGE) // _LETTER)
    body = [_typed(_EDGE, 32 + _LINE * row, line) for row, (_, line) in enumerate(lines)]
    top, moves, bottom = 32 + _LINE * len(lines), list[str](), 0.0
    sides = {"mlx_lm, same model, same adapter": plain, "specstream-mlx, drafts in colour": ours}
    for name, (title, side) in zip("ab", sides.items(), strict=True):
        left = _EDGE if name == "a" else WIDTH - _EDGE - _PANE
        written = _lines(side.text, _COLUMNS)
        bottom = top + _LINE * len(written) + 96
        body += [_box(left, top, _PANE, bottom - top, "pane", ' rx="8"')]
        body += [_typed(left + 14, top + 25, title, "head")]
        width, place = min(10.0, (_PANE - 28) / len(side.calls)), 0
        for number, call in enumerate(side.calls):
            moves.append(
                f"@keyframes {name}{number}{{0%{{opacity:0}}"
                f"{100 * call.seconds / whole:.2f}%,to{{opacity:1}}}}"
            )
            body.append(f'<g class="live" style="animation-name:{name}{number}">')
            for text, drafted in call.pieces:
                for row, (start, line) in enumerate(written):
                    first, last = max(place, start), min(place + len(text), start + len(line))
                    if words := side.text[first:last].rstrip():
                        column = first - start + len(words) - len(words.lstrip())
                        at = left + 14 + _LETTER * column, top + 54 + _LINE * row
                        body.append(_typed(*at, words.lstrip(), "drafted" if drafted else "own"))
                place += len(text)
            drafts = any(drafted for _, drafted in call.pieces)
            at = left + 14 + width * number, bottom - 44
            body.append(_box(*at, width - 2, 8, "drafted" if drafts else "own"))
            if number == len(side.calls) - 1:
                body.append(_typed(left + 14, bottom - 14, side.figures))
            body.append("</g>")
    faster = f"{ours.rate / plain.rate:.1f} times as fast here, and the same text"
    body += [f'<g class="live" style="animation-name:a{len(plain.calls) - 1}">']
    body += [_typed(_EDGE, bottom + 30, faster, "result"), "</g>"]
    for row, (_, line) in enumerate(_lines(machine, 118)):
        body.append(_text(_EDGE, bottom + 50 + 16 * row, line, "small"))
    title = f"mlx_lm ({plain.figures}) and specstream-mlx ({ours.figures}) write: {ours.text}"
    live = f".live{{animation:{whole:.2f}s step-end infinite}}"
    style = [_TERMINAL, "@media (prefers-reduced-motion:no-preference){", live, *moves, "}"]
    return _drawing(bottom + 68 + 16 * row, title, "\n".join(style), body)


def _typed(x: float, y: float, words: str, kind: str = "own") -> str:
    """A text of a terminal, as wide as in any font."""
    return _text(x, y, words, kind, f' textLength="{_LETTER * len(words):g}"')


def _lines(text: str, columns: float) -> list[tuple[int, str]]:
    """A text in lines, each with its place in it."""
    pattern = rf"\S.{{0,{int(columns) - 1}}}(?=\s|$)|\S{{1,{int(columns)}}}"
    return [(match.start(), match[0].rstrip()) for match in re.finditer(pattern, text)]


# The page -----------------------------------------------------------------------------------------

EMAIL = """Dear Ms Okafor,

Thank you for your invitation to the interview. I have worked in a bakery for three year and i \
likes to talk with customers. I have attach my CV, and I can bring the certificates to the \
interveiw.

Could we meet on Tuesday at 10? I has another appointment on Monday, and the trains is often late \
in the morning. Please let me know if you needs anything else.

Kind regards,
Tom Bauer
"""
_OPENED = -1  # of the marked words, which has nothing below it
_SIZE = {"width": 1200, "height": 866, "deviceScaleFactor": 1, "mobile": False}


def page() -> bytes:
    """Proofread a message on the page, and open the choices of a marked word."""
    if None in (browser.CHROMIUM, browser.DRIVER):
        raise UserError(f"a picture of the page {browser.NEEDED}")
    command = [sys.executable, "-m", "specstream_mlx", "writing-tools", "--no-browser"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        browser.window() as window,
    ):
        try:
            addresses = (re.search(r"http://\S+", line) for line in server.stderr or ())
            window.devtools("Emulation.setDeviceMetricsOverride", **_SIZE)
            window.open(next(match[0] for match in addresses if match))
            window.until("document.querySelector('#memory').textContent")
            window.run("document.querySelector('#text').value = arguments[0]", EMAIL)
            window.click("[data-tool=proofread]")
            window.until("document.querySelector('.change')", 120)
            window.until("document.querySelector('#stop').hidden", 120)
            window.run("[...document.querySelectorAll('.mark')].at(arguments[0]).focus()", _OPENED)
            taken = window.devtools("Page.captureScreenshot", format="png")
        finally:
            server.terminate()
    return base64.b64decode(taken["data"])


# Drafters side by side ----------------------------------------------------------------------------

TITLE = "Tokens a forward pass, by what drafts"
NAMES = {
    "streams": "streams (this project)",
    "eagle": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "hydra": "Hydra",
    "medusa": "Medusa-1, base's head",
    "medusa-own": "Medusa-1, own heads",
    "ppd": "PPD's prompt tokens",
    "draft-model": "draft model",
    "suffix": "suffixes",
    "pld": "PLD",
    "rest": "REST",
}
"""Titles of methods that have other names in ``rivals``."""

NODES, WITH = 8, f" + {LOOKUP}"
_ROW, _LEFT, _BARS = 32, 275, 280

_PLOT = f"""text{{font:13px {_SANS};fill:var(--ink)}}
svg{{--ink:#1f2328;--dim:#656d76;--line:#d8dee4;--back:#fff;--one:#a9bfd6;--two:#3d78b8;
--ours-one:#f0c08f;--ours-two:#cf6a12}}
@media (prefers-color-scheme:dark){{svg{{--ink:#e6edf3;--dim:#9198a1;--line:#363d46;--back:#14171c;
--one:#4a6078;--two:#6aa5e3;--ours-one:#855a2c;--ours-two:#f09a48}}}}
.back{{fill:var(--back);stroke:var(--line)}} .grid{{fill:var(--line)}} .plain{{fill:var(--dim)}}
.title{{font-size:18px;font-weight:600}} .bold{{font-weight:700}} .dim,.small{{fill:var(--dim)}}
.small,.value{{font-size:11px}} .right{{text-anchor:end}} .middle{{text-anchor:middle}}
.value{{paint-order:stroke;stroke:var(--back);stroke-width:3px}} .one{{fill:var(--one)}}
.two{{fill:var(--two)}} .ours-one{{fill:var(--ours-one)}} .ours-two{{fill:var(--ours-two)}}"""


def rivals(values: Mapping[str, Any], day: str) -> str:
    """Draw the tokens a pass of each drafter, alone and with lookup."""
    greedy = (entry for entry in values["rows"] if not entry["temperature"])
    rows = [entry for entry in greedy if entry["nodes"] == NODES]
    panels = {
        "answers of the base": [entry for entry in rows if entry["group"] in OF_BASE],
        "answers of its task adapters*": [entry for entry in rows if entry["group"] == ADAPTERS],
    }
    panels = {title: of_panel for title, of_panel in panels.items() if of_panel}
    means = {title: means_of(of_panel, "accepted") for title, of_panel in panels.items()}
    most = max(value for of_panel in means.values() for value in of_panel.values())
    scale = (_BARS - 34) / most  # the value stands behind its bar
    stored = values.get("sizes", ())  # as they were
    sizes = {entry["method"]: entry["parameters"] for entry in stored}
    sizes |= values.get("parameters", {})
    first = next(iter(means.values()))
    best = {name: max(first[name], first.get(name + WITH, 0)) for name in first if WITH not in name}
    names = sorted(best, key=best.__getitem__, reverse=True)
    top = 128
    end = top + _ROW * len(names)
    body = [_text(20, 36, TITLE, "title")]
    body += [_text(20, 58, f"Trees of {NODES} nodes; every text is plain decoding's.", "dim")]
    for at, words, kind in ((_LEFT, "alone", "one"), (_LEFT + 70, "with lookup", "two")):
        body += [_box(at, 76, 12, 12, kind), _text(at + 18, 87, words, "value")]
    body.append(_text(_LEFT - 15, top - 8, "adds parameters", "small right"))
    for number, (title, of_panel) in enumerate(panels.items()):
        left, values_of = _LEFT + number * (_BARS + 25), means[title]
        classes = len({entry["class"] for entry in of_panel})
        body.append(_text(left, top - 8, f"{title}, {classes} kinds", "bold"))
        for tick in range(int(most) + 1):
            kind = "plain" if tick == 1 else "grid"
            body.append(_box(left + scale * tick - 0.5, top, 1, end - top, kind))
            body.append(_text(left + scale * tick, end + 16, f"{tick}", "value middle"))
        best_of_all = max(values_of.values())
        for row, name in enumerate(names):
            bars = [(name, "one"), (name + WITH, "two")]
            bars = [(method, kind) for method, kind in bars if method in values_of]
            y = top + _ROW * row + _ROW / 2 - 6 * len(bars)
            for method, kind in bars:
                width, ours = scale * values_of[method], "ours-" if name == "streams" else ""
                body.append(_box(left, y, width, 11, ours + kind))
                bold = "value bold" if values_of[method] == best_of_all else "value"
                body.append(_text(left + width + 5, y + 9.5, f"{values_of[method]:.2f}", bold))
                y += 12
    for row, name in enumerate(names):
        y, size = top + _ROW * row + _ROW / 2 + 4.5, sizes.get(name, 0)
        words = NAMES.get(re.sub(r"-\de-\d$", "", name), name)  # without a learning rate
        body.append(_text(20, y, words, "bold" if name == "streams" else "name"))
        million = f"{size / 1e6:.1f} M" if size >= 1e5 else "< 0.1 M" if size else "none"
        body.append(_text(_LEFT - 15, y, million, "dim right"))
    facts = values["facts"]
    model = demonstration.MODEL if facts["model"] == demonstration.NAME else facts["model"]
    notes = (
        "1 is plain decoding. Geometric means over kinds of text, greedy.",
        "* Each adapter has streams of its own; all else that is trained was trained for the base.",
        f"{model}, {facts['per_class']} texts a kind, {facts['max_tokens']} tokens each; {day}",
        f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']}",
    )
    body += [_text(20, end + 44 + 18 * row, note, "small") for row, note in enumerate(notes)]
    return _drawing(end + 44 + 18 * len(notes), TITLE, _PLOT, body)


def _day(path: Path) -> str:
    """The day of the commit that a file is of, or of the file."""
    command = ["git", "-C", str(path.parent), "log", "-1", "--format=%cs", "--", path.name]
    day = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return day or time.strftime("%Y-%m-%d", time.localtime(path.stat().st_mtime))


def main(
    picture: str = option(
        ..., choice("session", "page", "rivals"), "What to make a picture of.", positional=True
    ),
    message: str = option(MESSAGE, TEXT, "Session: what is proofread."),
    results: Path = option(RIVALS, FILE, "Rivals: what the plot is of, beside which it is put."),
) -> None:
    """Make one of the README's pictures."""
    if picture == "page":
        path = _ROOT / "apps/writing_tools/page.png"
        path.write_bytes(page())
    elif picture == "session":
        path, facts = RESULTS / "session.svg", device.describe()
        machine = f"{demonstration.MODEL}, {time.strftime('%Y-%m-%d')}, median of {PAIRS} pairs; "
        machine += f"{facts['machine']}, {facts['cpu']}, MLX {facts['mlx']}"
        write_text(path, session(*both_sides(message), message, machine))
    else:
        path = results.with_suffix(".svg")
        write_text(path, rivals(read_json(results), _day(results)))
    print(path)


if __name__ == "__main__":
    program(main)()
