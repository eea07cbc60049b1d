"""Methods of drafting side by side on one model: ``python -m benchmarks.rivals``, in a clone.

Classes of texts (``texts``): Spec-Bench's six tasks, where ``--questions`` names its file; the
typed texts of eight tasks, answered by the base and by the tasks' own adapters; prose; prompts of
any length; and, as a control, texts that nobody can foresee, which are dictated to the base.

Methods (``methods``): plain decoding, the streams, every proposer alone, streams, a draft head or a
draft model with lookup; and programs beside this one: ``mlx_lm``, plain and with a draft model, and
llama.cpp on the GGUF file that the base was made of.

Each method is measured in two ways. *By worth* it drafts in every step as much as is worth its
time, at a pace of its own, and all take turns on every text. *In trees* of a given number of nodes,
the same for all, it shows how often it is right: ``accepted`` is tokens a call, the call that ends
the prompt left out, as Spec-Bench counts. Only the first depends on the machine; ``--acceptance``
leaves it out. Every text is compared with plain decoding's, mlx_lm's with the same seed above
temperature 0; with an adapter in shared mode that of the same model at one token a step.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_lm.sample_utils import LogitsProcessor

from specstream_mlx import PromptCache, UserError, bundled, demonstration, keyed_sampler
from specstream_mlx.errors import MAX_TREE_SIZE, is_integer, is_number
from specstream_mlx.loading import load_draft_model, model_directory, read_config
from specstream_mlx.options import (
    FLAG,
    PART_OF_NAME,
    PATH,
    TEXT,
    Kind,
    choice,
    each,
    integer,
    most_tokens,
    option,
)

from ..llama_cpp_reference import llama_ways
from ..report import OUTPUT, Kept, machine_suffix, write_report
from ..runner import MLX_LM, Base, Compared, Mounted, Run, Way, interleaved, measure_costs
from ..spec_bench import (
    accept_lengths,
    answer,
    depends_on,
    first_prompts,
    kept_way,
    mount_lossless,
    read_questions,
    spread,
    stamps,
)
from ..speedup import Subject, check_texts
from .methods import MLX_LM_DRAFTS, PLAIN, Method, Sources, methods_of, mounted_heads, parameters_of
from .report import markdown
from .rest import open_datastore
from .suffix import Answers
from .texts import TextClass, check_contexts, classes_of, dictation, fitting_adapters

_DEPTHS = 8  # of drafted tokens, whose shares are reported


def _listed(words: str, fits: Any, read: Any) -> Kind:
    """Values with commas between them."""
    return replace(each(words, fits), read=lambda text: tuple(map(read, text.split(","))))


@dataclass(frozen=True)
class Asked:
    """What competes, and on what."""

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
    weights: str = option(
        "auto", choice("auto", "packed", "expanded"), "How quantized weights are held."
    )
    classes: str = option(
        "",
        TEXT,
        "Only these: spec-bench, typed (texts of eight tasks, by the base), adapters (the same by "
        "the tasks' adapters), prose, unpredictable, context; or one task, such as qa or sql.",
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
    contexts: tuple[int, ...] = option(
        (200,),
        _listed("integers of at least 100", lambda value: is_integer(value) and value >= 100, int),
        "Tokens of the prompts of context, such as 200,2000.",
        metavar="N,N",
    )
    tree_size: tuple[int, ...] | None = option(
        None,
        _listed(
            f"integers from 1 to {MAX_TREE_SIZE}",
            lambda value: is_integer(value) and 1 <= value <= MAX_TREE_SIZE,
            int,
        ),
        "Nodes of the trees in which drafts are counted, such as 8,60. Default: 8, of sql 4, 7, 8 "
        "and 9, and none of prompts of 1,000 tokens or more.",
        metavar="N,N",
    )
    gguf: Path | None = option(
        None, PATH, "The base's weights for llama.cpp. Default: those of smollm2."
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
    name: str = option(
        "", PART_OF_NAME, "Of the result files: rivals-NAME-MACHINE.", metavar="NAME"
    )


@dataclass(frozen=True)
class Entry:
    """A way that takes part.

    Attributes:
        method: its name.
        nodes: of its trees; ``None``: the rule decides.
        way: the way.
        timed: whether it takes turns with the others.
        same: whether its text must be plain decoding's.
    """

    method: str
    nodes: int | None
    way: Way
    timed: bool
    same: bool = True

    @property
    def name(self) -> str:
        """The name of method and trees."""
        return self.method if self.nodes is None else f"{self.method}, {self.nodes} nodes"


@dataclass(frozen=True)
class Contest:
    """What all classes have in common: options, methods, runs so far, llama.cpp's ways."""

    asked: Asked
    methods: Sequence[Method]
    sources: Sources
    kept: Kept
    outside: Mapping[str, Way]
    answers: dict[tuple[Any, ...], Answers] = field(default_factory=dict)

    def answers_of(self, *of: Any) -> Answers:
        """The earlier answers of a method, of one adapter and temperature."""
        return self.answers.setdefault(of, Answers())

    def entries(self, mounted: Mounted, one: TextClass, temperature: float) -> list[Entry]:
        """List what takes part in a class at a temperature, mlx_lm first."""
        mode, streams = mounted.model.mode, mounted.model.streams is not None
        timed, draft = not self.asked.acceptance, self.sources.draft_model
        of = (one.adapter, temperature, one.dictated)

        def sampler_of(prompt: Sequence[int]) -> Any:
            return keyed_sampler(sum(prompt), temperature)

        def processors_of(prompt: Sequence[int]) -> list[LogitsProcessor]:
            return [dictation(mounted, prompt)]

        draws = sampler_of if temperature else None
        dictates = processors_of if one.dictated else None
        found = [Entry(MLX_LM, None, mounted.mlx_lm(draws, processors_of=dictates), timed)]
        beside = timed and not temperature and one.adapter is None and not one.dictated
        if beside and draft is not None:
            way = mounted.mlx_lm(draft_model=draft.model)
            found.append(Entry(MLX_LM_DRAFTS, None, way, timed, same=False))
        methods = list(self.methods)
        if mode == "shared" and all(method.drafts for method in methods):
            methods.insert(0, Method(PLAIN, self.sources))  # what texts are compared with
        for method in methods:
            ours = mounted
            if method.head is not None:
                ours = replace(mounted, model=(self.sources.heads or {})[method.head])
            plain = mode == "shared" and not method.drafts
            if (timed or plain) and method.fits(mode, streams, by_worth=True):
                how = method.by_worth(self.answers_of(method.name, None, *of))
                way = ours.ours(how, draws, processors_of=dictates)
                found.append(Entry(method.name, None, way, timed))
            if method.drafts and method.fits(mode, streams, by_worth=False):
                for size in one.nodes:
                    trees = method.in_trees(size, self.answers_of(method.name, size, *of))
                    way = ours.ours(trees, draws, processors_of=dictates)
                    found.append(Entry(method.name, size, way, False))
        if beside:
            found += [Entry(name, None, w, timed, same=False) for name, w in self.outside.items()]
        adapter = one.adapter and stamps(bundled.adapter_path(one.adapter))
        facts = [adapter, temperature, one.dictated]
        return [
            replace(entry, way=kept_way(self.kept, [entry.name, entry.timed, *facts], entry.way))
            for entry in found
        ]


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
        row: dict[str, Any] = {
            "group": one.group,
            "class": one.name,
            "task": one.name,
            "writer": one.adapter or "base",
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
                for depth in range(1, _DEPTHS + 1)
            ],
        }
        ratios = sorted(found.ratios(entry.name, MLX_LM).values()) if entry.timed else []
        if ratios:
            row |= {"speedup": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
            rates = [rate for (name, _), rate in found.rates.items() if name == entry.name]
            row["decode_tps"] = statistics.median(rates)
        rows.append(row)
    return rows


def compare(asked: Asked, output: Path) -> tuple[str, list[dict[str, Any]]]:
    """Let all methods write all texts; writes ``rivals-NAME-MACHINE`` after every class.

    Returns:
        the Markdown text and the rows.

    Raises:
        UserError: the streams are shared; model, sources and texts do not go together; or a file
            cannot be read.
    """
    directory = model_directory(demonstration.model_path(asked.model, demonstration.silent))
    config = read_config(directory)
    streams = asked.adapter_path or bundled.streams_for(config)
    subject = Subject(directory, directory.name, streams, weights=asked.weights)
    if asked.datastore is not None and open_datastore(asked.datastore).most >= config["vocab_size"]:
        raise UserError(f"the datastore {asked.datastore} has tokens that the model has not")
    questions = []
    if asked.questions is not None:
        questions = spread(read_questions(asked.questions), asked.per_category)
    classes = classes_of(
        asked.classes,
        asked.contexts,
        fitting_adapters(config),
        bool(questions),
        asked.tree_size or (),
    )
    as_fastest = asked.weights == "auto" and not asked.acceptance
    base = Base(directory, asked.max_tokens, asked.weights, fastest_baseline=as_fastest)
    mounted = mount_lossless(base, subject)
    if any(one.group == "context" for one in classes):
        check_contexts(asked.contexts, mounted)
    draft = None
    if asked.draft_model is not None:
        draft = load_draft_model(asked.draft_model, mounted.tokenizer)
    heads = mounted_heads(mounted.model, [Path(path) for path in asked.draft_head or ()])
    sources = Sources(asked.datastore, draft, heads)
    methods = methods_of(sources, asked.methods)
    parameters = {method.name: parameters_of(method, mounted.model) for method in methods}
    outside, notes = _llama(asked, subject, mounted)
    facts = base.facts() | {
        "model": demonstration.NAME if demonstration.is_meant(asked.model) else subject.name,
        "max_tokens": asked.max_tokens,
        "per_class": asked.per_category,
    }
    files = stamps(
        *(asked.draft_head or ()), asked.datastore, None if draft is None else draft.path
    )
    kept = Kept(asked.runs, [*depends_on(facts, subject), files])
    contest = Contest(asked, methods, sources, kept, outside)
    rows: list[dict[str, Any]] = []
    text, adapter = "", None
    for some in _together(classes):
        first = some[0]
        if first.adapter != adapter:
            adapter = first.adapter
            mounted = base.mount(None if adapter is None else bundled.adapter_path(adapter))
            for other in heads.values():  # they guess above the same LoRA
                other.model = mounted.model.model
        # Rows that were read are one model's alone: heads do not know of the LoRA under them.
        mounted = replace(mounted, read=PromptCache() if asked.acceptance else None)
        own = [one for one in questions if one.task in {each.task for each in some}]
        if first.prompts is not None:
            prompts = first.prompts(mounted, asked.per_category)
        else:
            prompts = first_prompts(mounted, own)
        if not asked.acceptance:
            _warm_up(contest, mounted, first, prompts)
        for temperature in dict.fromkeys(asked.temperature):
            entries = contest.entries(mounted, first, temperature)
            timed = [entry.name for entry in entries if entry.timed]
            ways = {entry.name: entry.way for entry in entries}
            if first.prompts is not None:
                found = {first: _written(prompts, ways, timed)}
            else:
                answered = answer(mounted, own, ways, timed)
                found = {one: answered.of_task(one.task).found for one in some}
            for one, part in found.items():
                if part.runs[MLX_LM]:
                    rows += rows_of(one, temperature, entries, part, mounted.model.mode)
            values = {"facts": facts, "notes": notes, "rows": rows, "parameters": parameters}
            name = "-".join(filter(None, ("rivals", asked.name, machine_suffix(facts))))
            text = write_report(output, name, values, markdown(values))
    return text, rows


def _together(classes: Sequence[TextClass]) -> list[list[TextClass]]:
    """Part classes by what is measured at once: Spec-Bench's tasks, and each of the others."""
    questions = [one for one in classes if one.prompts is None]
    return [*filter(None, [questions]), *([one] for one in classes if one.prompts is not None)]


def _written(
    prompts: Sequence[Sequence[int]], ways: Mapping[str, Way], timed: Sequence[str]
) -> Compared[str]:
    """Write the texts of a class; those that are not timed follow the others."""
    runs: dict[str, list[list[Run]]] = {}
    rates: dict[tuple[str, int], float] = {}
    for is_timed in (True, False):
        some = {name: way for name, way in ways.items() if (name in timed) == is_timed}
        if some:
            found = interleaved(prompts, some, warm_up=False)
            runs, rates = runs | found.runs, rates | (found.rates if is_timed else {})
    return Compared(runs, rates)


def _warm_up(
    contest: Contest, mounted: Mounted, one: TextClass, prompts: Sequence[Sequence[int]]
) -> None:
    """Learn the costs of steps, and run every timed way once."""
    shortest = sorted(prompts, key=len)[:8]
    measure_costs(mounted, shortest)
    if mounted.model.mode == "lossless":
        for model in (contest.sources.heads or {}).values():
            measure_costs(replace(mounted, model=model), shortest)
    unkept = replace(contest, kept=Kept(None, ()))
    for entry in unkept.entries(mounted, replace(one, nodes=()), 0.0):
        entry.way(shortest[0])


def _llama(asked: Asked, subject: Subject, mounted: Mounted) -> tuple[dict[str, Way], list[str]]:
    """llama.cpp's ways; and a note where there are none."""
    file = asked.gguf
    if file is None and subject.directory == demonstration.directory():
        file = demonstration.package_file()
    if file is None or asked.acceptance:
        return {}, []
    context = mounted.model.config["max_position_embeddings"]
    ends = mounted.tokenizer.eos_token_ids
    ways = llama_ways(file, context, asked.max_tokens, ends)
    return ({}, [f"llama.cpp: {ways}."]) if isinstance(ways, str) else (ways, [])


def main(*, asked: Asked, output: Path = OUTPUT) -> None:
    """Compare methods of drafting, in speed and in how often they are right."""
    text, rows = compare(asked, output)
    print(text)
    check_texts([row for row in rows if row["same"]])
