"""A small model that is trained in seconds, with lossless streams and one adapter, ``sql``.

It writes queries that end, and its streams are often right: what random models cannot show. It
stands in for the demonstration model.
"""

import random
import shutil

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from command_line import run
from filelock import FileLock
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.trainer import default_loss
from tiny_models import save_base, tiny_llama, tiny_llama_config, tiny_tokenizer
from tiny_training import write_rows

from specstream_mlx.prompts import chat_prompt

TEMPLATE = "Write the SQL query for this question.\n{text}"
TABLES = {
    "singers": ("name", "age", "city"),
    "trips": ("city", "days", "price"),
    "books": ("title", "price", "year"),
    "teams": ("name", "city", "wins"),
}
VALUES = ("Paris", "Rome", "Oslo", "Lima")
CONTEXT = 2048


def questions(count, seed):
    """Questions about a table, and the queries."""
    draws = random.Random(seed)
    rows = []
    for _ in range(count):
        table, columns = draws.choice(list(TABLES.items()))
        wanted, other = draws.sample(columns, 2)
        start, value = f"table {table}({', '.join(columns)}):", draws.choice(VALUES)
        if draws.random() < 0.5:
            question = f"for {table} with {other} {value}, what is the {wanted}?"
            query = f"SELECT {wanted} FROM {table} WHERE {other} = '{value}'"
        else:
            question = f"what are the {wanted} sorted by {other}?"
            query = f"SELECT {wanted} FROM {table} ORDER BY {other}"
        rows.append({"prompt": f"{start} {question}", "completion": query})
    return rows


def toy_in(directory):
    """The directory with ``base``, ``streams`` and ``adapters/sql``, made by who comes first."""
    with FileLock(directory.with_suffix(".lock")):
        if not directory.exists():
            making = directory.with_suffix(".making")
            _make(making)
            making.rename(directory)
    return directory


def _make(directory):
    base, data = directory / "base", directory / "data"
    _write_base(base)
    data.mkdir()
    for name, count in (("train", 192), ("valid", 16)):
        write_rows(data / f"{name}.jsonl", questions(count, seed=count))
    usual = ("--model", base, "--data", data, "--num-msa-layers", 2, "--batch-size", 8)
    usual += ("--learning-rate", 1e-2, "--steps-per-eval", 1000, "--val-batches", 1)
    sql = ("--mode", "shared", "--prompt-template", TEMPLATE)
    for adapter, more in (("streams", ()), ("adapters/sql", sql)):
        found = run("train", *usual, *more, "--iters", 40, "--adapter-path", directory / adapter)
        assert found.exit_code == 0, found.output
        shutil.rmtree(directory / f"{adapter}.training")


def _write_base(base):
    """Train a Llama on the questions, with their instruction and without; written in 8 bits."""
    rows = questions(1200, seed=0)
    config = tiny_llama_config(vocab_size=512, max_position_embeddings=CONTEXT)
    model = tiny_llama(config)
    tokenizer = tiny_tokenizer([*(" ".join(row.values()) for row in rows), TEMPLATE], 512)
    tokenizer.model_max_length = CONTEXT
    draws, items = random.Random(0), []
    for row in rows:
        instruction = draws.choice((None, TEMPLATE))
        prompt = chat_prompt(TokenizerWrapper(tokenizer), row["prompt"], instruction)
        answer = tokenizer.encode(row["completion"], add_special_tokens=False)
        items.append((len(prompt), [*prompt, *answer, tokenizer.eos_token_id]))

    step, optimizer = nn.value_and_grad(model, default_loss), optim.AdamW(3e-3)
    longest = max(len(ids) for _, ids in items)
    for start in range(0, len(items), 8):
        batch = items[start : start + 8]
        tokens = mx.array([ids + [0] * (longest - len(ids)) for _, ids in batch])
        answers = mx.array([(prompt, len(ids) - 1) for prompt, ids in batch])
        loss, gradients = step(model, tokens, answers)
        optimizer.update(model, gradients)
        mx.eval(loss, model.parameters(), optimizer.state)
    save_base(base, model, config, tokenizer, bits=8)
