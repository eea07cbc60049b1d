"""Drafters side by side on one model: ``specstream-mlx benchmark rivals``.

Classes of texts (``rival_texts``): Spec-Bench's six tasks, where ``--questions`` names its file;
the typed texts of eight tasks, answered by the base and by the tasks' own adapters; prose; prompts
of any length; and, as a control, texts that nobody can foresee, which are dictated to the base:
there no drafter should cost much.

Methods (``rival_methods``): plain decoding, the streams, every drafter alone, streams, a draft
head or a draft model with lookup; and programs beside this one: ``mlx_lm``, plain and with a draft
model, and llama.cpp on the GGUF file that the base was made of.

Each method is measured in two ways. *By worth* it drafts in every step as much as is worth its
time, at a pace of its own; all methods take turns on every text, and ``speed`` is the median over
texts of (tokens/s behind the first token) / (mlx_lm's on the same text), with the quartiles. *In
trees* of a given number of nodes, the same for all, it shows how often it is right: ``accepted`` is
tokens a call behind the call that ends the prompt, as Spec-Bench counts for Medusa, Hydra and
EAGLE. Only the first depends on the machine; ``--acceptance`` leaves it out.

Every text is compared with plain decoding's, mlx_lm's with the same seed above temperature 0; with
an adapter in shared mode that of the same model at one token a step. What ``suffix`` keeps of
earlier answers is each method's own, of one adapter and temperature; where a run was broken off and
goes on, it knows only the answers since.

``python -m benchmarks.rivals`` is the same command in a clone.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_lm.sample_utils import LogitsProcessor

from specstream_mlx import (
    PromptCache,
    SpeculativeModel,
    UserError,
    bundled,
    demonstration,
    keyed_sampler,
)
from specstream_mlx.drafting.proposals import check_drafters_fit, check_drafters_found
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.loading import load_draft_model, read_config
from specstream_mlx.options.generation import READ_BY

from .earlier_reports import added_to, check_fit, read_reports
from .llama_cpp_reference import LLAMA, llama_ways
from .report import Kept, machine_suffix, write_report, write_text
from .rival_methods import MLX_LM_DRAFTS, PLAIN, Method, methods_of, mounted_heads, sizes_of
from .rival_texts import (
    ADAPTERS,
    CONTEXT,
    SPEC_BENCH,
    TextClass,
    check_contexts,
    classes_of,
    dictation,
    fitting_adapters,
)
from .rivals_page import page
from .rivals_report import DEPTHS, markdown, means_of
from .runner import MLX_LM, Base, Compared, Mounted, Way, interleaved, measure_costs
from .spec_bench import (
    Answered,
    Question,
    accept_lengths,
    answer,
    depends_on,
    first_prompts,
    kept_way,
    mount_lossless,
    stamps,
    write_answers,
)
from .speedup import Subject

_CONTEXT = 200  # tokens, where nothing is said


@dataclass(frozen=True)
class Asked:
    """What competes, and on what.

    Attributes:
        questions: Spec-Bench's; empty: none.
        classes, contexts: see ``rival_texts.classes_of``; without contexts there is one.
        per_class: texts of each class.
        max_tokens: of a text.
        temperatures: 0, and others above it.
        methods: see ``rival_methods.methods_of``.
        drafters: what drafters were given; ``draft_model`` is a directory.
        heads: directories of draft heads, or of other lossless streams.
        gguf: the base's weights for llama.cpp; ``None``: the demonstration model's, if it is meant.
        acceptance: whether nothing is timed.
        tree_sizes: nodes of the trees in which drafts are counted; empty: the usual ones.
        earlier: reports whose classes and temperatures are shown too.
    """

    questions: Sequence[Question]
    classes: str
    contexts: Sequence[int]
    per_class: int
    max_tokens: int
    temperatures: Sequence[float]
    methods: str
    drafters: Drafters
    heads: Sequence[Path] = ()
    gguf: Path | None = None
    acceptance: bool = False
    tree_sizes: Sequence[int] = ()
    earlier: Sequence[Path] = ()


@dataclass(frozen=True)
class Entry:
    """A way that takes part.

    Attributes:
        method: its name.
        nodes: of its trees; ``None``: the rule decides.
        way: the way.
        timed: whether it takes turns with the others.
        same: whether its text must be plain decoding's.
        uses: files that it drafts from, see ``stamps``.
    """

    method: str
    nodes: int | None
    way: Way
    timed: bool
    same: bool = True
    uses: Sequence[tuple[str, float]] = ()

    @property
    def name(self) -> str:
        """The name of method and trees."""
        return self.method if self.nodes is None else f"{self.method}, {self.nodes} nodes"


@dataclass(frozen=True)
class Contest:
    """What all classes have in common.

    Attributes:
        asked: what was asked for.
        methods: of ours.
        drafters: what drafters were given, the draft model loaded.
        heads: a model with each draft head, or with other streams, by name.
        kept: the runs so far.
        outside: llama.cpp's ways.
    """

    asked: Asked
    methods: Sequence[Method]
    drafters: Drafters
    heads: Mapping[str, SpeculativeModel]
    kept: Kept
    outside: Mapping[str, Way]

    def entries(
        self,
        mounted: Mounted,
        adapter: str | None,
        temperature: float,
        sizes: Sequence[int],
        dictated: bool = False,
    ) -> list[Entry]:
        """List what takes part with an adapter at a temperature, mlx_lm first.

        Args:
            mounted: base, and streams or adapter.
            adapter: its name; ``None``: the base's own streams, if any.
            temperature: of the draws.
            sizes: nodes of trees.
            dictated: whether the texts are dictated, see ``rival_texts.dictation``.
        """
        mode, streams = mounted.model.mode, mounted.model.streams is not None
        timed = not self.asked.acceptance

        def sampler_of(prompt: Sequence[int]) -> Any:
            return keyed_sampler(sum(prompt), temperature)

        def processors_of(prompt: Sequence[int]) -> list[LogitsProcessor]:
            return [dictation(mounted, prompt)]

        draws = sampler_of if temperature else None
        dictates = processors_of if dictated else None
        found = [Entry(MLX_LM, None, mounted.mlx_lm(draws, processors_of=dictates), timed)]
        beside = timed and not temperature and adapter is None and not dictated
        if beside and self.drafters.draft_model is not None:
            way = mounted.mlx_lm(draft_model=self.drafters.draft_model.model)
            uses = stamps(self.drafters.draft_model.path)
            found.append(Entry(MLX_LM_DRAFTS, None, way, timed, same=False, uses=uses))
        for method in self._methods(mode):
            ours = mounted
            if method.head is not None:
                ours = replace(mounted, model=self.heads[method.head])
            uses = self._uses(method)
            plain = mode == "shared" and not method.drafts
            if (timed or plain) and method.fits(mode, streams, by_worth=True):
                way = ours.ours(method.by_worth(), draws, processors_of=dictates)
                found.append(Entry(method.name, None, way, timed, uses=uses))
            if method.drafts and method.fits(mode, streams, by_worth=False):
                for size in sizes:
                    way = ours.ours(method.in_trees(size), draws, processors_of=dictates)
                    found.append(Entry(method.name, size, way, False, uses=uses))
        llama = self.outside.items()
        if beside:
            found += [Entry(name, None, way, timed, same=False) for name, way in llama]
        of = (adapter, temperature, dictated)
        return [replace(one, way=self._kept(one, *of)) for one in found]

    def _methods(self, mode: str) -> Sequence[Method]:
        """The methods, and always plain decoding where it is all that texts are compared with."""
        if mode == "lossless" or any(not method.drafts for method in self.methods):
            return self.methods
        return [*methods_of(self.asked.drafters, (), PLAIN), *self.methods]

    def _uses(self, method: Method) -> list[tuple[str, float]]:
        files = [self.drafters.datastore if "rest" in method.drafters.drafters else None]
        if method.drafters.draft_model is not None:
            files.append(method.drafters.draft_model.path)
        if method.head is not None:
            files += [path for path in self.asked.heads if path.resolve().name == method.head]
        return stamps(*files)

    def _kept(self, entry: Entry, adapter: str | None, temperature: float, dictated: bool) -> Way:
        given = self.drafters
        sizes = (given.lookup_size, given.lookup_ngram, given.num_draft_tokens)
        written_by = adapter and stamps(bundled.adapter_path(adapter))
        name = [entry.name, entry.timed, entry.uses, written_by, temperature, dictated]
        return kept_way(self.kept, [*name, *sizes, *given.lookahead_size], entry.way)


# Figures ------------------------------------------------------------------------------------


def rows_of(
    one: TextClass,
    temperature: float,
    entries: Sequence[Entry],
    found: Compared[str],
    mode: str,
) -> list[dict[str, Any]]:
    """The rows of a class, one for each method and size of trees.

    Args:
        one: the class.
        temperature: of the draws.
        entries: what took part.
        found: the runs.
        mode: of what is mounted.
    """
    plain = found.first_runs(PLAIN if mode == "shared" else MLX_LM)
    rows = []
    for entry in entries:
        runs = found.first_runs(entry.name)
        lengths = [n for run in runs for n in accept_lengths(run)[1:]]
        row = {
            "group": one.group,
            "class": one.name,
            "task": one.name,
            "mode": mode,
            "temperature": temperature,
            "method": entry.method,
            "nodes": entry.nodes,
            "items": len(runs),
            "tokens": sum(len(run.tokens) for run in runs),
            "calls": sum(run.target_calls for run in runs),
            "same_output_as_plain": found.same(entry.name, plain),
            "same": entry.same,
            "accepted": statistics.fmean(lengths) if lengths else 1.0,
            "depths": [
                sum(n > depth for n in lengths) / max(1, len(lengths))
                for depth in range(1, DEPTHS + 1)
            ],
        }
        ratios = sorted(found.ratios(entry.name, MLX_LM).values()) if entry.timed else []
        if ratios:
            low, middle, high = _quartiles(ratios)
            rates = [rate for (name, _), rate in found.rates.items() if name == entry.name]
            row |= {"speedup": middle, "low": low, "high": high}
            row["decode_tps"] = statistics.median(rates)
        rows.append(row)
    return rows


def _quartiles(values: Sequence[float]) -> Sequence[float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    return statistics.quantiles(values, n=4, method="inclusive")


def items_of(
    one: TextClass,
    temperature: float,
    entries: Sequence[Entry],
    found: Compared[str],
    numbers: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """Yield every text of a class and method, with its figures."""
    for entry in entries:
        for number, run in zip(numbers, found.first_runs(entry.name), strict=True):
            yield {
                "class": one.name,
                "item": number,
                "temperature": temperature,
                "method": entry.method,
                "nodes": entry.nodes,
                "timed": entry.timed,
                "tokens": len(run.tokens),
                "target_calls": run.target_calls,
                "accept_lengths": accept_lengths(run),
                "seconds": run.seconds if entry.timed else None,
                "decode_tps": run.decode_tps if entry.timed else None,
            }


# The comparison -----------------------------------------------------------------------------


def compare(
    asked: Asked,
    subject: Subject,
    output: Path,
    label: str = "",
    answers: Path | None = None,
    kept: Path | None = None,
) -> tuple[str, list[dict[str, Any]]]:
    """Let all methods write all texts; writes ``rivals-LABEL-MACHINE``.

    It is a JSON file, Markdown, a page with plots, and the texts' figures as JSON lines; they are
    written anew behind every part, so that a run that is broken off leaves a report.

    Args:
        asked: what competes, and on what.
        subject: the base and its lossless streams, if it has any.
        output: the directory of the result files.
        label: part of their names.
        answers: the directory of the answers in Spec-Bench's format, ``METHOD.jsonl``.
        kept: JSONL of runs, see ``report.Kept``.

    Returns:
        the Markdown text and the rows.

    Raises:
        UserError: the streams are shared; model, drafters, heads and texts do not go together; or a
            file cannot be read.
    """
    adapters = fitting_adapters(read_config(subject.directory))
    contexts = asked.contexts or (_CONTEXT,)
    classes = classes_of(asked.classes, contexts, adapters, bool(asked.questions), asked.tree_sizes)
    _check_read(asked, classes, answers)
    check_drafters_found(asked.drafters)
    earlier = read_reports(asked.earlier)
    as_fastest = subject.weights == "auto" and not asked.acceptance
    base = Base(subject.directory, asked.max_tokens, subject.weights, fastest_baseline=as_fastest)
    mounted = mount_lossless(base, subject)
    model, given = mounted.model, asked.drafters
    if given.draft_model is not None:
        draft = load_draft_model(given.draft_model, mounted.tokenizer)
        given = replace(given, draft_model=draft)
    check_drafters_fit(given, model)
    heads, sizes = mounted_heads(model, asked.heads)
    methods = methods_of(given, list(heads), asked.methods)
    _check_used(asked, contexts, methods, classes, mounted)
    outside, notes = _llama(asked, subject, mounted)
    facts = base.facts() | {
        "model": subject.name,
        "max_tokens": asked.max_tokens,
        "per_class": asked.per_class,
    }
    runs = Kept(kept, depends_on(facts, subject))
    contest = Contest(asked, methods, given, heads, runs, outside)
    sizes += sizes_of(model, given, methods)
    check_fit(earlier, facts, sizes)
    rows: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    parts = len(dict.fromkeys(asked.temperatures)) * len(_together(classes))
    done, text = 0, ""

    def write() -> str:
        left = [f"{done} of {parts} parts: the others are still to come."] if done < parts else []
        own = {"facts": facts, "notes": [*notes, *left], "rows": rows, "sizes": sizes}
        values, every = added_to(own, items, earlier)
        values["means"] = means_of(values["rows"])
        name = "-".join(filter(None, ("rivals", label, machine_suffix(facts))))
        write_text(output / f"{name}.jsonl", "".join(json.dumps(item) + "\n" for item in every))
        write_text(output / f"{name}.html", page(values))
        return write_report(output, name, values, markdown(values))

    for adapter in dict.fromkeys(one.adapter for one in classes):
        own = [one for one in classes if one.adapter == adapter]
        if adapter is not None:
            mounted = base.mount(bundled.adapter_path(adapter))
        # Anew for each: heads do not know of the LoRA under them, so neither do the rows' owners.
        mounted = replace(mounted, read=PromptCache() if asked.acceptance else None)
        if not asked.acceptance:
            _warm_up(contest, mounted, own)
        nodes = sorted({size for one in own for size in one.nodes})
        for temperature in dict.fromkeys(asked.temperatures):
            every = {
                dictated: contest.entries(mounted, adapter, temperature, nodes, dictated)
                for dictated in {one.dictated for one in own}
            }
            for some in _together(own):
                sizes_here = (None, *some[0].nodes)
                entries = [one for one in every[some[0].dictated] if one.nodes in sizes_here]
                if some[0].prompts is None:
                    answered = _answered(contest, mounted, some, entries, notes)
                    if answers is not None:
                        at = f"temperature-{temperature:g}" if temperature else ""
                        names = [entry.name for entry in entries]
                        write_answers(answers / at, answered, names, subject.name)
                    found = [
                        (one, part.found, [answered.questions[i].number for i in part.of])
                        for one in some
                        if (part := answered.of_task(one.task)).of
                    ]
                else:
                    [one] = some
                    compared = _written(contest, mounted, one, entries)
                    found = [(one, compared, list(range(len(compared.runs[MLX_LM]))))]
                for one, compared, numbers in found:
                    rows += rows_of(one, temperature, entries, compared, mounted.model.mode)
                    items += items_of(one, temperature, entries, compared, numbers)
                done += 1
                text = write()
    return text, rows


def _check_read(asked: Asked, classes: Sequence[TextClass], answers: Path | None) -> None:
    """Check before anything is loaded that somebody reads what was given.

    Raises:
        UserError: names the first option that nobody reads; or a method is not known, lacks what it
            needs, or there is no GGUF file.
    """
    groups = {one.group for one in classes}
    names = [path.resolve().name for path in asked.heads]
    methods = methods_of(asked.drafters, names, asked.methods)
    drafters = {name for method in methods for name in method.drafters.drafters}
    plain = 0 in asked.temperatures and any(one.adapter is None for one in classes)
    outside = plain and not asked.acceptance  # where other programs take part
    if asked.gguf is not None:
        if asked.acceptance:
            raise UserError("--gguf and --acceptance were both given, expected at most one")
        if not outside:
            raise UserError("--gguf was given, expected with temperature 0 and texts of the base")
        if not asked.gguf.is_file():
            raise UserError(f"--gguf {asked.gguf} is no file, expected a model for llama.cpp")
    if asked.tree_sizes and not any(method.drafts for method in methods):
        raise UserError("--tree-size was given, expected with a method that drafts")
    for field, drafter in READ_BY.items():
        given = getattr(asked.drafters, field) != getattr(Drafters(), field)
        if given and drafter not in drafters and not (field == "draft_model" and outside):
            flag = "--" + field.replace("_", "-")
            raise UserError(f"{flag} was given, expected with the method {drafter}")
    for name, given, group in (
        ("--questions", bool(asked.questions), SPEC_BENCH),
        ("--contexts", bool(asked.contexts), CONTEXT),
        ("--answers", answers is not None, SPEC_BENCH),
    ):
        if given and group not in groups:
            raise UserError(f"{name} was given, expected with the class {group} of texts")


def _check_used(
    asked: Asked,
    contexts: Sequence[int],
    methods: Sequence[Method],
    classes: Sequence[TextClass],
    mounted: Mounted,
) -> None:
    """Check before anything runs that all that was asked for can take part.

    Raises:
        UserError: a method that was named needs streams that no model here has, or a prompt is too
            long.
    """
    groups = {one.group for one in classes}
    if asked.methods and mounted.model.streams is None and ADAPTERS not in groups:
        for method in methods:
            if method.guesses and method.head is None:
                raise UserError(
                    f"method {method.name!r} was asked for and {mounted.model.path} has no "
                    "streams, expected --adapter-path with some or other methods"
                )
    if CONTEXT in groups:
        check_contexts(contexts, mounted)


def _together(classes: Sequence[TextClass]) -> list[list[TextClass]]:
    """Part classes by what is measured at once: Spec-Bench's tasks, and each of the others."""
    questions = [one for one in classes if one.group == SPEC_BENCH]
    return [*filter(None, [questions]), *([one] for one in classes if one.group != SPEC_BENCH)]


