"""Where a generation ends, what it reports, and that drafts change neither."""

import os
import subprocess
import sys
from operator import attrgetter

import mlx_lm
import pytest
from random_models import Oracle, assert_close, paired, plain_tokens, random_prompt
from tiny_models import VOCAB_SIZE, stream_adapter_directory, tiny_llama_directory, tokenizer_ending
from toy_model import questions

from specstream_mlx import generate, load, stream_generate
from specstream_mlx.generation.text import _cut
from specstream_mlx.prompts import chat_prompt

PROMPT = random_prompt(7, vocab_size=VOCAB_SIZE)
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("stop")
    base = tiny_llama_directory(root / "base", seed=3, tie_word_embeddings=False)
    adapter = stream_adapter_directory(
        root / "adapter", base, stream_mlp="adapter", stream_adapter_rank=4
    )
    return load(base, adapter_path=adapter)[0]


@pytest.fixture(scope="module")
def truth(model):
    tokens = plain_tokens(model.model, PROMPT, LENGTH + 20)
    assert len(set(tokens)) >= 10
    return tokens


@pytest.fixture
def oracle(truth, monkeypatch):
    return Oracle(truth, vocab_size=VOCAB_SIZE).install(monkeypatch)


def plain_responses(model, tokenizer, max_tokens):
    return list(mlx_lm.stream_generate(model.model, tokenizer, PROMPT, max_tokens))


def assert_counters(responses):
    """The counters' bounds after every response; the token that ends a text counts."""
    for number, response in enumerate(responses, start=1):
        assert response.generation_tokens == number
        assert response.accepted_tokens <= response.drafted_tokens
        assert response.accepted_tokens <= number
        assert response.target_calls <= number <= response.accepted_tokens + response.target_calls
        assert response.accepted_length == number / response.target_calls
    assert sum(response.from_draft for response in responses) == responses[-1].accepted_tokens


COMPARED = attrgetter("text", "token", "prompt_tokens", "generation_tokens", "finish_reason")


def assert_like_plain(responses, plain):
    for found, expected in zip(responses, plain, strict=True):
        assert COMPARED(found) == COMPARED(expected)
        assert_close(found.logprobs, expected.logprobs)


@pytest.mark.parametrize("max_tokens", [1, 5, LENGTH])
def test_never_longer_than_max_tokens(max_tokens, model, oracle):
    words = tokenizer_ending()
    responses = list(stream_generate(model, words, PROMPT, max_tokens))
    assert_like_plain(responses, plain_responses(model, words, max_tokens))
    assert responses[-1].finish_reason == "length"
    assert_counters(responses)


def test_never_past_an_end_token(model, truth, oracle):
    """Every token of the text in turn is the end token, inside an accepted path or after it."""
    inside = 0
    ends = sorted(set(truth[:LENGTH]), key=truth.index)
    for token, limit, nodes in paired(ends, [LENGTH, -1], [None, 1]):
        oracle.paths.clear()
        words = tokenizer_ending(token)
        responses = list(stream_generate(model, words, PROMPT, limit, stream_nodes=nodes))
        assert [r.token for r in responses] == truth[: truth.index(token) + 1]
        assert_like_plain(responses, plain_responses(model, words, LENGTH))
        assert responses[-1].finish_reason == "stop"
        assert_counters(responses)
        inside += responses[-1].from_draft
    assert inside >= 3


@pytest.mark.parametrize("size", [1, 6])
def test_stop_strings(size, model, truth, oracle):
    """Every piece of the text in turn is the stop string; most are split over tokens."""
    words = tokenizer_ending()
    full = "".join(r.text for r in plain_responses(model, words, LENGTH))
    split = 0
    for start in range(0, len(full) - size, 7):
        stop = full[start : start + size]
        oracle.paths.clear()
        responses = list(stream_generate(model, words, PROMPT, LENGTH, stop=[stop, "never met"]))
        assert "".join(r.text for r in responses) == full[: full.index(stop)]
        assert responses[-1].finish_reason == "stop"
        assert all(r.finish_reason is None for r in responses[:-1])
        assert_counters(responses)
        split += len(words.decode([responses[-1].token])) < size
    assert size == 1 or split >= 2
    assert generate(model, words, PROMPT, max_tokens=LENGTH, stop="never met") == full


@pytest.mark.parametrize("adapter", ["streams", "adapters/sql"])
def test_calls_of_trained_streams_bring_more_than_a_token(adapter, toy_directory):
    """Of chains in every step: how much is drafted otherwise depends on the machine."""
    model, tokenizer = load(toy_directory / "base", adapter_path=toy_directory / adapter)
    tokens = calls = 0
    for row in questions(6, seed=1):
        prompt = chat_prompt(tokenizer, row["prompt"], model.prompt_template)
        *_, last = stream_generate(model, tokenizer, prompt, 64, tree_width=1)
        tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
    assert tokens / calls > 1.5


_LEAVES = """
import asyncio
import sys
from specstream_mlx import Chat, PromptCache, astream_generate, load, stream_generate
from mlx_lm.models.cache import make_prompt_cache

model, tokenizer = load(sys.argv[1])
tokenizer.eos_token_ids = []
rows, loop, unfinished = make_prompt_cache(model.model), asyncio.new_event_loop(), []
for more in (
    {}, {"prompt_cache": rows}, {"prompt_cache": PromptCache()}, {"lookup": False},
    {"draft_model": load(sys.argv[1])[0]}, {"stop": "zzz"},
):
    unfinished.append(stream_generate(model, tokenizer, [5, 6, 7], max_tokens=100, **more))
    for _ in range(6):
        next(unfinished[-1])
unfinished.append(Chat(model, tokenizer).reply("hello", max_tokens=100))
next(unfinished[-1])
waits = astream_generate(model, tokenizer, [5, 6, 7], max_tokens=100)
loop.run_until_complete(anext(waits))
"""


def test_a_program_that_leaves_texts_unfinished_ends_without_a_word(base, tmp_path):
    """And what its steps took is kept."""
    command = [sys.executable, "-c", _LEAVES, str(base)]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "timings" in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "stop", [["bc", "abcd"], ["abcd", "bc"], ["ab", "abc"], ["d", "cd"], ["xy"]]
)
def test_which_stop_string_ends_a_text_does_not_depend_on_its_tokens(stop):
    """It is the one that is complete first, also where one token brings several."""

    def cut(pieces):
        shown, held = "", ""
        for piece in pieces:
            text, held, met = _cut(held + piece, stop)
            shown += text
            if met is not None:
                return shown, met
        return shown + held, None

    text = "xabcdx"
    ways = {cut([text[:i], text[i:j], text[j:]]) for j in range(7) for i in range(j + 1)}
    assert ways == {cut(text)}
