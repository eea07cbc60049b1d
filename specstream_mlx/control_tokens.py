"""Control tokens that a user's text spells: they stay text, those of the chat template are tokens.

What users say is marked: a private character stands within each control token that is spelled
there, so that in a rendered prompt those without a mark are the template's. A prompt with marks is
encoded by a twin of the tokenizer, whose control tokens have names that nobody can guess; the
template's tokens get these names, the marks are taken out, and what is left spells no token.
Prompts without marks are encoded as ever.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Encoding, Tokenizer

from .errors import UserError, shown
from .files import reason

_PRIVATE = range(0xE000, 0xF900)  # characters that stand for nothing


def encoded(tokenizer: Any, text: str, **how: Any) -> list[int]:
    """Encode a text as it is; any error of the tokenizer's becomes one sentence."""
    try:
        tokens = tokenizer.encode(text, **how)
    except Exception as error:  # tokenizers raises no type of its own
        raise UserError(f"the tokenizer cannot encode the text: {reason(error)}") from None
    return tokens.ids if isinstance(tokens, Encoding) else tokens


class PrivateCharacters:
    """Private characters that do not occur in some values, each given out once.

    A template may escape them, so neither form occurs.
    """

    def __init__(self, *values: Any):
        text = json.dumps(values, ensure_ascii=False, default=str)
        free = (chr(code) for code in _PRIVATE)
        self._free = (c for c in free if c not in text and _escaped(c) not in text)
        self._given: list[str] = []

    def new(self) -> str:
        """Give out one more; if there is none, the last one again."""
        character = next(self._free, None)
        if character is not None:
            self._given.append(character)
        if not self._given:
            raise UserError(
                "the text has all characters from U+E000 to U+F8FF, expected some of them"
            )
        return self._given[-1]

    def is_in(self, character: str, text: str) -> bool:
        return character in text or _escaped(character) in text

    def without(self, text: str, *kept: str) -> str:
        """Take those that were given out, but for some, out of a rendered text."""
        for character in self._given:
            if character not in kept and self.is_in(character, text):
                text = text.replace(character, "").replace(_escaped(character), "")
        return text


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def control_tokens(tokenizer: TokenizerWrapper) -> "ControlTokens":
    """Return a tokenizer's control tokens, by the chat template that it has now."""
    inner = tokenizer._tokenizer
    source = template_source(tokenizer)
    known = _KNOWN.setdefault(inner, {})
    key = source, len(inner)
    if key not in known:
        known.clear()
        known[key] = ControlTokens(tokenizer, source)
    return known[key]


_KNOWN: WeakKeyDictionary[Any, dict[Any, "ControlTokens"]] = WeakKeyDictionary()


def template_source(tokenizer: TokenizerWrapper) -> str:
    """Return the text of the chat template, of several templates all; empty if it is no text."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""


class ControlTokens:
    """The control tokens of a tokenizer: special ones, and others that its template writes.

    Further added tokens are text that has a token of its own, such as line breaks or HTML.
    """

    def __init__(self, tokenizer: TokenizerWrapper, source: str):
        marks = (tokenizer.think_start, tokenizer.think_end)
        written = "\n".join(filter(None, (source, *marks, *_call_marks(tokenizer))))
        self._tokenizer = tokenizer._tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.names = {
            token.content: number
            for number, token in added
            if len(token.content) > 1
            and not token.content.isspace()
            and (token.special or token.content in written or _BARS.fullmatch(token.content))
        }
        self._spelled = re.compile(_one_of(self.names) or "(?!)")
        self._lock = Lock()

    def marked(self, value: Any, mark: str) -> Any:
        """Mark what spells control tokens in a text, or in all texts of a value as JSON has it."""
        if isinstance(value, str):
            while self._spelled.search(value):
                value = self._spelled.sub(lambda found: f"{found[0][0]}{mark}{found[0][1:]}", value)
            return value
        if isinstance(value, Mapping):
            return {self.marked(k, mark): self.marked(v, mark) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(item, mark) for item in value]
        return value

    def encode(self, text: str, mark: str, **how: Any) -> list[int]:
        """Encode a text in which the marked control tokens are text and the others tokens."""
        if mark not in text:
            return encoded(self._tokenizer, text, **how)
        with self._lock:
            twin, renamed = self._twin
        renamed_text = self._spelled.sub(lambda found: renamed[found[0]], text)
        return encoded(twin, renamed_text.replace(mark, ""), **how)

    @cached_property
    def _twin(self) -> tuple[Tokenizer, dict[str, str]]:
        """The tokenizer with other names for its control tokens, and these names."""
        key = secrets.token_hex(8)
        renamed = {name: f"\uf8ff{key}{number}\uf8ff" for name, number in self.names.items()}
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if isinstance(backend, Tokenizer):
            values = json.loads(backend.to_str())
            _rename(values, renamed)
            twin = Tokenizer.from_str(json.dumps(values, ensure_ascii=False))
            twin.no_truncation()
            twin.no_padding()
            if all(twin.token_to_id(renamed[name]) == self.names[name] for name in renamed):
                return twin, renamed
        raise UserError(
            f"the text spells a control token of the model, such as {shown(next(iter(renamed)))}, "
            "and its tokenizer has no way to take it as text"
        )


_BARS = re.compile("<[|\uff5c].+[|\uff5c]>", re.DOTALL)  # also with DeepSeek's wide bars


def _one_of(names: Iterable[str]) -> str:
    """Make a pattern of the longest of some words, by their letters: there may be thousands."""
    trie: dict[str, Any] = {}
    for name in names:
        node = trie
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _letters(trie)


def _letters(trie: dict[str, Any]) -> str:
    ways = [re.escape(letter) + _letters(rest) for letter, rest in trie.items() if letter]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)})" + ("?" if "" in trie else "")


def _call_marks(tokenizer: TokenizerWrapper) -> Iterable[str]:
    return filter(None, (tokenizer.tool_call_start, tokenizer.tool_call_end))


def _rename(values: dict[str, Any], names: dict[str, str]) -> None:
    """Rename tokens in the content of a ``tokenizer.json``."""
    for token in values["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = values["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(name, name): number for name, number in vocab.items()}
    else:  # of a unigram model
        model["vocab"] = [[names.get(name, name), score] for name, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [*_possible(model["merges"], names)]


def _possible(merges: Iterable[Any], names: dict[str, str]) -> Iterator[Any]:
    """Leave out the merges that make renamed tokens of text, or take part of them."""
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not names.keys() & {left, right, left + right}:
            yield merge
