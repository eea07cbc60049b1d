"""Choose how to draft on this machine: measured step costs, measured acceptance, and a cache.

Acceptance comes from texts that are generated once (``replay``), costs from timed steps
(``step_costs``); what makes the most tokens per second of all in ``draft_grid`` is chosen, plain
decoding where nothing beats it. ``AdaptiveDrafting`` goes on from there in each generation.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..adapters.files import ADAPTER_CONFIG
from ..config import UserError
from ..drafting.settings import DraftSettings
from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..hardware import device, user_cache
from ..loading import SpeculativeModel, weight_files
from ..models.architectures import text_limit
from ..prompts import chat_prompt, check_prompt
from .adaptive import AdaptiveDrafting, Arm
from .calibration import CALIBRATION_FILE, calibration_prompts
from .cost import MOST_ROWS, StepCosts, measure_step_costs, place_of
from .grid import WIDTH, arms
from .replay import Recording, acceptance, record
from .trials import corrected

MAX_TOKENS = 64
"""Tokens that are generated from each calibration prompt, at most."""

_VERSION = 4
_COST_SECONDS, _RECORD_SECONDS, _TRIAL_SECONDS = 10.0, 10.0, 9.0
_LEAST_TEXTS, _LEAST_TOKENS = 2, 16
_SOME_TEXTS, _PROMISING = 4, 0.8  # that tell which places are in question, by their best rates
_SHOWN = 8
_WORTH = 1.02  # drafts must win more than what timings are off by
_TIE = 0.998  # of the best rate: as good, and then fewer nodes are taken
_NEAR = 0.985  # of the best rate: hybrid drafts are taken, which stake a text on neither drafter


@dataclass(frozen=True)
class TuningResult:
    """What the tuner measured, and how it decided to draft.

    Attributes:
        arms: the chosen way to draft, then the best of each other kind.
        ranking: the best ways to draft and plain decoding, most tokens per second first.
        costs: seconds of a step.
        acceptance: by depth and rank, behind every token of the texts; ``None`` without streams.
        texts: calibration texts.
        tokens: generated from them.
        seconds: that measuring took.
    """

    arms: tuple[Arm, ...]
    ranking: tuple[Arm, ...]
    costs: StepCosts
    acceptance: tuple[tuple[float, ...], ...] | None
    texts: int
    tokens: int
    seconds: float

    @property
    def chosen(self) -> Arm:
        """The way to draft that makes the most tokens per second."""
        return self.arms[0]

    @property
    def settings(self) -> DraftSettings:
        """The settings of the chosen way to draft."""
        return self.chosen.settings

    @property
    def plain(self) -> Arm:
        """Plain decoding, one token a step; in shared mode the streams run nevertheless."""
        return next(arm for arm in self.arms if arm.kind == "plain")

    def drafting(self) -> AdaptiveDrafting:
        """Make a drafting for one generation, which begins as chosen and goes on adapting."""
        return AdaptiveDrafting(self.arms)

    def reason(self) -> str:
        """Say in a sentence why the chosen way to draft won."""
        plain, best = self.plain, self.chosen
        if self.chosen is plain:
            drafts = [arm for arm in self.ranking if arm.kind != "plain"]
            if not drafts:
                return "Plain decoding: no text was long enough to draft in."
            best = max(drafts, key=lambda arm: arm.rate)
            return (
                f"Plain decoding wins: the best drafts ({best.kind}) commit {best.tokens:.2f} "
                f"tokens a step, which takes {best.seconds / plain.seconds:.2f} times as long as a "
                "plain one."
            )
        sentence = (
            f"{best.kind.capitalize()} drafts win: {best.tokens:.2f} tokens a step, which takes "
            f"{best.seconds / plain.seconds:.2f} times as long as a plain one, make "
            f"{best.rate / plain.rate:.2f} times plain decoding's speed"
        )
        others = [arm for arm in self.arms[1:] if arm is not plain]
        if others:
            sentence += ", " + " and ".join(
                f"{arm.kind} alone {arm.rate / plain.rate:.2f} times"
                if arm.kind != "hybrid"
                else f"both together {arm.rate / plain.rate:.2f} times"
                for arm in others
            )
        return sentence + "."

    def to_json(self) -> dict[str, Any]:
        """Turn the result into an object that JSON can hold and ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TuningResult":
        """Read what ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError, UserError: it is something else.
        """
        costs = values["costs"]
        table = {
            str(name): tuple((int(nodes), float(seconds)) for nodes, seconds in points)
            for name, points in dict(costs["table"]).items()
        }
        rates = values["acceptance"]
        ranking = tuple(_arm(arm) for arm in values["ranking"])
        result = cls(
            arms=tuple(_arm(arm) for arm in values["arms"]),
            ranking=ranking,
            costs=StepCosts(float(costs["plain"]), table),
            acceptance=None if rates is None else tuple(tuple(map(float, row)) for row in rates),
            texts=int(values["texts"]),
            tokens=int(values["tokens"]),
            seconds=float(values["seconds"]),
        )
        if not ranking or all(arm.kind != "plain" for arm in result.arms):
            raise ValueError("plain decoding is missing")
        return result


