"""Methods of drafting side by side on one model: ``python -m benchmarks.rivals``, in a clone.

Classes of texts (``texts``): Spec-Bench's six tasks, where ``--questions`` names its file; the
typed texts of eight tasks, answered by the base and by the tasks' own adapters; prose; and, as a
control, texts that nobody can foresee, which are dictated to the base.

Methods (``methods``): plain decoding, the streams, every proposer alone, streams, a draft head or a
draft model with lookup; and other programs: ``mlx_lm``, plain and with a draft model, and llama.cpp
on the GGUF file that the demonstration model was made of.

Each method is measured in two ways. *By worth* it drafts in every step as much as is worth its
time, and all take turns on every text. *In trees* of a given number of nodes, the same for all, it
shows how often it is right: ``accepted`` is tokens a call, the call that ends the prompt left out,
as Spec-Bench counts. Only the first depends on the machine; ``--acceptance`` leaves it out. Every
text is compared with mlx_lm's plain decoding, above temperature 0 with the same seed.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specstream_mlx import PromptCache, UserError, bundled, demonstration, keyed_sampler
from specstream_mlx.errors import MAX_TREE_SIZE, is_integer, is_number
from specstream_mlx.loading.load import load_draft_model
from specstream_mlx.loading.model_paths import model_directory, read_config
from specstream_mlx.options import FLAG, PATH, TEXT, Kind, each, integer, most_tokens, option

from ..llama_cpp_reference import llama_ways
from ..report import OUTPUT, ResultStore, machine_suffix, write_report
from ..runner import MLX_LM, Base, Compared, Mounted, Way, in_turn, measure_costs
from ..spec_bench import (
    Question,
    answer,
    depends_on,
    first_prompts,
    mount_lossless,
    read_questions,
    spread,
    stamps,
    stored_way,
)
from ..speedup import Subject, check_texts
from .methods import MLX_LM_DRAFTS, PLAIN, Method, Sources, methods_of, mounted_heads
from .report import markdown
from .rest import open_datastore
from .suffix import Answers
from .texts import TextClass, classes_of, dictation, fitting_adapters


def _listed(words: str, fits: Any, read: Any) -> Kind:
    return replace(each(words, fits), read=lambda text: tuple(map(read, text.split(","))))


@dataclass(frozen=True)
class Options:
    model: str | None = option(None, TEXT, "Model in MLX format. Default: smollm2.")
    adapter_path: Path | None = option(
        None, PATH, "Its lossless streams. Default: the bundled ones, where they fit."
    )
    draft_head: list[Path] | None = option(
        None,
        each("directories", lambda value: isinstance(value, str | Path)),
        "A draft head, or other lossless streams, which compete; may be given several times.",
        metavar="DIR",
    )
    draft_model: str | None = option(None, TEXT, "A smaller model, which competes.")
    datastore: Path | None = option(
        None, PATH, "A datastore of rivals.rest, from which rest drafts."
    )
    classes: str = option(
        "",
        TEXT,
        "Only these: spec-bench, typed (texts of eight tasks, by the base), adapters (the same by "
        "the tasks' adapters), prose, unpredictable; or one task, such as qa or sql.",
        metavar="NAME,NAME",
    )
    methods: str = option(
        "",
        TEXT,
        "Only these: plain, streams, lookup, pld, suffix, lookahead, rest, draft-model, the name "
        "of a directory of --draft-head, or several with ' + ' between them. Default: each alone, "
        "streams, heads and a draft model with lookup too.",
        metavar="NAME,NAME",
    )
    questions: Path | None = option(None, PATH, "Spec-Bench's question.jsonl.", metavar="FILE")
    per_category: int = option(1, integer(1), "Texts of each class.")
    max_tokens: int = most_tokens(64, least=2)
    temperature: tuple[float, ...] = option(
        (0.0,),
        _listed("numbers of at least 0", lambda value: is_number(value) and value >= 0, float),
        "Temperatures, such as 0,1.",
        metavar="T,T",
    )
    tree_size: tuple[int, ...] = option(
        (8,),
        _listed(
            f"integers from 1 to {MAX_TREE_SIZE}",
            lambda value: is_integer(value) and 1 <= value <= MAX_TREE_SIZE,
            int,
        ),
        "Nodes of the trees in which drafts are counted, such as 8,60.",
        metavar="N,N",
    )
    acceptance: bool = option(
        False, FLAG, "Time nothing: how often drafts are right alone, also on a busy machine."
    )
    runs: Path | None = option(
        None,
        PATH,
        "Keep every run in this file; those that are there are not made again.",
        metavar="FILE",
    )
    name: str = option("", TEXT, "Of the result files: rivals-NAME-MACHINE.", metavar="NAME")


@dataclass(frozen=True)
class Entry:
    method: str
    nodes: int | None  # of its trees; ``None``: the rule decides
    way: Way
    timed: bool  # whether it takes turns with the others
    same: bool = True  # whether its text must be plain decoding's

    @property
    def name(self) -> str:
        return self.method if self.nodes is None else f"{self.method}, {self.nodes} nodes"


@dataclass(frozen=True)
class Contest:
    """What all classes have in common: options, methods, runs so far, other programs' ways."""

    options: Options
    methods: Sequence[Method]
    sources: Sources
    store: ResultStore
    outside: Mapping[str, Way]
    answers: dict[tuple[Any, ...], Answers] = field(default_factory=dict)

    def entries(self, mounted: Mounted, cls: TextClass, temperature: float) -> list[Entry]:
        """List what takes part in a class at a temperature, mlx_lm first."""
        how: dict[str, Any] = {}
        if temperature:
            how["sampler_of"] = lambda prompt: keyed_sampler(sum(prompt), temperature)
        if cls.dictated:
            how["processors_of"] = lambda prompt: [dictation(mounted, prompt)]
        timed, draft = not self.options.acceptance, self.sources.draft_model
        entries = [Entry(MLX_LM, None, mounted.mlx_lm(**how), timed)]
        others = timed and not temperature and cls.adapter is None and not cls.dictated
        if others and draft is not None:
            way = mounted.mlx_lm(draft_model=draft.model)
            entries.append(Entry(MLX_LM_DRAFTS, None, way, timed, same=False))
        for method in self.methods:
            if method.guesses and method.head is None and mounted.model.streams is None:
                continue
            ours = replace(mounted, model=method.head or mounted.model)
            for nodes in (None, *self.options.tree_size):
                answers = self.answers.setdefault(
                    (method.name, nodes, cls.adapter, temperature, cls.dictated), Answers()
                )
                if nodes is None and timed and method.can_be_timed:
                    way = ours.ours(method.by_worth(answers), **how)
                    entries.append(Entry(method.name, None, way, timed))
                elif nodes is not None and method.name != PLAIN:
                    way = ours.ours(method.in_trees(nodes, answers), **how)
                    entries.append(Entry(method.name, nodes, way, False))
        if others:
            entries += [Entry(name, None, w, timed, same=False) for name, w in self.outside.items()]
        facts = [cls.adapter and stamps(bundled.adapter_path(cls.adapter)), temperature]
        return [
            replace(e, way=stored_way(self.store, [e.name, e.timed, *facts, cls.dictated], e.way))
            for e in entries
        ]

    def warm_up(self, mounted: Mounted, cls: TextClass, prompts: Sequence[Sequence[int]]) -> None:
        """Learn the costs of steps, and run every timed way once."""
        shortest = sorted(prompts, key=len)[:8]
        for model in (mounted.model, *(self.sources.heads or {}).values()):
            measure_costs(replace(mounted, model=model), shortest)
        for entry in replace(self, store=ResultStore(None, ())).entries(mounted, cls, 0.0):
            if entry.timed:
                entry.way(shortest[0])


