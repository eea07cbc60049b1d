"""Reports of ``generate`` beside its text: statistics and comparisons, all on stderr."""

from typing import TYPE_CHECKING

from ..terminal.notes import note

if TYPE_CHECKING:
    from ..responses import GenerationResponse
    from .comparison import Comparison


def statistics(
    last: "GenerationResponse",
    drafts: str,
    verify: str,
    seed: int | None,
    *,
    everything: bool,
    rate: bool,
) -> None:
    """The figures of a generation, mlx_lm's in mlx_lm's words."""
    note("=" * 10)
    note(f"Prompt: {last.prompt_tokens} tokens, {last.prompt_tps:.3f} tokens-per-sec")
    shown = f", {last.generation_tps:.3f} tokens-per-sec" if rate else ""
    drawn = "" if seed is None else f", seed {seed}"
    note(f"Generation: {last.generation_tokens} tokens{shown}{drawn}")
    if everything:
        note(f"Peak memory: {last.peak_memory:.3f} GB")
        if last.drafted_tokens:
            drafts += f"; {last.accepted_tokens} of {last.drafted_tokens} drafted tokens accepted"
        note(f"Tree: {drafts}")
    if verify == "typical":
        note("Verify: typical, LOSSY: the text is not distributed as the model's")
    elif everything:
        note(f"Verify: {verify}")
    if everything:
        note(f"Accepted length: {last.accepted_length:.2f} tokens per target call")
    reduction = last.generation_tokens / last.target_calls
    note(
        f"Target calls: {last.target_calls} instead of {last.generation_tokens}, "
        f"call reduction {reduction:.2f}"
    )


def cut(tokens: int, max_tokens: int) -> None:
    """Say that a text was cut off, and by what."""
    if tokens == max_tokens:
        note(f"The text was cut off at --max-tokens {max_tokens}")
    else:
        note(f"The text was cut off after {tokens} tokens, where the context ends")


def profile(parts: dict[str, dict[str, float]]) -> None:
    """A table of what the parts of a generation took, from ``Profile.report``."""
    note("=" * 10)
    note("Profile: each part is waited for, which other runs do not do, so this one took longer")
    note(f"{'part':<12}{'ms':>10}{'share':>8}{'calls':>8}")
    for name, part in parts.items():
        milliseconds, share = 1e3 * part["seconds"], f"{part['share']:.1%}"
        note(f"{name:<12}{milliseconds:>10.1f}{share:>8}{part['calls']:>8}")


def comparison(result: "Comparison") -> None:
    """A pair of rates, its ratio among those of all pairs, and whether the outputs are the same."""
    note("=" * 10)
    pair = result.shown
    if pair is None and result.pairs is not None:
        note("Rates: none, since a side generated a single token")
    elif pair is not None and result.pairs:
        low, high = result.pairs[0].speedup, result.pairs[-1].speedup
        note(f"mlx_lm: {pair.plain:.3f} tokens-per-sec")
        note(f"specstream-mlx: {pair.ours:.3f} tokens-per-sec")
        note(
            f"Speedup: {pair.speedup:.2f} (the median pair of {len(result.pairs)}, "
            f"{low:.2f} to {high:.2f}; first token left out)"
        )
    if result.identical is None:
        note("Identical output: not asked, since this verify rule draws otherwise than mlx_lm")
        return
    answer = "yes" if result.identical else "no"
    if (difference := result.first_difference) is not None:
        answer += f" (from token {difference.position} on, "
        if difference.gap is None:
            answer += "where one of the two ends)"
        else:
            answer += f"where the logits of the two tokens are {difference.gap:.2g} apart)"
    dtype = f" in {result.dtype}" if result.dtype else ""
    note(f"Identical output: {answer}, compared with {result.reference}{dtype}")
    if result.own_dtype not in (None, result.dtype):
        note(f"By itself mlx_lm computes in {result.own_dtype}: near-ties may fall otherwise")
    if result.window_left_out is not None:
        note(f"mlx_lm leaves out this model's sliding window of {result.window_left_out} tokens")
