"""Which shape of lossless streams drafts best? Trained alike, one thing changed at a time.

    python -m benchmarks.studies.stream_shapes --work runs/adapters
    python -m benchmarks.studies.stream_shapes --work runs/adapters --shapes "N_s 6;plain" --seeds 3

Every shape trains on the quantized demonstration base's own greedy output, for as many steps on the
same batches, and is scored on the base's greedy output for texts typed for development: how often
each stream's first choice is right where the tokens before it are, and the accepted length of a
chain of them, which is what exact replay of a chain gives. With ``--timed`` the shapes also decode
the first typed texts of every task, in turns with mlx_lm, with prompt lookup and without. The work
directory is that of ``train_adapters`` after its parts ``base`` and ``streams``, of which the
training text is taken.

Three shapes are more than the package runs: ``next token`` adds a low-rank map of the embedding of
the token behind the row to the streams' seeds, as deferred streams could have it; ``prefix`` gives
each layer keys and values that only streams see, as BiTA (arXiv 2401.12522) does; ``LoRA`` gives
the linear layers above the seed LoRA that only stream rows pass, as gated LoRA (arXiv 2507.11851)
does for its mask tokens.
"""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from specstream_mlx.convert.demo_model.train_adapters import (
    EMBEDDING_RATE,
    MOST_TOKENS,
    typed_outputs,
)
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.backbone import Rope
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_base
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.reference import (
    LowRank,
    SpeculativeStreamingModel,
    Trunk,
    tokens_after,
)
from specstream_mlx.convert.pytorch.trainer import evaluate, is_quick_in_bf16
from specstream_mlx.convert.pytorch.training_data import collate, read_pairs, tokenize
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from torch import Tensor, nn
from transformers import AutoTokenizer

from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.cli.progress import track
from specstream_mlx.config import StreamConfig, UserError
from specstream_mlx.hardware import device
from specstream_mlx.train.items import Batches, Item

from ..adapters_in_turn import alone, drafting_ways
from ..report import RESULTS, Output, measured_on, table, write_report
from ..runner import MLX_LM, Base, Way, interleaved
from ..texts import Texts, chosen_tasks
from ..typed_text import geometric_mean

_TIMED_TOKENS = 96
"""Most tokens of a text that is timed."""


@dataclass(frozen=True)
class Shape:
    """A shape of the streams.

    Attributes:
        num_msa_layers, num_streams, stream_init, init_rank, stream_mlp, adapter_rank, head_rank:
            see ``StreamConfig``; a ``head_rank`` of 0 is a plain head.
        next_rank: rank of the map of the next token's embedding; 0: none.
        prefix: keys and values that only streams see.
        lora_rank: rank of LoRA that only streams pass; 0: none.
    """

    num_msa_layers: int = 3
    num_streams: int = 4
    stream_init: str = "linear"
    init_rank: int = 128
    stream_mlp: str = "base+adapter"
    adapter_rank: int = 64
    head_rank: int = 128
    next_rank: int = 0
    prefix: int = 0
    lora_rank: int = 0

    @property
    def runs(self) -> bool:
        """Whether the package runs such streams."""
        return not (self.next_rank or self.prefix or self.lora_rank)

    def config(self, base: nn.Module, directory: Path) -> StreamConfig:
        """The streams' configuration on a base."""
        return StreamConfig(
            mode="lossless",
            num_msa_layers=self.num_msa_layers,
            num_streams=self.num_streams,
            hidden_size=base.config.hidden_size,
            num_hidden_layers=base.config.num_hidden_layers,
            stream_init=self.stream_init,
            stream_init_rank=self.init_rank if self.stream_init == "linear" else 0,
            value_rotation_epsilon=0.5 if self.stream_init == "value_rotation" else 0.0,
            stream_mlp=self.stream_mlp,
            stream_adapter_rank=0 if self.stream_mlp == "base" else self.adapter_rank,
            stream_head="conditioned" if self.head_rank else "plain",
            stream_head_rank=self.head_rank,
            base_fingerprint=base_fingerprint(directory),
        )