def rows_of(
    cls: TextClass, temperature: float, entries: Sequence[Entry], part: Compared[str]
) -> list[dict[str, Any]]:
    """The rows of a class, one for each method and size of trees."""
    plain, rows = part.first_runs(MLX_LM), []
    for entry in entries:
        runs = part.first_runs(entry.name)
        lengths = [n for run in runs for n in run.lengths[1:]]
        row: dict[str, Any] = {
            "group": cls.group,
            "class": cls.name,
            "task": cls.name,
            "writer": cls.adapter or "base",
            "temperature": temperature,
            "method": entry.method,
            "nodes": entry.nodes,
            "same": entry.same,
            "accepted": statistics.fmean(lengths) if lengths else 1.0,
            **part.counts(entry.name, plain),
        }
        ratios = sorted(part.ratios(entry.name, MLX_LM).values()) if entry.timed else []
        if ratios:
            row |= {"speedup": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
            rates = [rate for (name, _), rate in part.rates.items() if name == entry.name]
            row["decode_tps"] = statistics.median(rates)
        rows.append(row)
    return rows


def compare(options: Options, output: Path) -> tuple[str, list[dict[str, Any]]]:
    """Let all methods write all texts; writes and returns ``rivals-NAME-MACHINE`` and its rows."""
    directory = model_directory(demonstration.model_path(options.model, demonstration.silent))
    config = read_config(directory)
    subject = Subject(
        directory, directory.name, options.adapter_path or bundled.streams_for(config)
    )
    if (
        options.datastore is not None
        and open_datastore(options.datastore).most >= config["vocab_size"]
    ):
        raise UserError(f"the datastore {options.datastore} has tokens that the model has not")
    questions: list[Question] = []
    if options.questions is not None:
        questions = spread(read_questions(options.questions), options.per_category)
    classes = classes_of(options.classes, fitting_adapters(config), bool(questions))
    base = Base(directory, options.max_tokens, fastest_baseline=not options.acceptance)
    mounted = mount_lossless(base, subject)
    draft = None
    if options.draft_model is not None:
        draft = load_draft_model(options.draft_model, mounted.tokenizer)
    heads = mounted_heads(mounted.model, [Path(path) for path in options.draft_head or ()])
    sources = Sources(options.datastore, draft, heads)
    methods = methods_of(sources, options.methods)
    outside, notes = _llama(options, subject, mounted)
    facts = base.facts() | {
        "model": demonstration.NAME if demonstration.is_meant(options.model) else subject.name,
        "max_tokens": options.max_tokens,
        "per_class": options.per_category,
    }
    files = stamps(
        *(options.draft_head or ()), options.datastore, None if draft is None else draft.path
    )
    store = ResultStore(options.runs, [*depends_on(facts, subject), files])
    contest = Contest(options, methods, sources, store, outside)
    rows: list[dict[str, Any]] = []
    values = {
        "facts": facts,
        "notes": notes,
        "rows": rows,
        "parameters": {method.name: method.parameters(mounted.model) for method in methods},
    }
    name = "-".join(filter(None, ("rivals", options.name, machine_suffix(facts))))
    text, adapter = "", None
    together = [[cls for cls in classes if cls.prompts is None]]  # Spec-Bench's tasks, at once
    together += [[cls] for cls in classes if cls.prompts is not None]
    for some in filter(None, together):
        first = some[0]
        if first.adapter != adapter:
            adapter = first.adapter
            mounted = base.mount(None if adapter is None else bundled.adapter_path(adapter))
            for other in heads.values():  # they guess above the same LoRA
                other.model = mounted.model.model
        # Rows that were read are one model's alone: heads do not know of the LoRA under them.
        mounted = replace(mounted, read=PromptCache() if options.acceptance else None)
        chosen = [cls for cls in questions if cls.task in {each.task for each in some}]
        if first.prompts is not None:
            prompts = first.prompts(mounted, options.per_category)
        else:
            prompts = first_prompts(mounted, chosen)
        if not options.acceptance:
            contest.warm_up(mounted, first, prompts)
        for temperature in dict.fromkeys(options.temperature):
            entries = contest.entries(mounted, first, temperature)
            timed = [entry.name for entry in entries if entry.timed]
            ways = {entry.name: entry.way for entry in entries}
            if first.prompts is None:
                answered = answer(mounted, chosen, ways, timed)
                parts = {cls: answered.of_task(cls.task).compared for cls in some}
            else:
                parts = {first: in_turn(prompts, ways, timed)}
            for cls, part in parts.items():
                if part.runs[MLX_LM]:
                    rows += rows_of(cls, temperature, entries, part)
            text = write_report(output, name, values, markdown(values))
    return text, rows


def _llama(
    options: Options, subject: Subject, mounted: Mounted
) -> tuple[dict[str, Way], list[str]]:
    """llama.cpp's ways; and a note where there are none."""
    file = demonstration.package_file()
    if options.acceptance or file is None or subject.directory != demonstration.directory():
        return {}, []
    context, ends = mounted.model.config["max_position_embeddings"], mounted.tokenizer.eos_token_ids
    ways = llama_ways(file, context, options.max_tokens, ends)
    return ({}, [f"llama.cpp: {ways}."]) if isinstance(ways, str) else (ways, [])


def main(*, options: Options, output: Path = OUTPUT) -> None:
    """Compare methods of drafting, in speed and in how often they are right."""
    text, rows = compare(options, output)
    print(text)
    check_texts([row for row in rows if row["same"]])
