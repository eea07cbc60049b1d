"""``specstream-mlx datastore``."""

from pathlib import Path

from ..options.fields import option
from ..options.kinds import PATH
from ..terminal.commands import grouped
from ..terminal.notes import note
from .options import base_model


@grouped()
def datastore(
    *,
    data: Path = option(
        ..., PATH, "Texts, a JSONL file of one of the formats that train takes.", metavar="FILE"
    ),
    datastore: Path = option(..., PATH, "Where to.", metavar="FILE"),
    model: str | None = base_model("The model that is to draft from it. Default: smollm2."),
) -> None:
    """Make the datastore that generate --datastore drafts from.

    It holds the texts' tokens, in the format of REST: six bytes a token.

    [bold]Example[/bold]

    [cyan]  specstream-mlx datastore --model my-model --data answers.jsonl --datastore answers.idx[/cyan]

    [cyan]  specstream-mlx generate --model my-model --datastore answers.idx -p Hello[/cyan]
    """  # noqa: E501
    import numpy as np

    from .. import demonstration
    from ..drafting.datastore import check_place, write_datastore
    from ..loading import model_directory, read_config, read_tokenizer
    from ..terminal.progress import progress
    from ..train.data import read_rows, read_split

    check_place(datastore)  # before anything takes time
    read_rows(data)
    directory = model_directory(demonstration.model_path(model, note))
    config = read_config(directory)
    tokenizer = read_tokenizer(directory, config)
    split = read_split(data, tokenizer, 1 << 40, config["vocab_size"])
    tokens = np.concatenate([np.array(item.tokens) for item in split.items])
    with progress("Sorting"):
        write_datastore(datastore, tokens, config["vocab_size"])
    size = datastore.stat().st_size / 1e6
    note(f"Wrote {len(tokens)} tokens to {datastore} ({size:.1f} MB)")
