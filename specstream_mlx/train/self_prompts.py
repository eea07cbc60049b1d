"""Prompts that a model draws, as its user might write them; those that are fit are stored.

A draw follows from the seed and its number, so a call that was interrupted goes on where it ended.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from copy import copy
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.noise import Noise
from ..engine.sampling import keyed_sampler
from ..errors import UserError
from ..files import append
from ..generation.batch_generate import batch_generate
from ..loading.speculative_model import SpeculativeModel
from ..prompts import around_user, check_prompt
from .distil import Answering, claim, whole_lines

MOST_TOKENS = 90  # draws that have not ended by then are left out
_TEMP, _TOP_P = 1.0, 0.95
AT_ONCE = 32
_LEAST_CHARACTERS, _LEAST_WORDS = 12, 3
_ALIKE = 60  # prompts that begin with the same so many characters are the same
_RECENT, _LEAST_KEPT = 300, 15  # of so many draws in a row so many must be fit
_IDEOGRAMS = r"\u3040-\u30ff\u3400-\u9fff"  # between which there are no spaces: each is a word
_WORD = re.compile(f"[{_IDEOGRAMS}]|[^\\s{_IDEOGRAMS}]+")

Script = Literal["latin", "any"]
_USUAL = Answering()


def draw_prompts(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    directory: Path,
    count: int,
    how: Answering = _USUAL,
    script: Script = "latin",
    show: Callable[[float, float], None] = lambda done, total: None,
) -> tuple[list[str], str]:
    """Let the base draw prompts, to ``prompts.jsonl``; also returns a sentence on what it drew."""
    opening, turn_tokenizer = turn_of(tokenizer, how.template)
    check_prompt(opening, model.config)
    controls = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    path = directory / "prompts.jsonl"
    settings = {"seed": how.seed, "template": how.template, "script": script, "lora": how.lora}
    claim(path.with_suffix(".json"), settings)
    fit = {value["draw"]: value["prompt"] for value in whole_lines(path, draw=int, prompt=str)}
    alike = {beginning(prompt) for prompt in fit.values()}
    cache = make_prompt_cache(model.model)  # of what is before every draw
    if opening[:-1]:
        model.model(mx.array([opening[:-1]]), cache=cache)
        mx.eval([layer.state for layer in cache])
    place, faults = max(fit, default=-1) + 1, list[str | None]()
    show(len(fit), count)
    while len(fit) < count:
        places = range(place, place + min(AT_ONCE, 2 * (count - len(fit))))
        place, lines = places.stop, []
        drawn = _draws(model, turn_tokenizer, cache, opening[-1:], how.seed, places)
        for number, text, ended in drawn:
            if len(fit) == count:
                break
            fault = fault_of(text, ended, controls, script)
            if fault is None and beginning(text) in alike:
                fault = "began as an earlier one"
            faults.append(fault)
            if fault is None:
                fit[number] = text
                alike.add(beginning(text))
                line = {"prompt": text, "draw": number}
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        append(path, "".join(lines))
        show(len(fit), count)
        recent = faults[-_RECENT:]
        if len(recent) == _RECENT and recent.count(None) < _LEAST_KEPT:
            ((fault, times),) = Counter(filter(None, recent)).most_common(1)
            raise UserError(
                f"of the last {_RECENT} prompts that the base drew {recent.count(None)} can be "
                f"kept, expected at least {_LEAST_KEPT} ({times} {fault}); there are {len(fit)} "
                f"in {path}"
            )
    sentence = f"The base drew {len(faults)} prompts and {faults.count(None)} are kept"
    if left_out := Counter(filter(None, faults)).most_common():
        sentence += "; " + ", ".join(f"{times} {fault}" for fault, times in left_out)
    return list(fit.values())[:count], sentence if faults else ""


def turn_of(
    tokenizer: TokenizerWrapper, template: str | None
) -> tuple[list[int], TokenizerWrapper]:
    """Return token ids up to the user's text, and a tokenizer whose end tokens end that text."""
    if not tokenizer.has_chat_template:
        raise UserError(
            "the tokenizer has no chat template, which says where a user's turn begins, so the "
            "model cannot ask itself: expected a file of prompts (--prompts), or an instruct model"
        )
    before, after = around_user(tokenizer, template)
    said, ended = (
        tokenizer.encode(f"user{text}", add_special_tokens=False) for text in ("", after)
    )
    following = [token for other, token in zip_longest(said, ended) if token != other]
    turn_tokenizer = copy(tokenizer)
    turn_tokenizer.eos_token_ids = {*tokenizer.eos_token_ids, *following[:1]}
    # a blank at the end is drawn: most vocabularies' words begin with theirs
    return tokenizer.encode(before.rstrip(" "), add_special_tokens=False), turn_tokenizer


def _draws(
    model: SpeculativeModel,
    turn_tokenizer: TokenizerWrapper,
    cache: list[Any],
    last: list[int],
    seed: int,
    places: Collection[int],
) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of each draw after a last token, and whether it ended."""
    seeds = Noise(seed)  # mixed, so that the draws of seed 1 are not those of seed 0 but one
    response = batch_generate(
        model,
        turn_tokenizer,
        [last] * len(places),
        [cache] * len(places),
        max_tokens=MOST_TOKENS,
        completion_batch_size=len(places),
        samplers=[keyed_sampler(seeds.number(n), _TEMP, top_p=_TOP_P) for n in places],
        speculation=False,
    )
    for number, text, reason in zip(places, response.texts, response.finish_reasons, strict=True):
        yield number, text.strip(), reason == "stop"


def fault_of(text: str, ended: bool, controls: Collection[str], script: Script) -> str | None:
    """Return the reason why a text is no prompt, if there is one."""
    words = _WORD.findall(text.casefold())
    if not ended:
        return f"had no end within {MOST_TOKENS} tokens"
    if "\ufffd" in text or any(control in text for control in controls):
        return "held control tokens or broken characters"
    if len(text) < _LEAST_CHARACTERS or len(words) < _LEAST_WORDS:
        return "were too short"
    if 2 * len(set(words)) < len(words):
        return "repeated themselves"
    letters = filter(str.isalpha, text) if script == "latin" else ()
    if any(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters):
        return "had letters of another script"
    return None


def beginning(text: str) -> str:
    """Return a key that nearly equal texts share."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())[:_ALIKE]
