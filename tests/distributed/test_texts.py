"""Several processes that run one model write, each of them, what one process writes.

Reductions add in another order than one process does, so a text might differ at a tie; none does.
"""

from itertools import product

import numpy as np
import pytest
from command_line import run
from processes import Processes, written
from rank_writer import gap_at, texts_of
from tiny_models import CORPUS, stream_adapter_directory, tiny_llama_directory


def base_of(folder, size, family="llama", bits=None):
    """A random model that ``size`` processes divide, of which streams are right at times.

    Qwen2 has biases besides; Qwen3 has norms of queries and keys.
    """
    return tiny_llama_directory(
        folder / "base",
        bits=bits,
        residual_scale=0.3,
        model_type=family,
        num_hidden_layers=2,
        num_attention_heads=2 * size,
        num_key_value_heads=size,
        hidden_size=64 * size,
        intermediate_size=64 * size,
    )


def job_of(base, prompts, weights="auto"):
    """Seven texts of a base, without streams, lossless and shared, with all that streams may have.

    Plain, by the rule, left early, in fixed trees, pruned, drawn.
    """
    folder, fields = base.parent, {"num_msa_layers": 1, "scale": 0.3}
    head = {"stream_head": "conditioned", "stream_head_rank": 4, "draft_vocabulary": 60}
    head |= {"stream_init": "linear", "stream_init_rank": 4}
    lossless = stream_adapter_directory(folder / "lossless", base, **fields, **head)
    fields |= {"stream_init": "value_rotation", "value_rotation_epsilon": 0.4, "lora_rank": 4}
    shared = stream_adapter_directory(folder / "shared", base, mode="shared", **fields)
    texts = [
        {"max_tokens": 5},
        {"max_tokens": 9, "adapter": str(lossless)},
        {"max_tokens": 30, "adapter": str(lossless), "leaves": 5},
        {"max_tokens": 9, "adapter": str(lossless), "tree_size": 6, "max_nodes": 4},
        {"max_tokens": 9, "adapter": str(lossless), "tree_size": 4, "seed": 3},
        {"max_tokens": 9, "adapter": str(shared), "tree_size": 6},
        {"max_tokens": 7, "adapter": str(shared), "seed": 5},
    ]
    texts = [text | {"prompt": next(prompts)} for text in texts]
    return {"model": str(base), "weights": weights, "texts": texts}


def random_prompts():
    """Prompts of 3 to 14 words, all of them different."""
    drawn, words = np.random.default_rng(0), " ".join(CORPUS).split()
    while True:
        yield " ".join(drawn.choice(words, drawn.integers(3, 15)))


def assert_written(folder, size, jobs):
    """All ranks write what one process writes; a difference says how near a tie it was."""
    alone, differing = texts_of(jobs), []
    asked = [(job, text) for job in jobs for text in job["texts"]]
    for rank, found in enumerate(written(folder, size, jobs)):
        for (job, text), own, expected in zip(asked, found, alone, strict=True):
            if own != expected:
                pairs = zip(own, expected, strict=False)
                index = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                gap = "none" if index is None else f"{gap_at(job, text, index):.2e}"
                differing.append(
                    f"rank {rank} of {size}, {job['model']} {job['weights']}, {text}: token {index}"
                    f" differs, a gap of {gap} between the best two: {own}, expected {expected}"
                )
    assert not differing, "\n".join(differing)


def test_two_processes_write_what_one_writes(tmp_path):
    assert_written(tmp_path, 2, [job_of(base_of(tmp_path, 2), random_prompts())])


FORMS = [(None, "auto"), *product((8, 4), ("packed", "expanded"))]
"""Bits and weights: as they are, and quantized in both forms."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "families"),
    [
        (2, [*product(["llama"], FORMS), *product(("qwen2", "qwen3"), FORMS[::3])]),
        (3, [("llama", FORMS[3]), ("qwen2", FORMS[0]), ("qwen3", FORMS[-1])]),
    ],
    ids=["2", "3"],
)
def test_many_prompts_of_all_families_and_quantizations(tmp_path, size, families):
    prompts, jobs = random_prompts(), []
    for family, (bits, weights) in families:
        folder = tmp_path / f"{family} {bits} {weights}"
        jobs.append(job_of(base_of(folder, size, family, bits), prompts, weights))
    assert_written(tmp_path, size, jobs)


@pytest.mark.slow
def test_only_rank_0_needs_a_draft_model(tmp_path):
    base = base_of(tmp_path, 2)
    draft = tiny_llama_directory(tmp_path / "draft", residual_scale=0.3)
    command = ["generate", "--model", base, "-p", "the meeting", "-m", 8, "-q", "--draft-model"]
    begin = ["-m", "specstream_mlx", *command]
    first, other = Processes(tmp_path, [*begin, draft], [*begin, tmp_path / "none"]).ended()
    assert (first.code, other.code) == (0, 0), (first.error, other.error)
    assert first.out == run(*command, draft).stdout and other.out == ""
