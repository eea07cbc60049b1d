"""Schemas: every node of a tree is masked at its own place, and every text fits."""

import json
import random
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from pydantic import TypeAdapter
from random_models import random_prompt
from tiny_models import VOCAB_SIZE

from specstream_mlx import stream_generate
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.errors import UserError
from specstream_mlx.serve.fields import integer, shape, some, text
from specstream_mlx.serve.grammar import Grammars

TREE = {"tree_width": 4, "tree_size": 8, "lookup": True}


def random_kind(rng, depth=0):
    """A kind of values whose texts are short."""
    kinds = ["words", "integer", "text", "one of two", "list", "object", "list", "object"]
    match rng.choice(kinds[: 4 if depth > 2 else 8]):
        case "words":
            return Literal[tuple(rng.sample(["the team", "noon", 7, True, None], 3))]
        case "integer":
            low = rng.randint(-50, 50)
            return integer(low, low + rng.randint(0, 200))
        case "text":
            return text(rng.randint(1, 6), least=1)
        case "one of two":
            return rng.choice([bool, Literal[None]])
        case "list":
            least = rng.randint(0, 2)
            return some(random_kind(rng, depth + 1), least + 1, least)
    names = rng.sample(["name", "when", "n", "right", "table"], rng.randint(1, 3))
    required = " ".join(names[: rng.randint(0, len(names))])
    return shape(required, **{name: random_kind(rng, depth + 1) for name in names})


@pytest.fixture(scope="module")
def grammars(tiny):
    return Grammars(tiny.tokenizer, VOCAB_SIZE)


def written(tiny, grammars, name, prompt, schema, temperature, **settings):
    responses = list(
        stream_generate(
            tiny.models[name],
            tiny.tokenizer,
            prompt,
            160,
            sampler=keyed_sampler(1, temperature),
            logits_processors=[grammars.json(schema, len(prompt))()],
            **settings,
        )
    )
    assert responses[-1].finish_reason == "stop"
    return "".join(one.text for one in responses), [one.token for one in responses]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 208))]
)
def test_texts_fit_with_drafts_and_without(tiny, grammars, seed):
    rng = random.Random(seed)
    kind, prompt = TypeAdapter(random_kind(rng)), random_prompt(20, seed=seed)
    schema = kind.json_schema()
    name, temperature = rng.choice([*tiny.models]), rng.choice([0.0, 1.0])
    case = tiny, grammars, name, prompt, schema, temperature
    found, tokens = written(*case, **TREE)
    kind.validate_json(found, strict=True)
    assert tokens == written(*case, speculation=False)[1]
    assert tokens == written(*case)[1]


def test_a_mask_is_that_of_its_path_wherever_it_was_before(tiny, grammars):
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}}
    texts = ["[12, 3, 45]", "[12, 34, 5]", "[1]", "[]", "[999, 999"]
    prompt = random_prompt(5)
    mask = grammars.json(schema, len(prompt))()
    tokens = from_tokenizer(tiny.tokenizer._tokenizer, n_vocab=VOCAB_SIZE)
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(schema), {"item_separator": ", ", "whitespace_flexible": False}
    )
    paths = [tiny.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    paths = [path[:size] for path in paths for size in range(len(path) + 1)]
    random.Random(0).shuffle(paths)
    for path in paths:
        fresh = LLMatcher(tokens, grammar)
        assert fresh.consume_tokens(path)
        bits = np.frombuffer(fresh.compute_bitmask(), np.uint8)
        expected = np.unpackbits(bits, bitorder="little")[:VOCAB_SIZE].astype(bool)
        found = mask(mx.array([*prompt, *path]), mx.zeros((1, VOCAB_SIZE)))
        assert (np.array(found[0] == 0) == expected).all(), tiny.tokenizer.decode(path)


def test_paths_that_do_not_fit_leave_the_mask_as_it_was(tiny, grammars):
    mask = grammars.json({"const": [1, 2]}, 0)()
    wrong = tiny.tokenizer.encode("[1 the", add_special_tokens=False)
    right = tiny.tokenizer.encode("[1", add_special_tokens=False)
    logits = mx.zeros((1, VOCAB_SIZE))
    before = mask(mx.array(right), logits)
    assert (mask(mx.array(wrong), logits) == 0).all()
    ended = [*right, min(tiny.tokenizer.eos_token_ids)]
    assert (mask(mx.array(ended), logits) == 0).all()
    assert mx.array_equal(mask(mx.array(right), logits), before)


@pytest.mark.parametrize("schema", [{"type": "x"}, {"type": "string", "pattern": "("}, {"not": 5}])
def test_what_is_no_schema_is_refused(grammars, schema):
    with pytest.raises(UserError, match="the schema cannot be followed: "):
        grammars.json(schema, 0)