def _arm(values: dict[str, Any]) -> Arm:
    numbers = {name: float(values[name]) for name in ("tokens", "nodes", "seconds", "host")}
    costs = tuple(map(float, values["costs"]))
    if not costs or min(*costs, numbers["seconds"], numbers["tokens"]) <= 0:
        raise ValueError("a step takes no time")
    return Arm(str(values["kind"]), DraftSettings(**values["settings"]), costs=costs, **numbers)


def tune(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str] | None = None,
    *,
    max_tokens: int | None = None,
    again: bool = False,
    quantization: KVQuantization = NEVER_QUANTIZED,
    on_measuring: Callable[[], None] | None = None,
) -> TuningResult:
    """Find the fastest way to draft with this model, adapter, quantization and machine.

    Args:
        model: from ``load``.
        tokenizer: from ``load``.
        prompts: calibration texts, as a user would type them; ``None``: the adapter's own ones, or
            general ones. Given ones are measured in any case.
        max_tokens: tokens to generate from each, at most; ``None``: ``MAX_TOKENS``.
        again: measure, whatever the cache holds.
        quantization: of the KV cache.
        on_measuring: called before anything is measured.

    Raises:
        UserError: there is no prompt, or one that the model cannot read, or the KV cache cannot be
            quantized so.
    """
    quantization.check(model.model, model.config)
    facts = _facts(model, quantization)
    path = cache_file(facts)
    if not again and prompts is None and max_tokens is None:
        known = _cached(path, facts, model)
        if known is not None:
            return known
    if on_measuring is not None:
        on_measuring()
    prompts = calibration_prompts(model) if prompts is None else list(prompts)
    if not prompts:
        raise UserError("prompts is empty, expected at least one calibration text")
    ids = [chat_prompt(tokenizer, prompt, model.prompt_template) for prompt in prompts]
    for prompt in ids:
        check_prompt(prompt, model.config)
    end_tokens = tokenizer.eos_token_ids
    result = measure(model, ids, max_tokens or MAX_TOKENS, end_tokens, quantization)
    user_cache.write(path, {"facts": facts, "result": result.to_json()})
    return result


