"""The cost of stream heads: plain, conditioned on all tokens or on shortlists, of fewer tokens.

    python -m benchmarks.studies.stream_heads
    python -m benchmarks.studies.stream_heads --random-llama 4x2048 --vocabulary 128256

Times a step of the decoder itself, with deferred streams, on a random Llama with a large
vocabulary: a chain of drafts, and the streams of the accepted node, which guess for the next tree.
A conditioned head over all tokens reads the LM head once for each stream; ``shortlists`` read it
once for all streams, and a draft vocabulary has fewer rows to read. All kinds take turns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specstream_mlx import DraftSettings
from specstream_mlx.engine.step import Decoder
from specstream_mlx.hardware import device
from specstream_mlx.models.streams import Streams
from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import TEXT, integer
from specstream_mlx.terminal.commands import program

from ..random_llama import Size, random_llama, untrained_streams
from ..report import OUTPUT, machine_suffix, measured_on, table, write_report
from ..timed_steps import filled_caches, step_milliseconds

MAIN_ROWS, STREAMS, MSA_LAYERS, CONTEXT, RANK, WIDTH = 5, 4, 2, 128, 128, 4
NO_STREAMS = "no streams"

COLUMNS = {
    "head of the streams": "{head}",
    "tokens that may be drafted": "{tokens:,}",
    "ms a step": "{ms:.1f}",
    "over a step without streams": "{more:.1f}",
}


def streams_of(config: Mapping[str, Any], head: str, draft_vocabulary: int) -> Streams:
    """Untrained lossless streams."""
    conditioned = head != "plain"
    return untrained_streams(
        config,
        mode="lossless",
        num_streams=STREAMS,
        num_msa_layers=MSA_LAYERS,
        stream_mlp="adapter",
        stream_adapter_rank=8,
        stream_head="conditioned" if conditioned else "plain",
        stream_head_rank=RANK if conditioned else 0,
        draft_vocabulary=draft_vocabulary,
        pruner_rank=0,
    )


def main(
    llama: str = option("8x1024", TEXT, "Its size.", "--random-llama", metavar="LAYERSxHIDDEN"),
    vocabulary: int = option(128_256, integer(256), "Tokens of the model."),
    draft_vocabulary: int = option(32_768, integer(256), "Tokens of the smaller draft vocabulary."),
    runs: int = option(25, integer(1), "Timed steps of each kind."),
    output: Path = OUTPUT,
) -> None:
    """Time a step with each kind of stream head."""
    size = Size.parse(llama)
    model, config = random_llama(size.layers, size.hidden, vocabulary)
    caches = filled_caches(model, config, CONTEXT)
    kinds: dict[tuple[str, int], tuple[Decoder, DraftSettings]] = {}
    drafts = DraftSettings(tree_width=WIDTH)
    for head in ("plain", "conditioned, all tokens", "conditioned, shortlists"):
        for tokens in (vocabulary, draft_vocabulary):
            streams = streams_of(config, head, tokens if tokens < vocabulary else 0)
            decoder = Decoder(model, streams, caches, shortlists=head.endswith("shortlists"))
            kinds[head, tokens] = decoder, drafts
    kinds[NO_STREAMS, 0] = kinds["plain", vocabulary][0], DraftSettings(num_streams=0)
    found = step_milliseconds(kinds, MAIN_ROWS, runs)
    bare = found[NO_STREAMS, 0]
    rows = [
        {"head": head, "tokens": tokens, "ms": ms, "more": ms - bare}
        for (head, tokens), ms in sorted(found.items(), key=lambda each: each[1])
    ]
    facts = device.describe() | {"llama": llama, "vocabulary": vocabulary}
    about = (
        f"{measured_on(facts)}. Random Llama, {llama}, {vocabulary:,} tokens, tied; {STREAMS} "
        f"deferred streams in {MSA_LAYERS} layers, heads of rank {RANK}, {WIDTH} candidates; a "
        f"chain of {MAIN_ROWS} rows behind {CONTEXT} tokens."
    )
    name = f"stream-heads-{machine_suffix(facts)}"
    lines = [about, "", *table(COLUMNS, rows)]
    print(write_report(output, name, {"facts": facts, "rows": rows}, lines))


if __name__ == "__main__":
    program(main)()
