"""What the commands say beside their result: notes and statistics, all on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..generation import GenerationResponse
    from .comparison import Comparison


def note(sentence: str) -> None:
    """One line about what is going on."""
    print(sentence, file=sys.stderr)


@contextmanager
def byte_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing elsewhere.

    Yields:
        What to call with (bytes done, bytes in all).
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def statistics(
    last: "GenerationResponse", drafts: str, verify: str, seed: int | None = None
) -> None:
    """The figures of a finished generation, mlx_lm's in mlx_lm's words.

    Args:
        last: the last response.
        drafts: how it drafted, in a few words.
        verify: the verify rule.
        seed: of what was drawn, if anything was.
    """
    if last.drafted_tokens:
        drafts += f"; {last.accepted_tokens} of {last.drafted_tokens} drafted tokens accepted"
    reduction = last.generation_tokens / last.target_calls
    note("=" * 10)
    note(f"Prompt: {last.prompt_tokens} tokens, {last.prompt_tps:.3f} tokens-per-sec")
    note(f"Generation: {last.generation_tokens} tokens, {last.generation_tps:.3f} tokens-per-sec")
    note(f"Peak memory: {last.peak_memory:.3f} GB")
    note(f"Tree: {drafts}")
    drawn = "" if seed is None else f", seed {seed}"
    lossy = ", LOSSY: the text is not distributed as the model's" if verify == "typical" else ""
    note(f"Verify: {verify}{drawn}{lossy}")
    note(f"Accepted length: {last.accepted_length:.2f} tokens per target call")
    note(
        f"Target calls: {last.target_calls} instead of {last.generation_tokens}, "
        f"call reduction {reduction:.2f}"
    )


def profile(parts: dict[str, dict[str, float]]) -> None:
    """A table of what the parts of a generation took, from ``Profile.report``."""
    note("=" * 10)
    note("Profile: each part is waited for, which other runs do not do, so this one took longer")
    note(f"{'part':<12}{'ms':>10}{'share':>8}{'calls':>8}")
    for name, part in parts.items():
        milliseconds, share = 1e3 * part["seconds"], f"{part['share']:.1%}"
        note(f"{name:<12}{milliseconds:>10.1f}{share:>8}{part['calls']:>8}")


def comparison(result: "Comparison") -> None:
    """Both rates, their ratio, and whether the outputs are the same."""
    note("=" * 10)
    if result.speedup is None:
        note("Rates: none, since a side generated a single token")
    else:
        note(f"mlx_lm: {result.plain_tps:.3f} tokens-per-sec")
        note(f"specstream-mlx: {result.generation_tps:.3f} tokens-per-sec")
        note(
            f"Speedup: {result.speedup:.2f} "
            f"(medians of {result.pairs} interleaved pairs, first token left out)"
        )
    if result.identical is None:
        note("Identical output: not asked, since this verify rule draws otherwise than mlx_lm")
        return
    answer = "yes" if result.identical else "no"
    if result.first_difference is not None:
        answer += f" (from token {result.first_difference.position} on, where the two best tokens' "
        answer += f"scores are {result.first_difference.gap:.2g} apart)"
    note(f"Identical output: {answer}, compared with {result.reference}")
    if result.window_left_out is not None:
        note(f"mlx_lm leaves out this model's sliding window of {result.window_left_out} tokens")