def tuned_drafting(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> AdaptiveDrafting:
    """Make a tuned drafting for one generation; measures first if nothing has been measured yet.

    It goes on adapting. ``model`` keeps what it learns, by adapter and kind of KV cache, and the
    next generation begins with that.

    Raises:
        UserError: see ``tune``.
    """
    result = tune(model, tokenizer, quantization=quantization)
    kind = cache_file(_facts(model, quantization))
    last = model.learned.get(kind)
    same = last is not None and last.arms == result.arms
    drafting = last.successor() if same else result.drafting()
    model.learned[kind] = drafting
    return drafting


def cached(
    model: SpeculativeModel,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> TuningResult | None:
    """The result in the cache for this model and machine, or ``None``; measures nothing."""
    facts = _facts(model, quantization)
    return _cached(cache_file(facts), facts, model)


def measure(
    model: SpeculativeModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    end_tokens: Sequence[int],
    quantization: KVQuantization,
) -> TuningResult:
    """Measure costs and acceptance, and choose.

    Args:
        model: base and adapter.
        prompts: token ids.
        max_tokens: tokens to generate from each, at most.
        end_tokens: a text ends with the first of these.
        quantization: of the KV caches.
    """
    with device.wired_limit(model.model, [device.generation_stream]):
        return _measure(model, prompts, max_tokens, end_tokens, quantization)


def _measure(
    model: SpeculativeModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    end_tokens: Sequence[int],
    quantization: KVQuantization,
) -> TuningResult:
    start = time.perf_counter()
    recordings = _record(model, prompts, max_tokens, end_tokens)
    # Attention, and so what a row more costs, depends on how much there is to attend to.
    rows = statistics.mean(len(text.prompt) + len(text.tokens) / 2 for text in recordings)
    streams, vocab_size = model.streams and model.streams.config, model.config["vocab_size"]

    def promising(costs: StepCosts) -> set[str]:
        some = arms(recordings[:_SOME_TEXTS], costs, streams, vocab_size)
        least = _PROMISING * some[0].rate
        return {place_of(arm.settings, streams) for arm in some if arm.rate >= least}

    costs = measure_step_costs(model, quantization, _COST_SECONDS, round(rows), promising)
    expected = arms(recordings, costs, streams, vocab_size)
    ranking = corrected(model, expected, recordings, _TRIAL_SECONDS, quantization)
    chosen, counts = choose(ranking), acceptance(recordings)
    return TuningResult(
        arms=chosen,
        ranking=_shown(ranking, chosen),
        costs=costs,
        acceptance=counts and counts.rates(),
        texts=len(recordings),
        tokens=sum(len(text.tokens) for text in recordings),
        seconds=time.perf_counter() - start,
    )


def _record(
    model: SpeculativeModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    end_tokens: Sequence[int],
) -> list[Recording]:
    """The texts; on a slow model shorter ones, then fewer."""
    end = time.perf_counter() + _RECORD_SECONDS
    limit = text_limit(model.config)
    width = min(WIDTH, model.config["vocab_size"])
    found: list[Recording] = []
    for prompt in prompts:
        left = end - time.perf_counter()
        if left <= 0 and len(found) >= _LEAST_TEXTS:
            break
        most = max_tokens if limit is None else max(1, min(max_tokens, limit - len(prompt)))
        share = left / (len(prompts) - len(found))
        found.append(
            record(
                model,
                prompt,
                most,
                width,
                end_tokens=end_tokens,
                least_tokens=_LEAST_TOKENS,
                seconds=share,
            )
        )
    return found


def _shown(ranking: Sequence[Arm], chosen: Sequence[Arm]) -> tuple[Arm, ...]:
    """The chosen arms and the best of all besides, but once where they draft the same."""
    best = list(chosen)
    different = {(arm.kind, arm.tokens, arm.seconds - arm.host): arm for arm in reversed(ranking)}
    others = [arm for arm in ranking if arm in different.values() and arm not in best]
    shown = best + others[: max(0, _SHOWN - len(best))]
    return tuple(sorted(shown, key=lambda arm: -arm.rate))


def _best_of_kinds(ranking: Sequence[Arm]) -> list[Arm]:
    found: dict[str, Arm] = {}
    for arm in ranking:
        found.setdefault(arm.kind, arm)
    return list(found.values())


def _size(arm: Arm) -> tuple[float, int, int]:
    """How much an arm drafts: on these texts, at most, and beside each other."""
    return round(arm.nodes, 2), len(arm.costs), arm.settings.tree_width


def choose(ranking: Sequence[Arm]) -> tuple[Arm, ...]:
    """The best arm, or a hybrid one near it, and behind it the best of each other kind.

    Args:
        ranking: arms in descending order of tokens per second, plain decoding among them, which
            is chosen where nothing is clearly faster.
    """
    least = _NEAR * ranking[0].rate
    pool = [arm for arm in ranking if arm.kind == "hybrid" and arm.rate >= least] or ranking
    equal = [arm for arm in pool if arm.rate >= _TIE * pool[0].rate]
    best = _best_of_kinds([min(equal, key=_size), *ranking])
    plain = next(arm for arm in best if arm.kind == "plain")
    if best[0].rate < _WORTH * plain.rate:
        best.remove(plain)
        best.insert(0, plain)
    return tuple(best)


# The cache --------------------------------------------------------------------------------------


def cache_file(facts: dict[str, Any]) -> Path:
    """Where the result for ``facts`` is kept."""
    text = json.dumps(facts, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    return user_cache.directory() / "tuning" / f"{name}.json"


def _facts(model: SpeculativeModel, quantization: KVQuantization) -> dict[str, Any]:
    """Everything that a result depends on, as JSON has it."""
    described = device.describe()
    kv_cache = None
    if quantization.bits is not None and quantization.start <= MOST_ROWS:
        kv_cache = [quantization.bits, quantization.group_size, quantization.start]
    facts = {
        "version": _VERSION,
        "base": model.base_fingerprint,
        "weights": _base_files(model),
        "quantization": model.config.get("quantization"),
        "held": model.held and [model.held.form, model.held.row_blocks],
        "adapter": _adapter(model),
        "kv_cache": kv_cache,
        "device": {name: described[name] for name in ("machine", "cpu", "mlx", "backend", "blas")},
    }
    return json.loads(json.dumps(facts))


def _base_files(model: SpeculativeModel) -> list[Any]:
    with suppress(UserError, OSError):  # a model may have been made in memory
        return [_file(path) for path in weight_files(model.path)]
    return []


def _adapter(model: SpeculativeModel) -> Any:
    if model.adapter is None:
        return model.streams and asdict(model.streams.config)
    with suppress(OSError):
        config = (model.adapter.path / ADAPTER_CONFIG).read_bytes()
        path = model.adapter.path
        files = sorted([*path.glob("*.safetensors"), *path.glob(CALIBRATION_FILE)])
        return [hashlib.sha256(config).hexdigest(), *map(_file, files)]
    return model.adapter.config


def _file(path: Path) -> list[Any]:
    status = path.stat()
    return [path.name, status.st_size, status.st_mtime_ns]


def _cached(path: Path, facts: dict[str, Any], model: SpeculativeModel) -> TuningResult | None:
    """A damaged file, or another model's, counts as none."""
    values = user_cache.read(path)
    if values.get("facts") != facts:
        return None
    with suppress(KeyError, TypeError, ValueError, AttributeError, UserError):
        result = TuningResult.from_json(values["result"])
        for arm in result.arms:
            streams = model.streams and model.streams.config
            arm.settings.check(model.config["vocab_size"], streams)
        return result
    return None