def _warm_up(contest: Contest, mounted: Mounted, classes: Sequence[TextClass]) -> None:
    """Learn the costs of steps, and run every timed way once."""
    asked, one = contest.asked, classes[0]
    if one.prompts is None:
        prompts = first_prompts(mounted, asked.questions)
    else:
        prompts = one.prompts(mounted, asked.per_class)
    shortest = sorted(prompts, key=len)[:8]
    measure_costs(mounted, shortest)
    if mounted.model.mode == "lossless":
        for model in contest.heads.values():
            measure_costs(replace(mounted, model=model), shortest)
    unkept = replace(contest, kept=Kept(None, ()))
    for entry in unkept.entries(mounted, classes[0].adapter, 0.0, ()):
        entry.way(shortest[0])


def _answered(
    contest: Contest,
    mounted: Mounted,
    classes: Sequence[TextClass],
    entries: Sequence[Entry],
    notes: list[str],
) -> Answered:
    """Answer Spec-Bench's questions of some tasks."""
    tasks = {one.task for one in classes}
    chosen = [q for q in contest.asked.questions if q.task in tasks]
    first_prompts(mounted, chosen)
    ways = {entry.name: entry.way for entry in entries}
    timed = [entry.name for entry in entries if entry.timed]
    answered = answer(mounted, chosen, ways, timed)
    if answered.left_out:
        said = f"{answered.left_out} turns are left out, longer than the model's context."
        if said not in notes:
            notes.append(said)
    return answered


