"""Contents of a saved package: the sizes, the adapters and the base's tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, get_args

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx.errors import Mode, UserError, check_integer, shown
from specstream_mlx.files import parse_json, reason
from specstream_mlx.loading import read_tokenizer

from .package import FORMAT_VERSION, METADATA, SUPPLIED, adapters_directory
from .saved import read_spec
from .supported import Sizes, check_names


@dataclass(frozen=True)
class ExportedAdapter:
    """An adapter of a package.

    Attributes:
        name: before its functions' names.
        num_streams: that run beside every node; 0: there are none.
        mode: mode of the streams; ``lossless`` without.
        stream_head: ``conditioned`` streams know the token before them.
        prompt_template: the instruction around the user's ``{text}``.
    """

    name: str
    num_streams: int = 0
    mode: Mode = "lossless"
    stream_head: str = "plain"
    prompt_template: str | None = None


@dataclass(frozen=True)
class Contents:
    """A package's own description.

    Attributes:
        path: the package.
        sizes: fixed shapes.
        sampling: whether there are ``logits<n>`` and ``draft``.
        adapters: by name.
        vocab_size: tokens of the base.
        end_tokens: that end a text.
        fingerprint: of the base's architecture.
        tokenizer: the directory beside the package.
        supplied: the directory beside the package of what its functions are to be given of an
            adapter; ``None``: they hold it.
        elements: of what one adapter has there.
    """

    path: Path
    sizes: Sizes
    sampling: bool
    adapters: Mapping[str, ExportedAdapter]
    vocab_size: int
    end_tokens: tuple[int, ...]
    fingerprint: str
    tokenizer: Path
    supplied: Path | None = None
    elements: int = 0

    @classmethod
    def read(cls, path: str | Path) -> "Contents":
        """Read the metadata of a package.

        Raises:
            UserError: there is no package, or it was not written by ``export-coreml``.
        """
        path = Path(path)
        spec = read_spec(path)
        said = parse_json(_metadata(path, spec), path)
        if not isinstance(said, dict) or said.get("version") != FORMAT_VERSION:
            found = shown(said.get("version") if isinstance(said, dict) else said)
            raise UserError(f"{path} has the version {found}, expected {FORMAT_VERSION}")
        try:
            contents = cls._of(path, said)
            contents._check_functions({f.name: f.state for f in spec.description.functions})
            return contents
        except UserError as error:
            found = str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {reason(error)}"
        raise UserError(
            f"{path}: the metadata is damaged ({found}), expected that of export-coreml"
        )

    @classmethod
    def _of(cls, path: Path, said: Mapping[str, Any]) -> "Contents":
        sizes, base, supplied = said["sizes"], said["base"], said.get("supplied")
        if not said["adapters"]:
            raise ValueError("there are no adapters")
        check_names(list(said["adapters"]))
        for name in ("context", "chunk", "candidates"):
            check_integer(name, sizes[name])
        for count in sizes["nodes"]:
            check_integer("nodes", count)
        check_integer("vocab_size", base["vocab_size"])
        for token in base["end_tokens"]:
            check_integer("end_tokens", token, least=0)
        if Path(said["tokenizer"]).name != said["tokenizer"]:
            raise UserError(f"tokenizer is {shown(said['tokenizer'])}")
        return cls(
            path=path,
            sizes=Sizes(
                sizes["context"], tuple(sizes["nodes"]), sizes["chunk"], sizes["candidates"]
            ),
            sampling=said["sampling"],
            adapters={name: _adapter(name, of) for name, of in said["adapters"].items()},
            vocab_size=base["vocab_size"],
            end_tokens=tuple(base["end_tokens"]),
            fingerprint=base["fingerprint"],
            tokenizer=path.parent / said["tokenizer"],
            supplied=adapters_directory(path) if supplied else None,
            elements=sum(prod(shape) for _, shape in supplied["arrays"]) if supplied else 0,
        )

    def _check_functions(self, states: Mapping[str, Sequence[Any]]) -> None:
        """Check that the program has the functions and the rows that are said of it."""
        for adapter in self.adapters.values():
            names = [f"prefill{self.sizes.chunk}"]
            for count in self.sizes.nodes:
                names += [f"step{count}", *([f"logits{count}"] if self.sampling else [])]
            if self.sampling and adapter.num_streams:
                names.append("draft")
            for name in names:
                full = f"{self.functions_of(adapter.name)}_{name}"
                if full not in states:
                    raise UserError(f"there is no function {full}")
                for state in states[full]:
                    if self.sizes.rows not in state.type.stateType.arrayType.shape:
                        raise UserError(f"{state.name} has other rows than {self.sizes.rows}")

    def adapter(self, name: str | None = None) -> ExportedAdapter:
        """One of the adapters."""
        there = f"{self.path} has {', '.join(self.adapters)}"
        if name is None and len(self.adapters) > 1:
            raise UserError(f"no adapter was named, expected one of several: {there}")
        if name is None:
            return next(iter(self.adapters.values()))
        if name not in self.adapters:
            raise UserError(f"the adapter is {shown(name)}, expected one of the package's: {there}")
        return self.adapters[name]

    def functions_of(self, adapter: str) -> str:
        """The beginning of the names of an adapter's functions."""
        return SUPPLIED if self.supplied else adapter

    def read_supplied(self, adapter: str) -> dict[str, np.ndarray]:
        """The inputs that hold an adapter, by name: none, or ``adapter`` (elements,) float16.

        Raises:
            UserError: its file is missing or of another length.
        """
        if self.supplied is None:
            return {}
        file = self.supplied / f"{adapter}.bin"
        if not file.is_file():
            raise UserError(f"{file} is missing, expected the adapter's arrays beside {self.path}")
        if file.stat().st_size != 2 * self.elements:
            raise UserError(
                f"{file} has {file.stat().st_size:,} bytes, expected {2 * self.elements:,}"
            )
        return {"adapter": np.fromfile(file, np.float16)}

    def read_tokenizer(self) -> TokenizerWrapper:
        """The tokenizer beside the package."""
        if not self.tokenizer.is_dir():
            raise UserError(
                f"{self.tokenizer} is missing, expected the tokenizer's directory beside "
                f"{self.path}"
            )
        return read_tokenizer(self.tokenizer, {"eos_token_id": list(self.end_tokens)})


def _metadata(path: Path, spec: Any) -> str:
    """Our part of a package's metadata."""
    found = dict(spec.description.metadata.userDefined)
    if METADATA not in found:
        raise UserError(
            f"{path} has no metadata called {METADATA!r}, expected a package of export-coreml"
        )
    return found[METADATA]


def _adapter(name: str, said: Mapping[str, Any]) -> ExportedAdapter:
    """An adapter as the metadata describes it."""
    fields = ("num_streams", "mode", "stream_head", "prompt_template")
    found = ExportedAdapter(name, **{key: said[key] for key in fields if key in said})
    check_integer(f"num_streams of {name}", found.num_streams, least=0)
    for field, choices in (("mode", get_args(Mode)), ("stream_head", ("plain", "conditioned"))):
        if getattr(found, field) not in choices:
            raise UserError(f"{field} of {name} is {shown(getattr(found, field))}")
    if not isinstance(found.prompt_template, str | None):
        raise UserError(f"prompt_template of {name} is {shown(found.prompt_template)}")
    return found