SHAPES: dict[str, Shape] = {
    "as the others, unless said": Shape(),
    "plain": Shape(head_rank=0),
    "plain, N_s 6": Shape(head_rank=0, num_msa_layers=6),
    **{f"N_s {layers}": Shape(num_msa_layers=layers) for layers in (1, 2, 4, 6, 8)},
    **{f"gamma {streams}": Shape(num_streams=streams) for streams in (6, 8)},
    "identity": Shape(stream_init="identity"),
    "value rotation": Shape(stream_init="value_rotation"),
    **{f"seed's rank {rank}": Shape(init_rank=rank) for rank in (8, 32, 384)},
    **{f"MLP {kind}": Shape(stream_mlp=kind) for kind in ("adapter", "base")},
    "no MLP, adapter's rank 8": Shape(stream_mlp="adapter", adapter_rank=8),
    **{f"MLP adapter's rank {rank}": Shape(adapter_rank=rank) for rank in (8, 128)},
    **{f"head's rank {rank}": Shape(head_rank=rank) for rank in (32, 64, 256)},
    "next token": Shape(next_rank=64),
    "plain, next token": Shape(head_rank=0, next_rank=64),
    **{f"prefix {length}": Shape(prefix=length) for length in (8, 16)},
    "LoRA 8": Shape(lora_rank=8),
    "N_s 6, seed's rank 384": Shape(num_msa_layers=6, init_rank=384),
    "N_s 6, seed's rank 384, MLP adapter": Shape(
        num_msa_layers=6, init_rank=384, stream_mlp="adapter"
    ),
    "N_s 6, seed's rank 384, LoRA 8": Shape(num_msa_layers=6, init_rank=384, lora_rank=8),
}


class StreamsLora(nn.Module):
    """A frozen linear layer, with LoRA while ``on`` is set."""

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear, self.on = linear, False
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + self.up(self.down(x)) if self.on else y


class WithExtras(SpeculativeStreamingModel):
    """Streams that may know the next token from the start, or see a prefix of their own.

    Args:
        base: see ``SpeculativeStreamingModel``.
        config: of the streams.
        shape: of the same.
    """

    def __init__(self, base: nn.Module, config: StreamConfig, shape: Shape):
        super().__init__(base, config)
        h = config.hidden_size
        self.next = LowRank(h, shape.next_rank, start_at_zero=True) if shape.next_rank else None
        if self.next is not None:
            seed = self.streams.seed
            self.streams.seed = lambda main: seed(main) + self._next_seed
        facts = base.config
        size = facts.num_key_value_heads, shape.prefix, facts.head_dim
        self.prefix = nn.ParameterDict(
            {
                f"{layer} {part}": nn.Parameter(torch.randn(size) * facts.head_dim**-0.5)
                for layer in range(config.first_msa_layer, config.num_hidden_layers)
                for part in ("keys", "values")
                if shape.prefix
            }
        )
        self.loras: list[StreamsLora] = []
        if shape.lora_rank:
            for layer in self.backbone.layers[config.first_msa_layer :]:
                for block in (layer.self_attn, layer.mlp):
                    for name, linear in list(block.named_children()):
                        if isinstance(linear, nn.Linear):
                            self.loras.append(StreamsLora(linear, shape.lora_rank))
                            setattr(block, name, self.loras[-1])

    def trunk(self, tokens: Tensor, positions: Tensor, valid: Tensor, **options: Any) -> Trunk:
        if self.next is not None:
            known = self.backbone.embedding(tokens_after(tokens, positions, 1))
            normed = F.rms_norm(known, known.shape[-1:], eps=1e-6)
            self._next_seed = self.next(normed)[:, :, None]
        return super().trunk(tokens, positions, valid, **options)

    def stream_rows(
        self, index: int, rope: Rope, keys: Tensor, values: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor | None]:
        if self.prefix:
            own = [self.prefix[f"{index} {part}"] for part in ("keys", "values")]
            length = own[0].shape[1]
            keys, values = (
                torch.cat((part.expand(len(rows), -1, -1, -1), rows), dim=2)
                for part, rows in zip(own, (keys, values), strict=True)
            )
            # The columns move on; the angles stay.
            rope = tuple(F.pad(one, (0, 0, length, 0)) for one in rope)
            *rest, positions = rest
            rest = *rest, positions + length
        for lora in self.loras:
            lora.on = True
        try:
            return super().stream_rows(index, rope, keys, values, *rest)
        finally:
            for lora in self.loras:
                lora.on = False