def _written(
    contest: Contest, mounted: Mounted, one: TextClass, entries: Sequence[Entry]
) -> Compared[str]:
    """Write the texts of a class; those that are not timed follow the others."""
    assert one.prompts is not None  # as of all but Spec-Bench's questions
    prompts = one.prompts(mounted, contest.asked.per_class)
    parts = [{e.name: e.way for e in entries if e.timed == timed} for timed in (True, False)]
    first, second = (interleaved(prompts, part, warm_up=False) for part in parts)
    return Compared(first.runs | second.runs, first.rates)


def _llama(asked: Asked, subject: Subject, mounted: Mounted) -> tuple[dict[str, Way], list[str]]:
    """llama.cpp's ways; and a note where there are none."""
    file = asked.gguf
    if file is None and subject.directory == demonstration.directory():
        file = demonstration.package_file()
    if file is None or asked.acceptance:
        return {}, [] if asked.acceptance else [f"{LLAMA}: no GGUF file was given."]
    context = mounted.model.config["max_position_embeddings"]
    ends = mounted.tokenizer.eos_token_ids
    ways = llama_ways(file, context, asked.max_tokens, ends)
    return ({}, [f"{LLAMA}: {ways}."]) if isinstance(ways, str) else (ways, [])


if __name__ == "__main__":
    from specstream_mlx.cli import main

    sys.argv[1:1] = ["benchmark", "rivals"]
    main()
