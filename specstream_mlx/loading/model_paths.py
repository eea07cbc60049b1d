"""Places of models and adapters, found by path, name or repository; MLX is not imported."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import bundled
from ..adapters.description import describe
from ..adapters.user_adapters import user_adapters
from ..errors import UserError, install, naming, shown
from ..files import chosen_files, listed_files, model_headers, read_json, reason, short
from ..heads.published_heads import head_for, heads_of_size, repository_of
from ..models.architectures import check_config, tied_where_untold
from ..models.fingerprint import fingerprint
from ..models.rope import with_changes
from ..options import SamplingOptions, check_arguments, kinds_of

WEIGHTS = "model*.safetensors"

Say = Callable[[str], None]


def adapter_directory(directory: str | Path) -> str | Path:
    """Return an adapter's directory, by its path or else by its name; it may be missing."""
    check_arguments(adapter_path=directory)
    if os.path.exists(directory):
        return directory
    return named_adapters().get(str(directory), directory)


def named_adapters() -> dict[str, Path]:
    """Return the directories of the adapters that have names: bundled ones, then the user's."""
    paths = {name: bundled.adapter_path(name) for name in bundled.adapter_names()}
    added = {name: path for name, path in user_adapters().items() if name not in paths}
    return paths | added


def streams_for(config: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return streams that were trained for a base without a flag naming them, and what they are.

    They are the bundled ones, or one of the user's adapters that contains only streams.
    """
    if (path := bundled.streams_for(config)) is not None:
        return path, "the bundled streams"
    base = fingerprint(config)
    for name, path in user_adapters().items():
        with suppress(UserError):  # a damaged one is none
            adapter = describe(path)
            streams = adapter.stream_config
            fits = streams and streams.mode == "lossless" and streams.base_fingerprint == base
            if fits and not adapter.lora_headers():
                return path, f"the streams {name}"
    return None


def adapter_named(name: str) -> Path:
    """Return the directory of a bundled adapter or one of the user's."""
    known = named_adapters()
    if not known:
        return bundled.adapter_path(name)  # says what this installation lacks
    if name not in known:
        raise UserError(f"there is no adapter {shown(name)}, expected one of {', '.join(known)}")
    return known[name]


def local_directory(path_or_hf_repo: str | Path) -> Path | None:
    """Find the directory of a local model; ``None``: it may be the name of a repository."""
    if not str(path_or_hf_repo).strip():  # pathlib takes '' for the working directory
        raise UserError(f"the model is {path_or_hf_repo!r}, expected a directory or a repository")
    path = Path(path_or_hf_repo)
    if os.path.isdir(path):
        return path
    text = str(path_or_hf_repo)
    if os.path.exists(path):
        made = ", as convert makes of a GGUF file" if text.endswith(".gguf") else ""
        raise UserError(f"the model {text} is a file, expected a directory{made}")
    if not is_repository(text):
        or_hub = "" if os.sep in text else ", and a repository of the hub is named OWNER/NAME"
        raise UserError(f"the model directory {short(text)} does not exist{or_hub}")
    return None


def model_directory(path_or_hf_repo: str | Path, revision: str | None = None) -> Path:
    """Find the directory of a model; a Hugging Face repository is downloaded."""
    if (path := local_directory(path_or_hf_repo)) is not None:
        return path
    patterns = ["*.json", "tokenizer*", "*.jinja", "*.txt"]
    return from_hub("the model", str(path_or_hf_repo), patterns, [WEIGHTS], revision=revision)


def check_prompt_cache_file(path: Path) -> None:
    """Check that a prompt cache file exists."""
    if not os.path.isfile(path):
        problem = "is not a file" if os.path.lexists(path) else "does not exist"
        raise UserError(
            f"the prompt cache file {short(path)} {problem}, expected one that was made before: "
            "mlx_lm.cache_prompt --model MODEL --prompt-cache-file FILE --prompt TEXT makes it"
        )


def check_head(text: str) -> None:
    """Check that a draft head is a directory, or may be a repository, or is ``auto``."""
    if not os.path.isdir(text) and not is_repository(text, "auto"):
        raise UserError(f"the draft head {short(text)} is not a directory, expected one")


def is_repository(text: str, *further: str) -> bool:
    """Whether a text may name a repository, or is one of ``further``."""
    is_name = text.count("/") == 1 and not text.startswith((".", "/", "~")) and "\0" not in text
    return text in further or (is_name and len(text) <= 200)


def from_hub(
    what: str,
    text: str,
    patterns: list[str],
    weights: list[str],
    whole: str = "model.safetensors",
    revision: str | None = None,
) -> Path:
    """Return the snapshot of a repository, downloaded if need be.

    Its weights are those that ``chosen_files`` would choose, and no others are downloaded.
    """
    directory = _snapshot(what, text, [*patterns, f"{whole}.index.json"], revision)
    listed = listed_files(directory, whole)
    directory = _snapshot(what, text, [whole] if listed is None else sorted(listed), revision)
    if listed is None and not (directory / whole).exists():
        directory = _snapshot(what, text, weights, revision)
    return directory


def _snapshot(what: str, text: str, patterns: list[str], revision: str | None) -> Path:
    from huggingface_hub import is_offline_mode, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE forbids to download it"
        obstacle = offline if is_offline_mode() else "the hub cannot be reached"
        raise UserError(
            f"{what} {text} is neither a directory nor complete in the Hugging Face cache, "
            f"and {obstacle}"
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"{what} {text} is neither a directory nor a repository in reach: {reason(error)}"
        ) from None


def head_directory(
    draft_head: str | Path, model: Path, config: Mapping[str, Any], say: Say = lambda _: None
) -> Path:
    """Find the directory of a draft head; a Hugging Face repository is downloaded.

    ``auto`` is the repository of the head that is published for the model.
    """
    if os.path.isdir(draft_head) or not is_repository(text := str(draft_head), "auto"):
        return Path(draft_head)
    if text == "auto":
        head = head_for(model, config)
        if head is None:
            sentence = f"no published EAGLE-3 head is known for {repository_of(model) or model}"
            for other in heads_of_size(config):
                sentence += f"; if it is {other.base}, whose sizes it has: {other.repository}"
            raise UserError(f"{sentence}, expected a head's directory or repository, not 'auto'")
        say(f"Draft head: {head}")
        text = head.repository
    directory = from_hub("the draft head", text, ["config.json"], ["*.safetensors"])
    if any(directory.glob("*.safetensors")):
        return directory
    if find_spec("torch") is None:  # said before a GB is downloaded
        raise UserError(
            f"the draft head {text} is in torch's files, which need torch: {install('torch')}"
        )
    return from_hub("the draft head", text, ["config.json"], ["*.bin"], "pytorch_model.bin")


def read_config(directory: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a model's ``config.json``, with the fields of ``changes`` in place of its own."""
    path = directory / "config.json"
    config = with_changes(read_json(path), changes or {})
    headers = model_headers(chosen_files(directory, WEIGHTS))
    config = tied_where_untold(config, headers)
    with naming(path):
        check_config(config, headers)
    return config


def own_sampling(directory: Path) -> dict[str, Any] | None:
    """Read the sampling options that a model recommends, by name; ``None``: it recommends none."""
    path = directory / "generation_config.json"
    said = read_json(path) if path.exists() else {}
    names = {"temperature": "temp"} | {
        name: name for name in ("top_p", "top_k", "min_p", "repetition_penalty")
    }
    values, kinds = dict[str, Any](), kinds_of(SamplingOptions)
    if said.get("top_k") == -1:  # vLLM's word for all
        del said["top_k"]
    for name, option in names.items():
        if said.get(name) is not None:
            kinds[option].check(f"{path}: {name}", said[name])
            values[option] = said[name]
    if said.get("do_sample") is False:
        return {}
    if said.get("do_sample") or "temp" in values:
        return {"temp": 1.0} | values  # as in transformers
    return None


def weight_files(directory: Path) -> list[Path]:
    """List the safetensors files of a model; one at least, and all that the index lists."""
    files = chosen_files(directory, WEIGHTS)
    if not files:
        sentence = f"{directory} has no model*.safetensors, expected weights in that format"
        if any(directory.glob("pytorch_model*.bin")):
            sentence += (
                ", which transformers makes of pytorch_model*.bin: AutoModelForCausalLM"
                ".from_pretrained(...).save_pretrained(..., safe_serialization=True)"
            )
        raise UserError(sentence)
    return files
