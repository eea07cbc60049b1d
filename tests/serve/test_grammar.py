"""Schemas: every node of a tree is masked at its own place, and every text fits."""

import random
from typing import Literal

import pytest
from pydantic import TypeAdapter
from random_models import random_prompt
from tiny_models import VOCAB_SIZE

from specstream_mlx import stream_generate
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.grammar import Grammars
from specstream_mlx.serve.fields import integer, shape, some, text

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
    settings |= {"sampler": keyed_sampler(1, temperature), "max_tokens": 160}
    settings["logits_processors"] = [grammars.json(schema, len(prompt))()]
    found = list(stream_generate(tiny.models[name], tiny.tokenizer, prompt, **settings))
    assert found[-1].finish_reason == "stop"
    return "".join(one.text for one in found), [one.token for one in found]


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
