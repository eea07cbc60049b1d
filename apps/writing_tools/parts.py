"""A text in parts, which a tool works on side by side: what is between them stays as it is.

The page does the same (``page/parts.js``, ``page/work.js``) by the same patterns (``english``), and
both have the same cases (``tests/apps/parts.json``).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .english import BY_PARAGRAPH, CUTS, LIMITS, PATTERNS

_READS = (*BY_PARAGRAPH, "summarize", "key_points")  # whatever is written, in parts if it is long
_ITEM = PATTERNS["item"]


@dataclass(frozen=True)
class Part:
    """``text[start:end]``; ``is_item``: it is an item of a list."""

    start: int
    end: int
    is_item: bool = False


class TextInParts:
    """A text that a tool works on in parts; ``prompts`` are what it is given, side by side.

    Without a ``tool``, or with one that knows a form of text alone, it is the text as it is.
    ``edit(part, text)`` makes what stands there in the end of all that was written of a part.
    """

    def __init__(
        self, tool: str | None, before: str, edit: Callable[[Part, str], str] | None = None
    ):
        self.tool = tool if tool in _READS else None
        self.before, self._edit = before, edit
        whole = [Part(0, len(before))]
        self.parts = [*parts_of(before, self.tool)] if self.tool else whole
        # Friendly takes a request for one to itself, unless it sees that it is a letter's.
        greeting = PATTERNS["greeting"].match(before) if tool == "friendly" else None
        self._greeting = greeting[1] if greeting else ""
        self.prompts = []
        for part in self.parts:
            lent = f"{self._greeting}\n\n" if part.start and self._greeting else ""
            self.prompts.append(lent + before[part.start : part.end])
        self._written = [""] * len(self.parts)
        self._ended = [False] * len(self.parts)
        self._edited: dict[int, str] = {}
        self._shown = ""

    def add(self, number: int, text: str, ended: bool) -> str:
        """Take in what came of a part; returns what follows of the result, as far as it is sure."""
        self._written[number] += text
        self._ended[number] = ended
        if ended and self._edit is not None:
            part = self.parts[number]
            self._edited[number] = self._edit(part, self._written[number].strip())
        sure = "".join(self._result())
        new, self._shown = sure[len(self._shown) :], sure
        return new

    @property
    def ended(self) -> int:
        """How many parts are complete."""
        return sum(self._ended)

    @property
    def result(self) -> str:
        """The result so far."""
        return self._shown

    def _result(self) -> Iterator[str]:
        if self.tool == "key_points":
            yield "\n".join(f"- {point}" for point in self._points())
            return
        place, several = 0, False
        for number, part in enumerate(self.parts):
            if self.tool in BY_PARAGRAPH:
                yield self.before[place : part.start]
                place = part.end
            said = self._said(number)
            yield f"\n\n{said}" if several and said and self.tool == "summarize" else said
            if not self._ended[number]:
                return
            several = several or bool(said)
        if self.tool in BY_PARAGRAPH:
            yield self.before[place:]

    def _said(self, number: int) -> str:
        """What stands in the place of a part, without the greeting that was lent to it."""
        part, text, ended = self.parts[number], self._written[number], self._ended[number]
        if self.tool is None:
            return text
        text = text.strip() if self._edit is None else self._edited.get(number, "")
        lent = self._greeting if part.start else ""
        if lent and text.lower().startswith(lent[: len(text)].lower()):
            text = text[len(lent) :].strip()
            text = text[:1].upper() + text[1:]
        if ended and not text and self.tool in BY_PARAGRAPH:
            return self.before[part.start : part.end]
        return text

    def _points(self) -> list[str]:
        """The points of a list, none twice; the last one may go on until all is written."""
        first = next((n for n, ended in enumerate(self._ended) if not ended), len(self._ended))
        said, end = "\n".join(self._written[: first + 1]), PATTERNS["point_end"]
        points = [end.sub("", one.strip()) for one in PATTERNS["point"].split(said)]
        if first < len(self._ended):
            del points[-1]
        return [*dict.fromkeys(filter(None, points))]


def parts_of(text: str, tool: str) -> Iterator[Part]:
    """Cut a text into the parts that a tool is given."""
    own = _paragraphs(text, tool != "proofread") if tool in BY_PARAGRAPH else []
    for piece in own or [_trimmed(text, 0, len(text))]:
        yield from _cut(text, piece, LIMITS["sentences_bytes" if own else "whole_bytes"])


def _paragraphs(text: str, written: bool) -> list[Part]:
    """Find paragraphs and items of lists; of texts ``written`` anew, those that are sentences."""
    found: list[Part] = []
    for lines in _blocks(text):
        marks = [_ITEM.match(line[0])[0] for line in lines]  # type: ignore[index]
        widths = [len(line[0].rstrip()) for line in lines]
        ons = [
            width >= LIMITS["line_characters"]
            and not PATTERNS["paragraph_line_end"].search(line[0].rstrip())
            and not mark.strip()
            for line, width, mark in zip(lines, widths, marks[1:], strict=False)
        ]
        # Where the next word had room, somebody has broken the lines by hand.
        widest, next_words = max(widths), [len(line[0].split()[0]) for line in lines[1:]]
        fits = [width + 1 + word <= widest for width, word in zip(widths, next_words, strict=False)]
        by_hand = any(on and fit for on, fit in zip(ons, fits, strict=True))
        for line, mark, goes_on in zip(lines, marks, [False, *ons], strict=True):
            is_item = bool(mark.strip())
            piece = _trimmed(text, line.start() + len(mark), line.end(), is_item)
            if goes_on and not by_hand:
                found[-1] = Part(found[-1].start, piece.end, found[-1].is_item)
            else:
                found.append(piece)
    parts = [part for part in found if any(map(str.isalpha, text[part.start : part.end]))]
    if not written or len(parts) == 1:
        return parts
    # Greetings, closings with what is below them and other lines of a few words stay.
    sentences, others, signed = [], [], False  # signed: a closing was above
    for part in parts:
        said = text[part.start : part.end]
        count = len(said.split())
        closes = bool(PATTERNS["closing"].match(said)) and count <= LIMITS["closing_words"]
        leads = closes or signed or PATTERNS["lead_end"].search(said)
        short = (
            count <= LIMITS["lead_words"]
            and (part.is_item or leads)
            and not PATTERNS["sentence_end"].search(said)
        )
        signed = signed or closes
        if not (count <= LIMITS["few_words"] or closes or short):
            sentences.append(part)
        if not leads:
            others.append(part)
    return sentences or others or parts


def _blocks(text: str) -> list[list[re.Match[str]]]:
    """Group the lines with something in them by the empty lines between."""
    blocks: list[list[re.Match[str]]] = []
    for line in PATTERNS["line"].finditer(text):
        if blocks and blocks[-1][-1].end() + 1 == line.start():
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _trimmed(text: str, start: int, end: int, is_item: bool = False) -> Part:
    said = text[start:end]
    return Part(end - len(said.lstrip()), start + len(said.rstrip()), is_item)


def _cut(text: str, part: Part, most: int) -> Iterator[Part]:
    """Cut a part into those of ``most`` bytes: of whole paragraphs, else sentences, else words."""
    start = part.start
    while start < part.end:
        rest = text[start : part.end]
        said = rest.encode()[:most].decode(errors="ignore")
        size = len(said)
        if size < len(rest):
            ends = (len(found[0]) for end in CUTS if (found := end.match(said)))
            size = next((end for end in ends if end > size / 4), size)
        piece = _trimmed(text, start, start + size, part.is_item)
        if piece.start < piece.end:
            yield piece
        start += size
