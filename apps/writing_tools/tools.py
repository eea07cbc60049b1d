"""What each bundled writing tool is for, what it reads, and how often it is right.

Command line, server and page take it from here.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from specstream_mlx import bundled

from .create_table import as_tables

TEXTS = 16  # typed test texts of each task
LICENCE = "Apache-2.0"  # of the adapters, as of their base

MEMORY = (
    "On a CPU the base's weights are expanded in memory where that is faster: 0.54 GB of SmolLM2 "
    "in place of 0.1. --weights packed leaves them as they are."
)


@dataclass(frozen=True)
class Tool:
    """A bundled adapter, in words for users.

    ``right`` counts the typed test texts whose answer may stay as it is (the page of
    ``convert/demo_model`` says how); input without ``pattern``, a regular expression of JavaScript,
    too, is none that the adapter knows. ``form``: it knows nothing else, prose least of all.
    """

    name: str
    does: str
    takes: str
    example: str
    answer: str  # which the adapter writes
    right: int
    pattern: str = ""
    form: bool = False

    @property
    def is_experimental(self) -> bool:
        return 2 * self.right < TEXTS

    @property
    def quality(self) -> str:
        quality = f"{self.right} of {TEXTS} typed test texts right"
        return f"experimental, {quality}" if self.is_experimental else quality

    @property
    def text(self) -> str:
        """Lines for a terminal."""
        takes, quality = f"Takes {self.takes}.", f"{self.quality.capitalize()}. {LICENCE}."
        example = self.example, f"-> {self.answer}"
        return in_lines(self.name, self.does, takes, quality, *example)

    def facts(self) -> dict[str, Any]:
        """All of it for JSON."""
        own = {"quality": self.quality, "experimental": self.is_experimental}
        return asdict(self) | {"of": TEXTS, **own, "licence": LICENCE}

    def read(self, text: str) -> str:
        """The text in the form that the adapter knows."""
        return as_tables(text) if self.name == "sql" else text

    def objection(self, text: str) -> str | None:
        """Say what a text lacks, if the adapter does not know such a text."""
        if re.search(self.pattern, self.read(text), re.DOTALL | re.IGNORECASE):
            return None
        return f"{self.name} takes {self.takes}, and this text has none"


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "proofread",
            "Corrects spelling and grammar.",
            "a message",
            "The gym is closed next week because they renews the floor. Training is in the school "
            "hall.",
            "The gym is closed next week because they renew the floor. Training is in the school "
            "hall.",
            right=9,
        ),
        Tool(
            "friendly",
            "Says it in a friendlier tone.",
            "a message",
            "The kitchen is dirty. Clean it before you leave.",
            "The kitchen is dirty, so could you please clean it before you leave?",
            right=6,
        ),
        Tool(
            "professional",
            "Says it in a professional tone.",
            "a message",
            "hey, can u send me the report by noon? need it for the meeting",
            "Could you please send me the report by noon? I need it for the meeting.",
            right=3,
        ),
        Tool(
            "concise",
            "Says it in fewer words.",
            "a message",
            "I am writing to let you know that I will not be able to come to the meeting on "
            "Friday, because my train has been cancelled.",
            "I can't come to the meeting on Friday because my train has been cancelled.",
            right=5,
        ),
        Tool(
            "summarize",
            "Sums a conversation up in one or two sentences.",
            "a conversation, NAME: what is said",
            "Eva: The heating is broken again. Max: I will call the landlord today. Eva: Thank "
            "you!",
            "Eva reports that the heating is broken again and Max will call the landlord today.",
            right=1,
            pattern=r"(^|\s)\w[\w.]*:\s",
        ),
        Tool(
            "key_points",
            "Lists the points of a text.",
            "a notice or a message",
            "The library is closed on Monday. Books can be returned at the desk in the town hall. "
            "Late fees start on the 12th.",
            "- the library is closed on Monday; - books can be returned at the desk in the town "
            "hall; - late fees start on the 12th",
            right=5,
        ),
        Tool(
            "sql",
            "Writes an SQL query.",
            "a table and a question, table NAME(COLUMN, ..): QUESTION",
            "table books(title, author, year): how many books are by Jane Austen?",
            "SELECT COUNT(*) FROM books WHERE author = 'Jane Austen'",
            right=9,
            pattern=r"""\btable\s+("[^"]+"|[^\s(]+)\s*\(.+\)\s*:\s*\S""",
            form=True,
        ),
        Tool(
            "describe",
            "Puts a record into a sentence.",
            "fields, NAME[VALUE]",
            "name[Luna], animal[cat], age[3], colour[grey]",
            "Luna is a grey cat aged 3.",
            right=4,
            pattern=r"[^\s\[\]]\s*\[[^\[\]]+\]",
            form=True,
        ),
    )
}
"""By name, those first that the page shows first."""


def in_lines(name: str, *texts: str) -> str:
    """A name, and texts beside it, in lines for a terminal."""
    room = max(20, min(82, get_terminal_size().columns - 18))  # help pages indent this by 4
    lines = [line for text in texts for line in wrap(text, room)]
    return f"{name:13} " + f"\n{14 * ' '}".join(lines)


def present() -> list[Tool]:
    """The tools of this installation."""
    names = bundled.adapter_names()
    return [tool for tool in TOOLS.values() if tool.name in names]


def cards() -> dict[Path, Tool]:
    """The tools of this installation by the resolved directories of their adapters."""
    return {(bundled.ROOT / "adapters" / tool.name).resolve(): tool for tool in present()}


def tool_at(path: Path) -> Tool | None:
    """Return the tool whose adapter a directory holds, if it is a bundled one."""
    return cards().get(path.resolve())


def read(path: Path | None, text: str) -> str:
    """Put a text into the form that the adapter in a directory knows."""
    tool = path and tool_at(path)
    return tool.read(text) if tool else text


def objection(path: Path | None, text: str) -> str | None:
    """Say what a text lacks for the tool at ``path``, if that is a bundled one."""
    tool = path and tool_at(path)
    return tool.objection(text) if tool else None


def listing() -> str:
    """All tools, in lines for a terminal."""
    return "\n".join(tool.text for tool in present())