def train(model: WithExtras, items: list[Item], steps: int, rate: float, seed: int) -> float:
    """Train the streams of a model; returns the seconds that a step took."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    embeddings = [p for name, p in trained.items() if name == "streams.embeddings"]
    others = [p for name, p in trained.items() if name != "streams.embeddings"]
    groups = [{"params": embeddings, "at": EMBEDDING_RATE}, {"params": others, "at": rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    alphas = [0.0] + [1.0] * model.config.num_streams
    batches = Batches(items, 16, seed).from_step(0)
    bf16 = is_quick_in_bf16(torch.device("cpu"))
    began = time.monotonic()
    for step in track(range(steps), "steps"):
        factor = min(1.0, (step + 1) / 10) * (1 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = group["at"] * factor
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = n_gram_loss(model, collate(next(batches)), alphas)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return (time.monotonic() - began) / steps


def items_of(path: Path, model: Path) -> list[Item]:
    """The tokenized items of a file of prompts and completions."""
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    return tokenize(read_pairs(path), tokenizer, None, MOST_TOKENS)


@dataclass
class Result:
    """What became of a shape.

    Attributes:
        name: its name.
        seed: of its weights and batches.
        steps: that it trained.
        seconds: of a step.
        parameters: that it trained.
        streams: how often each stream's first choice is right.
        chain: accepted length of a chain.
    """

    name: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    streams: list[float] = field(default_factory=list)
    chain: float = 0.0


def trained_shape(work: Path, name: str, seed: int, steps: int) -> Path:
    """The directory of a trained shape."""
    return work / "shapes" / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}-{steps}"


def run(
    name: str, work: Path, items: list[Item], typed: list[Item], steps: int, rate: float, seed: int
) -> Result:
    """Train and score a shape, or read the result of an earlier run."""
    shape = SHAPES[name]
    directory = trained_shape(work, name, seed, steps)
    file = directory / "result.json"
    if file.exists():
        return Result(**json.loads(file.read_text()))
    torch.manual_seed(seed)
    base = load_base(work / "expanded")
    model = WithExtras(base, shape.config(base, work / "expanded"), shape)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    seconds = train(model, items, steps, rate, seed)
    with torch.no_grad():
        found = evaluate(model, typed, 16)
    directory.mkdir(parents=True, exist_ok=True)
    if shape.runs:
        write_adapter(model, directory / "adapter")
    result = Result(name, seed, steps, seconds, parameters, found["streams"], found["chain"])
    file.write_text(json.dumps(vars(result)) + "\n")
    return result


def speeds(
    work: Path, names: list[str], steps: int, timed: int, rounds: int
) -> list[dict[str, Any]]:
    """How quickly the shapes that the package runs decode, those of the first seed.

    Args:
        work: the work directory.
        names: of the shapes.
        steps: that they trained.
        timed: typed texts of each task.
        rounds: runs of each text.

    Returns:
        A row for each: its ``name`` and the geometric means over the tasks of its speedup over
        mlx_lm, ``together`` with prompt lookup and ``alone``.
    """
    base, texts = Base(work / "base", _TIMED_TOKENS), Texts("dev", timed)
    plain = base.mount(None)
    tasks = [
        [text.prompt for text in texts.of_task(plain.model, plain.tokenizer, task)]
        for task in chosen_tasks("")
    ]
    all_prompts = [prompt for prompts in tasks for prompt in prompts]
    running = [name for name in names if SHAPES[name].runs]
    ways: dict[str, Way] = {MLX_LM: plain.mlx_lm()}
    for name in running:
        directory = trained_shape(work, name, 0, steps)
        adapter = directory / "mlx"
        if not adapter.exists():
            convert_adapter(directory / "adapter", work / "base", adapter)
        ways |= drafting_ways(base.mount(adapter), adapter, name, all_prompts)
    compared = [interleaved(prompts, ways, rounds) for prompts in tasks]
    return [
        {
            "name": name,
            **{
                key: geometric_mean([one.speedup(way, MLX_LM) for one in compared])
                for key, way in (("together", name), ("alone", alone(name)))
            },
        }
        for name in running
    ]


COLUMNS = {
    "shape": "{name}",
    "seeds": "{seeds}",
    "parameters": "{parameters:,}",
    "right by depth": "{depths}",
    "accepted length": "{chain:.3f}",
    "spread": "{spread}",
    "s / step": "{seconds:.2f}",
}
SPEED_COLUMNS = {
    "shape": "{name}",
    "over mlx_lm": "{together:.2f}x",
    "without lookup": "{alone:.2f}x",
}


def rows_of(results: list[Result]) -> list[dict[str, Any]]:
    """A row for each shape: the means over its seeds."""
    rows = []
    for name in dict.fromkeys(result.name for result in results):
        own = [result for result in results if result.name == name]
        chains = [result.chain for result in own]
        depths = [sum(d) / len(own) for d in zip(*(r.streams for r in own), strict=True)]
        mean = sum(chains) / len(chains)
        spread = math.sqrt(sum((c - mean) ** 2 for c in chains) / max(1, len(chains) - 1))
        rows.append(
            {
                "name": name,
                "seeds": len(own),
                "parameters": own[0].parameters,
                "depths": " ".join(f"{depth:.2f}" for depth in depths),
                "chain": mean,
                "spread": f"{spread:.3f}" if len(own) > 1 else "",
                "seconds": sum(result.seconds for result in own) / len(own),
            }
        )
    return rows


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Work directory of train_adapters.")] = Path(
        "runs/adapters"
    ),
    steps: Annotated[int, typer.Option(help="Training steps of each shape.", min=1)] = 150,
    items: Annotated[int, typer.Option(help="Training items at most.", min=1)] = 3000,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 4e-3,
    only: Annotated[str, typer.Option("--shapes", help="By semicolons; all.")] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each shape.", min=1)] = 1,
    timed: Annotated[int, typer.Option(help="Texts of a task that are timed.", min=0)] = 0,
    rounds: Annotated[int, typer.Option(help="Runs of each timed text.", min=1)] = 3,
    output: Output = RESULTS,
) -> None:
    """Train and compare shapes of lossless streams (resumable)."""
    names = [name.strip() for name in only.split(";") if name.strip()] or list(SHAPES)
    for name in names:
        if name not in SHAPES:
            raise UserError(f"unknown shape {name!r}, expected one of {'; '.join(SHAPES)}")
    path = work / "streams.jsonl"
    if not path.exists():
        raise UserError(f"{path} is missing, expected the part 'streams' of train_adapters")
    training = items_of(path, work / "expanded")[:items]
    typed = items_of(typed_outputs(work), work / "expanded")
    results: list[Result] = []
    facts = (
        f"Lossless streams, N_s 3, gamma 4, linear seeds of rank 128, MLP adapters of rank 64 "
        f"beside the MLP and a conditioned head of rank 128 unless said otherwise; {steps} steps "
        f"of 16 items of all tasks, learning rate {learning_rate:g}. Scored on the base's greedy "
        f"output for {len(typed)} typed texts."
    )
    speed_facts = (
        f"Over mlx_lm on {timed} typed texts a task, {_TIMED_TOKENS} tokens at most, {rounds} "
        f"times each; geometric mean over the tasks; {measured_on(device.describe())}."
    )

    def report(faster: list[dict[str, Any]]) -> str:
        rows = rows_of(results)
        lines = [facts, "", *table(COLUMNS, rows)]
        if faster:
            lines += ["", speed_facts, "", *table(SPEED_COLUMNS, faster)]
        summary = {"facts": facts, "results": [vars(one) for one in results], "rows": rows}
        return write_report(output, "stream-shapes", summary | {"speeds": faster}, lines)

    text = ""
    for seed in range(seeds):
        for name in track(names, f"shapes, seed {seed}"):
            results.append(run(name, work, training, typed, steps, learning_rate, seed))
            text = report([])
    if timed:
        text = report(speeds(work, names, steps, timed, rounds))
    print(text)


if __name__ == "__main__":
    typer.run(main)
