"""Prompts that people wrote, from clones of the public data sets in ``text/prompt_sources.json``.

    python -m specstream_mlx.convert.demo_model.prompt_sources --clones DIR --output DIR

``DIR/NAME`` is a clone of ``owner/NAME`` at the table's commit. ``train.jsonl`` and ``valid.jsonl``
hold a line of JSON each: ``prompt`` and ``source``, or ``turns``, all that the user says in a
conversation, and ``source``.
"""

import bz2
import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specstream_mlx.errors import UserError
from specstream_mlx.files import read_json_lines, read_text, reason, staged_file
from specstream_mlx.options import PATH, each, option
from specstream_mlx.terminal.commands import program

from .mixture import TEXT
from .tasks import word_runs

MOST_CHARACTERS = 5200
SOURCES: dict[str, dict[str, Any]] = json.loads((TEXT / "prompt_sources.json").read_text("utf-8"))
"""By name; ``weight`` is the most lines to train on."""
WORDINGS: dict[str, list[str]] = json.loads((TEXT / "wordings.json").read_text("utf-8"))
LANGUAGES = {
    "German": ("deu", 12), "French": ("fra", 2), "Spanish": ("spa", 2), "Italian": ("ita", 1.5),
    "Portuguese": ("por", 1), "Dutch": ("nld", 1), "Polish": ("pol", 0.5), "Swedish": ("swe", 0.5),
    "Danish": ("dan", 0.5), "Romanian": ("ron", 0.5), "Czech": ("ces", 0.5),
    "Russian": ("rus", 0.5),
}  # fmt: skip
"""Code and weight."""
_TO_ENGLISH, _SEVERAL, _THIRD_TURN = 0.8, 0.5, 0.35
_FILES = each("files", lambda value: isinstance(value, str | Path))

Lines = Iterator[tuple[object, str | list[str]]]
"""Prompts and conversations, each with the document, table or dialogue that it is from."""


def _worded(rng: random.Random, kind: str, **values: str) -> str:
    return rng.choice(WORDINGS[kind]).format(**values)


def _followed(rng: random.Random, first: str) -> list[str]:
    count = 2 if rng.random() < _THIRD_TURN else 1
    return [first, *rng.sample(WORDINGS["follow_ups"], count)]


def _ntrex(clone: Path, rng: random.Random) -> Lines:
    news = clone / "NTREX-128"
    documents = read_text(clone / "DOCUMENT_IDS.tsv").splitlines()
    english = read_text(news / "newstest2019-src.eng.txt").splitlines()
    foreign = {
        language: read_text(news / f"newstest2019-ref.{code}.txt").splitlines()
        for language, (code, _) in LANGUAGES.items()
    }
    weights = [weight for _, weight in LANGUAGES.values()]
    for at, document in enumerate(documents):
        for language in rng.choices(list(LANGUAGES), weights, k=2):
            end = at + rng.choices((1, 2, 3), (8, 1.5, 0.5))[0]
            end = min(end, at + documents[at:end].count(document))
            source, target, texts = language, "English", foreign[language]
            if rng.random() > _TO_ENGLISH:
                source, target, texts = "English", language, english
            text = " ".join(map(str.strip, texts[at:end]))
            yield document, _worded(rng, "translation", source=source, target=target, text=text)


def _wikisql(clone: Path, rng: random.Random) -> Lines:
    """A table's columns are those that its queries name."""
    columns: dict[str, set[str]] = {}
    questions: dict[str, str] = {}
    for entry in json.loads(bz2.decompress((clone / "data/wikisql.json.bz2").read_bytes())):
        for sentence in entry["sentences"]:
            table = "table_" + sentence["table-id"].replace("-", "_")
            questions[sentence["original"].strip()] = table
            fields = re.findall(r"TABLEalias0\.(\S+)_FIELD", " ".join(entry["sql"]))
            names = {re.sub(r"\W+", "_", name.lower()).strip("_") for name in fields}
            columns.setdefault(table, set()).update(names - {""})
    for question, table in questions.items():
        if len(columns[table]) > 2:
            mixed = sorted(columns[table])
            rng.shuffle(mixed)
            create = f"CREATE TABLE {table} ({', '.join(f'{name} TEXT' for name in mixed)});"
            values = {"table": table, "columns": ", ".join(mixed), "create": create}
            yield table, _worded(rng, "sql", question=question, **values)


