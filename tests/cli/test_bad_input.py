"""A user's mistake ends in one clear sentence on stderr and exit code 2.

One whole run for each kind of mistake; the sentences themselves are tested where they are made.
"""

import pytest
from command_line import generate, refusal, run
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import tiny_tokenizer

from specstream_mlx import loading
from specstream_mlx.prompts import chat_prompt


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--temperature", 1), "unrecognized arguments: --temperature"),
        (("--kv-bits", 3), "--kv-bits: found '3', expected 4 or 8"),
        (("--logit-bias", '{"999999": 1}'), "token 999999, expected one of 0 to 319"),
        (("--verify", "typical"), "verify is 'typical', which needs the target's probabilities"),
        (("--temp", 1, "--verify", "rejection", "--tree-size", 4), "rejection"),
        (("--kv-bits", 8), "expected one that divides the model's head_dim of 16"),
        (("--lookup-size", 4, "--tree-size", 4), "--lookup-size was given, expected with --lookup"),
        (("--num-draft-tokens", 4), "--num-draft-tokens was given, expected with --draft-model"),
        (("--lookup", "--max-nodes", 2), "max_nodes is 2, but no streams run"),
        (
            ("--no-speculation", "--tree-size", 4),
            "--no-speculation and --tree-size were",
        ),
        (("--no-streams", "--adapter", "sql"), "--no-streams and --adapter were both given"),
        (("--adapter-path", ""), "--adapter-path: found '', expected a path"),
    ],
)
def test_options(flags, sentence, base):
    assert sentence in refusal(generate(base, *flags))


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("generate -p x --draft-model none", "the model directory none does not exist"),
        ("train --adapter-path new --data .", "train.jsonl, line 1 is 3, expected a prompt and"),
    ],
)
def test_files_that_are_told_before_anything_is_loaded(
    command, sentence, base, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "load_model", None)
    monkeypatch.setattr(loading, "load_tokenizer", None)
    (tmp_path / "train.jsonl").write_text("3")
    assert sentence in refusal(run(*command.split(), "--model", base))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--num-streams", 9), "num_streams is 9, the adapter has 4"),
        (("--tree-width", 99), "the draft tree has 97039800 nodes, expected at most 4096"),
        (("--tree-width", 999), "tree_width is 999, expected at most the vocabulary's 320"),
    ],
)
def test_options_that_the_adapter_does_not_take(flags, sentence, base, shared):
    assert sentence in refusal(generate(base, "--adapter-path", shared, *flags))


def test_prompts(base, shared):
    assert "from --prompt is empty" in refusal(generate(base, prompt="  "))
    read = ("generate", "--model", base)
    assert "from standard input is empty" in refusal(run(*read, stdin=""))
    assert "standard input is not UTF-8 text: byte 0xe9 at 3" in refusal(
        run(*read, stdin=b"caf\xe9")
    )
    text = "hello " * 2000
    found = len(chat_prompt(TokenizerWrapper(tiny_tokenizer()), text))
    sentence = refusal(generate(base, "--adapter-path", shared, prompt=text))
    assert f"the prompt has {found} tokens" in sentence
    assert "context (max_position_embeddings) holds 512" in sentence
