"""Schemas: every node of a tree is masked at its own place, and every text fits."""

import json
import random
import re
from importlib import util
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from pydantic import TypeAdapter
from random_models import random_prompt
from serving import tiny_resident
from tiny_models import END, SPECIAL_TOKENS, VOCAB_SIZE
from tokenizer_kinds import FOLLOWED, REFUSED, wrapped

from specstream_mlx import batch_generate, generate, stream_generate
from specstream_mlx.engine.sampling import keyed_sampler
from specstream_mlx.errors import UserError
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
def tiny(tmp_path_factory):
    return tiny_resident(tmp_path_factory.mktemp("grammar"))


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


ENDS = SPECIAL_TOKENS.index(END)
WORDS = ["red wine", " x", "é", "a>", 'say "noon"', "two  spaces", "b  "]
SCHEMAS = [
    {
        "type": "object",
        "properties": {"a b": {"enum": WORDS}, "n": {"type": "integer"}},
        "required": ["a b", "n"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": WORDS}, "minItems": 1, "maxItems": 3},
    {"enum": ["a> b", "é é", "x\ny"]},
    {"type": "string", "pattern": "^a>x? red$"},
]


def fits(value, schema):
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "array":
        return 1 <= len(value) <= 3 and all(fits(one, schema["items"]) for one in value)
    if schema["type"] == "object":
        return set(value) == {"a b", "n"} and fits(value["a b"], schema["properties"]["a b"])
    return re.fullmatch("a>x? red", value) is not None


def random_texts(tokenizer, schema, count):
    """Tokens of texts that a schema's mask allows, each of them drawn among all."""
    rng, make = random.Random(1), Grammars(tokenizer, len(tokenizer)).json(schema, 1)
    for _ in range(count):
        mask, path = make(), [0]
        while len(path) < 200:
            logits = np.array(mask(mx.array(path), mx.zeros((1, len(tokenizer)))))[0]
            allowed = np.flatnonzero(logits == 0).tolist()
            token = ENDS if ENDS in allowed and rng.random() < 0.5 else rng.choice(allowed)
            if token == ENDS:
                yield path[1:]
                break
            path.append(token)


@pytest.mark.parametrize("kind", FOLLOWED)
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_with_every_tokenizer_that_is_followed(kind, number, tmp_path):
    tokenizer, schema = wrapped(FOLLOWED[kind](), tmp_path), SCHEMAS[number]
    if "Unigram" in kind:  # which has no token for a single accent
        schema = json.loads(json.dumps(schema, ensure_ascii=False).replace("é é", "a a"))
    texts = list(random_texts(tokenizer, schema, 12))
    assert len(texts) > 6
    for tokens in texts:
        streamed = tokenizer.detokenizer
        for token in tokens:
            streamed.add_token(token)
        streamed.finalize()
        for found in (streamed.text, tokenizer.decode(tokens)):
            assert fits(json.loads(found), schema), found


@pytest.mark.parametrize("kind", REFUSED)
def test_other_tokenizers_are_refused(kind, tmp_path):
    alone = kind in ("words alone", "no braces")
    sentence = "no token for '{' " if alone else "cannot be followed by a schema: its tokens '"
    with pytest.raises(UserError, match=sentence):
        Grammars(wrapped(REFUSED[kind](), tmp_path), 200).json({"type": "object"}, 1)


def test_a_character_without_a_token(tmp_path):
    """The text ends where the tokenizer cannot go on; llguidance leaves such characters out."""
    tokenizer = wrapped(FOLLOWED["Unigram, Metaspace"](), tmp_path)
    for schema in ({"const": "aß"}, {"const": "ßa"}, {"enum": ["ßa", "ßb"]}):
        with pytest.raises(UserError, match="no token for what the schema demands next"):
            list(random_texts(tokenizer, schema, 1))


@pytest.mark.parametrize("ends", [[], [10**6]])
def test_a_tokenizer_without_an_end(ends, tmp_path):
    tokenizer = wrapped(FOLLOWED["byte-level"](), tmp_path)
    tokenizer.eos_token_ids = ends
    with pytest.raises(UserError, match="has no end token"):
        Grammars(tokenizer, len(tokenizer)).json(True, 1)


B = 2**53
EXACT = [
    *({"const": B}, {"const": -B}, {"enum": [B, 1]}, {"const": 1e30}, {"maximum": 1.5e300}),
    *({"type": "integer", "minimum": B, "maximum": B}, {"exclusiveMaximum": B - 1}),
    *({"default": B + 1}, {"examples": [B + 1]}, {"properties": {"default": {"const": B}}}),
]
ROUNDED = {
    "const": {"const": B + 1},
    "enum.1": {"enum": [1, -B - 1]},
    "minimum": {"type": "integer", "minimum": B + 1},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": B},
    "maximum": {"type": "number", "maximum": 2**63 - 1},
    "multipleOf": {"multipleOf": 2**64},
    "const.a.0": {"const": {"a": [B + 1]}},
    "items.anyOf.1.const": {"items": {"anyOf": [{}, {"const": B + 1}]}},
    "properties.[default].const": {"properties": {"default": {"const": B + 1}}},
    "$defs.[x].maximum": {"$ref": "#/$defs/x", "$defs": {"x": {"maximum": B + 2}}},
    "maxLength": {"type": "string", "maxLength": 10**30},
}


@pytest.mark.parametrize("schema", EXACT, ids=str)
def test_numbers_that_are_exact(grammars, schema):
    try:
        grammars.json(schema, 1)
    except UserError as error:  # of llguidance's own limits
        assert "larger ones" not in str(error)


@pytest.mark.parametrize("place", ROUNDED)
def test_integers_that_would_be_rounded(grammars, place):
    with pytest.raises(UserError, match=re.escape(f"the schema's {place} is ")) as error:
        grammars.json(ROUNDED[place], 1)
    assert "larger ones cannot be followed exactly" in str(error.value)


def test_from_python(tiny, grammars):
    """An object or its text, with drafts and without, alone and in a batch."""
    schema, prompt = SCHEMAS[0], random_prompt(20, seed=3)
    asked = tiny.models["base"], tiny.tokenizer, prompt, 160
    masked = {"logits_processors": [grammars.json(schema, len(prompt))()]}
    expected = generate(tiny.models["base"], tiny.tokenizer, prompt, max_tokens=160, **masked)
    assert fits(json.loads(expected), schema)
    for given in (schema, json.dumps(schema)):
        for drafts in ({}, TREE, {"speculation": False}):
            assert "".join(one.text for one in stream_generate(*asked, schema=given, **drafts)) == (
                expected
            )
    prompts = [prompt, random_prompt(7, seed=4)]
    batch = batch_generate(*asked[:2], prompts, max_tokens=160, schema=schema)
    assert batch.texts[0] == expected
    assert fits(json.loads(batch.texts[1]), schema)
    full = {"verify": "rejection", "tree_width": 2, "tree_size": None}
    for verify in ({"verify": "typical"}, full):
        drawn = {"sampler": keyed_sampler(3), **verify}
        found = "".join(one.text for one in stream_generate(*asked, schema=schema, **drawn))
        assert fits(json.loads(found), schema)


WRONG = [
    ("{", "the schema is no JSON: "),
    ("[]", r"the schema is \[\], expected an object, true or false"),
    ('"x"', "the schema is 'x', expected an object, true or false"),
    ({"type": "nothing"}, "the schema cannot be followed: "),
    ({"$ref": "#/nowhere"}, "the schema cannot be followed: "),
    ({"const": {1, 2}}, "the schema cannot be followed: "),
    (5, "schema is 5, expected a JSON schema, as an object or as text"),
    ('{"items": ' * 3000 + "{}" + "}" * 3000, "the schema is n"),
]


@pytest.mark.parametrize(("schema", "sentence"), WRONG, ids=[str(one[0])[:20] for one in WRONG])
def test_wrong_schemas(tiny, schema, sentence):
    with pytest.raises(UserError, match=sentence):
        generate(tiny.models["base"], tiny.tokenizer, "noon", schema=schema)


def test_without_llguidance(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    sentence = re.escape('schemas need llguidance: .venv/bin/pip install -e ".[serve]"')
    tokenizer = wrapped(FOLLOWED["byte-level"](), tmp_path)
    with pytest.raises(UserError, match=sentence):
        Grammars(tokenizer, VOCAB_SIZE).json(True, 1)


@pytest.mark.parametrize("drafts", [{}, TREE, {"speculation": False}], ids=str)
def test_a_text_that_leaves_the_schema_ends_with_an_error(tiny, drafts):
    """A sampler that draws what is forbidden; before, the mask fell open."""

    def forbidden(log_probs):
        return mx.argmin(log_probs, axis=-1)

    model, prompt = tiny.models["base"], random_prompt(20, seed=3)
    asked = {"max_tokens": 40, "sampler": forbidden, "schema": SCHEMAS[0], **drafts}
    with pytest.raises(UserError, match="the text has left what the schema allows"):
        list(stream_generate(model, tiny.tokenizer, prompt, **asked))


def test_what_others_forbid_does_not_open_the_mask(tiny):
    """All that the schema allows is made impossible: the text fits it nevertheless."""
    schema, prompt = SCHEMAS[1], random_prompt(20, seed=3)
    masked = [lambda tokens, logits: mx.full(logits.shape, -mx.inf)]
    asked = {"max_tokens": 160, "schema": schema, "logits_processors": masked}
    found = generate(tiny.models["base"], tiny.tokenizer, prompt, **asked)
    assert json.loads(found)[:1]  # a list of words, cut by no token outside of the schema