def _untokenized(text: str) -> str:
    text = re.sub(r"'' ?(.*?) ?''|(?<!\w)' (.*?) '(?!\w)", r'"\1\2"', text)
    text = re.sub(r" (?=[,.;:!?%)]|'\w|n't)", "", text)
    return " ".join(re.sub(r"(?<=[($]) ", "", text).split())


def _wiki_split(clone: Path, rng: random.Random) -> Lines:
    for name in ("tune.tsv", "validation.tsv"):
        for line in read_text(clone / name).splitlines():
            whole, parts = line.split("\t")
            kind = rng.choices(("split", "rewrite", "join"), (4, 5, 1))[0]
            text = parts.replace("<::::>", " ") if kind == "join" else whole
            yield whole, _worded(rng, kind, text=_untokenized(text))


def _xquad(clone: Path, rng: random.Random) -> Lines:
    for article in json.loads(read_text(clone / "xquad.en.json"))["data"]:
        title = article["title"].replace("_", " ")
        contexts = [paragraph["context"] for paragraph in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            passage = paragraph["context"]
            questions = [qa["question"].strip() for qa in paragraph["qas"]]
            for question in questions:
                if rng.random() < _SEVERAL:
                    others = rng.sample([c for c in contexts if c != passage], rng.randint(1, 3))
                    mixed = rng.sample([passage, *others], len(others) + 1)
                    several = "\n".join(f"{title} {passage_}" for passage_ in mixed)
                    yield title, _worded(rng, "passages", passages=several, question=question)
                else:
                    values = {"title": title, "passage": passage, "question": question}
                    yield title, _worded(rng, "passage", **values)
            if len(questions) > 2:
                first, *later = rng.sample(questions, rng.randint(2, 3))
                yield title, [f"{passage}\n\n{first}", *later]


def _threads(message: dict[str, Any]) -> list[list[str]]:
    """What the user says on each way through a tree of messages."""
    below = [thread for reply in message["replies"] for thread in _threads(reply)] or [[]]
    said = [message["text"]] if message["role"] == "prompter" else []
    return [said + thread for thread in below]


def _oasst(clone: Path, rng: random.Random) -> Lines:
    data = clone / "model/model_eval/manual/data"
    for _, tree in read_json_lines(data / "en_100_tree.jsonl"):
        threads = {tuple(turns[:3]) for turns in _threads(tree["prompt"]) if len(turns) > 1}
        for first, *later in rng.sample(sorted(threads), min(3, len(threads))):
            yield first, [first, *later]
    path = clone / "backend/test_data/realistic/realistic_seed_data.json"
    messages = {message["user_message_id"]: message for message in json.loads(read_text(path))}
    for last in messages.values():
        thread = [last]
        while parent := messages.get(thread[-1]["parent_message_id"]):
            thread.append(parent)
        said = [message["text"] for message in reversed(thread) if message["role"] == "prompter"]
        if last["role"] == "prompter" and 2 <= len(said) <= 3:
            yield said[0], said
    for name in ("en_100_text.jsonl", "prompt_lottery_en_250_text.jsonl"):
        for _, request in read_json_lines(data / name):
            yield request, _followed(rng, request)


def _self_instruct(clone: Path, rng: random.Random) -> Lines:
    for name in ("data/seed_tasks.jsonl", "human_eval/user_oriented_instructions.jsonl"):
        for _, task in read_json_lines(clone / name):
            text = f"{task['instruction']}\n\n{task['instances'][0]['input']}".strip()
            yield text, _followed(rng, text)


def _roles(clone: Path, rng: random.Random) -> Lines:
    for row in csv.DictReader(read_text(clone / "prompts.csv").splitlines(keepends=True)):
        yield row["prompt"], _followed(rng, row["prompt"])


def _dstc8(clone: Path, rng: random.Random) -> Lines:
    """The first turn, and one or two more that tell or ask something."""
    for number in (*range(1, 37), *range(95, 104)):
        for dialogue in json.loads(read_text(clone / f"train/dialogues_{number:03}.json")):
            first, *rest = (turn for turn in dialogue["turns"] if turn["speaker"] == "USER")
            acts = [{a["act"] for f in turn["frames"] for a in f["actions"]} for turn in rest]
            wanted = {"INFORM", "INFORM_INTENT", "REQUEST", "REQUEST_ALTS"}
            said = [t["utterance"] for t, of in zip(rest, acts, strict=True) if of & wanted]
            if len(said) > 1:
                turns = [first["utterance"], *said[: rng.randint(1, 2)]]
                yield dialogue["dialogue_id"], turns


READERS: dict[str, Callable[[Path, random.Random], Lines]] = {
    "ntrex": _ntrex,
    "wikisql": _wikisql,
    "wiki-split": _wiki_split,
    "xquad": _xquad,
    "oasst": _oasst,
    "self-instruct": _self_instruct,
    "awesome-chatgpt-prompts": _roles,
    "dstc8": _dstc8,
}


def runs_in(path: Path) -> set[tuple[str, ...]]:
    """All eight words in a row of the texts in a JSONL file."""

    def runs(value: object) -> set[tuple[str, ...]]:
        if isinstance(value, dict | list):
            parts = value.values() if isinstance(value, dict) else value
            return set[tuple[str, ...]]().union(*map(runs, parts))
        return word_runs(value) if isinstance(value, str) else set()

    return runs([value for _, value in read_json_lines(path)])


def lines_of(
    name: str, clones: Path, never: set[tuple[str, ...]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw a source's lines to train on and, of other documents or tables, those held out.

    They are the same ones every time, none with a run of eight words of ``never``.
    """
    source, rng = SOURCES[name], random.Random(name)
    clone = clones / source["repository"].split("/")[1]
    by_origin: dict[object, list[dict[str, Any]]] = {}
    seen = set()
    try:
        for origin, line in READERS[name](clone, rng):
            turns = [line] if isinstance(line, str) else line
            text = "\n".join(turns)
            fits = len(text) <= MOST_CHARACTERS and all(map(str.strip, turns))
            if fits and text not in seen and all(map(never.isdisjoint, map(word_runs, turns))):
                seen.add(text)
                value = {"prompt" if isinstance(line, str) else "turns": line, "source": name}
                by_origin.setdefault(origin, []).append(value)
    except (AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        url = f"https://github.com/{source['repository']} at {source['commit']}"
        raise UserError(f"{clone}: {reason(error)}; expected a clone of {url}") from None
    train: list[dict[str, Any]] = []
    valid: list[dict[str, Any]] = []
    for origin in rng.sample(list(by_origin), len(by_origin)):
        (valid if len(valid) < 2 * source["held_out"] else train).extend(by_origin[origin])
    rng.shuffle(train)
    return train[: source["weight"]], rng.sample(valid, min(source["held_out"], len(valid)))


def main(
    clones: Path = option(..., PATH, "Directory of the sources' clones."),
    output: Path = option(..., PATH, "Directory of train.jsonl and valid.jsonl."),
    never: list[Path] | None = option(
        None,
        _FILES,
        "JSONL with texts of which no line repeats eight words in a row; may be given several "
        "times.",
        metavar="FILE",
    ),
) -> None:
    """Make prompts of public data sets: train.jsonl and valid.jsonl."""
    runs = set[tuple[str, ...]]().union(*map(runs_in, never or []))
    drawn = [lines_of(name, clones, runs) for name in SOURCES]
    output.mkdir(parents=True, exist_ok=True)
    for file, parts in zip(("train.jsonl", "valid.jsonl"), zip(*drawn, strict=True), strict=True):
        lines = [json.dumps(line, ensure_ascii=False) for part in parts for line in part]
        random.Random(file).shuffle(lines)
        with staged_file(output / file) as staged:
            staged.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name, (train, valid) in zip(SOURCES, drawn, strict=True):
        print(f"{len(train):6} {len(valid):4}  {name}: {SOURCES[name]['what']}")


if __name__ == "__main__":
    program(main)()
