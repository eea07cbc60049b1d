"""Files: input is checked as it is read; output appears complete or not at all.

Any error in a file becomes a ``UserError``, one sentence that names the file.
"""

import codecs
import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from .errors import UserError, shown
from .options import NUMBER

if TYPE_CHECKING:
    import mlx.core as mx

Headers = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of tensors by name; the dtype as safetensors writes it, such as ``BF16``."""

_MOST_DIGITS = 38  # of an integer, which then fits a float32 too

_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_READ_IF_THERE = ("chat_template.jinja", "chat_template.json", "tokenizer.json", "tokenizer.model")
_TEXTS = (".json", ".jinja", ".txt")  # what libraries read as text

_OF_PYTHON = re.compile(
    r"NoneType|object has no attribute|subscriptable|positional argument|keyword argument"
    r"|\b0x[0-9a-f]{8,}|is not iterable|not callable|unhashable|<class '|not supported between"
    r"|unsupported operand|incompatible function arguments|indices must be|must be a mapping"
    r"|not JSON serializable|local variable|dict_keys|mlx\.core\."
    r"|\b(Type|Key|Attribute|Index|Value|Runtime)Error\b"
)


def reason(error: BaseException, limit: int = 160) -> str:
    """The reason of another library's error: its first sentence, without its advice."""
    if "trust_remote_code" in str(error):
        return "it asks for code that comes with it, which is never run"
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"it lacks {shown(error.args[0])}"
    if isinstance(error, TypeError | AttributeError | LookupError) or _OF_PYTHON.search(str(error)):
        return "a value in it is of another kind than is expected there"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = " ".join(said.strip().partition("\n")[0].split()).partition(". ")[0]
    text = re.sub(r"^\[\w+\] ", "", text)  # a function's name, as MLX has it
    text = text.rstrip(".:") or "it gives no reason"
    return text if len(text) <= limit else f"{text[:limit]} ..."


def short(path: str | Path, limit: int = 400) -> str:
    """A path as text for a sentence; one that is too long for any file is cut."""
    text = str(path)
    return text if len(text) <= limit else f"{text[:limit]} .."


def template_error(error: Exception) -> UserError:
    """The ``UserError`` for any exception of a tokenizer's chat template."""
    return UserError(f"the tokenizer's chat template fails: {reason(error)}")


def check_tokens(where: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Check that a model has these tokens; for others MLX would read arbitrary memory."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise UserError(
            f"{where} holds token {shown(wrong)}, the model's are 0 to {vocab_size - 1}"
        )


def read_text(path: Path) -> str:
    """Read a UTF-8 file without its signature, if it has one; its line ends stay."""
    try:
        return without_signature(_read(path)).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: see byte {error.start}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{short(path)} cannot be read: {error.strerror}") from None
    except ValueError:  # a zero byte
        raise _no_name(path) from None


def real_path(path: str | Path) -> Path:
    """Follow all links of a path; what it leads to may be missing."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a zero byte
        raise _no_name(path) from None


def _no_name(path: str | Path) -> UserError:
    return UserError(f"{short(path)!r} is no name of a file")


def without_signature(text: bytes) -> bytes:
    """The bytes of a text without the UTF-8 signature that some editors put at the head of one."""
    return text.removeprefix(codecs.BOM_UTF8)


def prompt_text(path: Path) -> str:
    """Read a file's text that a model is to read."""
    return decoded(_read(path), str(path))


def decoded(text: bytes, origin: str) -> str:
    """Decode a text to be read by a model, without newlines at its end."""
    text = without_signature(text)
    try:
        characters = text.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{origin} is not UTF-8 text: byte {text[error.start]:#04x} at {error.start}"
        ) from None
    if not characters.strip():
        raise UserError(f"the prompt from {origin} is empty, expected some text")
    return characters


def prompt_lines(path: Path) -> list[str]:
    """Read the prompts in a file, one a line."""
    lines = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise UserError(f"{path} is empty, expected a prompt on each line")
    return prompts


def parse_json(text: str, where: str | Path) -> Any:
    """Parse a JSON value whose numbers are finite."""

    def integer(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise UserError(f"{where} has a number of {len(digits)} digits, expected fewer")
        return int(digits)

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise UserError(f"{where} has the number {digits[:40]}, expected a finite one")
        return value

    try:
        return json.loads(text, parse_int=integer, parse_float=number, parse_constant=number)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply, expected plain JSON") from None
    except json.JSONDecodeError as error:
        place = f"column {error.colno}"
        if "\n" in text:
            place = f"line {error.lineno}, {place}"
        raise UserError(f"{where} is not valid JSON: {error.msg} at {place}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    values = parse_json(read_text(path), path)
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {json_kind(values)}, expected a JSON object")
    return values


def json_kind(value: Any) -> str:
    """What a JSON value is, as a part of a sentence."""
    kinds: dict[type, str] = {str: "a text", bool: "true or false", int: "a number"}
    kinds |= {float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    r"""Number and value of each line that is not blank; lines end in ``\n`` alone, as in JSON."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, parse_json(line, f"{path}, line {number}")


@contextmanager
def tokenizer_files(directory: Path) -> Iterator[Path]:
    """Yield a tokenizer's directory as a library should find it; any error becomes one sentence."""
    for name in _TOKENIZER_FILES:
        if os.path.lexists(path := directory / name):
            values = read_json(path)
            NUMBER.check(f"{path}: model_max_length", values.get("model_max_length", 0))
            if not isinstance(kind := values.get("tokenizer_class") or "", str):
                raise UserError(
                    f"{path}: tokenizer_class is {shown(kind)}, expected the name of a class"
                )
    for name in _READ_IF_THERE:
        if os.path.islink(path := directory / name) and not os.path.exists(path):
            raise UserError(f"{path} is a link to nothing, expected a file or none")
        if path.suffix == ".jinja" and path.is_file() and "\0" in read_text(path):
            raise UserError(f"{path} holds zero bytes, expected UTF-8 text")  # UTF-16 has them
    with for_libraries(directory) as readable:
        try:
            yield readable
        except Exception as error:  # transformers and tokenizers raise many types
            large = directory / "tokenizer.json"
            if os.path.lexists(large):
                read_json(large)
            why = reason(error).replace(str(readable), str(directory))
            raise UserError(f"{directory}: the tokenizer cannot be read: {why}") from None


def tensor_headers(path: Path) -> Headers:
    """Read shape and dtype of every tensor of a safetensors file, but not the tensors."""
    if not os.path.isfile(path):
        problem = "is not a file" if os.path.lexists(path) else "is missing"
        raise UserError(f"{path} {problem}")
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a complete safetensors file ({reason(error)}); "
            "expected one that is neither truncated nor of another format"
        ) from None


def chosen_files(directory: Path, *patterns: str, whole: str = "model.safetensors") -> list[Path]:
    """List a directory's weights among the files of some patterns; empty without such files.

    As for transformers, those are the ones that an index lists; without one ``whole``, the file of
    all tensors, if it is there, else every file. Others are of an older upload, or a variant.
    """
    files = sorted(path for pattern in patterns for path in directory.glob(pattern))
    listed = listed_files(directory, whole)
    if not files or listed is None:
        return [file for file in files if file.name == whole] or files
    missing = sorted(listed - {file.name for file in files})
    if missing:
        raise UserError(f"{directory} lacks {shown(missing[0])}, which {whole}.index.json lists")
    return [file for file in files if file.name in listed]


def listed_files(directory: Path, whole: str = "model.safetensors") -> set[str] | None:
    """Read the names of the files that a directory's index lists; ``None``: it has no index."""
    index = directory / f"{whole}.index.json"
    if not os.path.lexists(index):
        return None
    listed = read_json(index).get("weight_map")
    if not (
        isinstance(listed, dict) and listed and all(isinstance(v, str) for v in listed.values())
    ):
        raise UserError(f"{index} has no weight_map, expected names of files by tensor")
    return set(listed.values())


@contextmanager
def for_libraries(directory: Path, *patterns: str) -> Iterator[Path]:
    """Yield a directory as a library should find it, which reads all that is there as it is.

    That is the directory itself, or one of links: without files of ``patterns`` that are not chosen
    (see ``chosen_files``), and with texts that have no signature.
    """
    left_out = {path for pattern in patterns for path in directory.glob(pattern)}
    left_out -= set(chosen_files(directory, *patterns))
    more = "additional_chat_templates"
    found = [*directory.glob("*"), *directory.glob(f"{more}/*")]
    texts = [path for path in found if path.suffix in _TEXTS and path.is_file()]
    if not left_out and not any(map(_has_signature, texts)):
        yield directory
        return
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for path in found:
            place = scratch / path.relative_to(directory)
            if path in texts:
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(without_signature(_read(path)))
            elif path not in left_out and path.parent == directory and path.name != more:
                place.symlink_to(path.absolute())
        yield scratch


def _has_signature(path: Path) -> bool:
    with path.open("rb") as file:
        return not without_signature(file.read(3)) and path.stat().st_size > 2


def model_headers(files: Sequence[Path]) -> Headers:
    """Read shape and dtype of every tensor of a model's weight files; empty without files."""
    headers: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in files:
        own = tensor_headers(file)
        for name in headers.keys() & own.keys():
            raise UserError(
                f"{file} and another file of {file.parent} both hold {name}, expected one of them, "
                "or an index that lists the model's files"
            )
        headers |= own
    if files and not headers:
        raise UserError(f"{files[0]} has no tensor, expected a model's weights")
    return headers


def read_arrays(path: Path) -> "dict[str, mx.array]":
    """Read a safetensors file as MLX arrays by name, and check that floats are finite."""
    arrays = _lazy_arrays(path)
    _refuse(path, not_finite(arrays))
    return arrays


def check_finite(path: Path, count: Callable[[int], None] = lambda _: None) -> None:
    """Check a safetensors file tensor by tensor; ``count`` gets the bytes of each step."""
    arrays = _lazy_arrays(path)
    count(path.stat().st_size - sum(tensor.nbytes for tensor in arrays.values()))
    while arrays:
        name, tensor = arrays.popitem()
        _refuse(path, not_finite({name: tensor}))
        count(tensor.nbytes)


def _lazy_arrays(path: Path) -> "dict[str, mx.array]":
    import mlx.core as mx

    tensor_headers(path)
    try:
        return dict(mx.load(str(path)))  # type: ignore[arg-type]  # a dictionary, of this format
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None


def _refuse(path: Path, name: str | None) -> None:
    if name is not None:
        raise UserError(f"{path}: {name} holds NaN or infinity, expected finite numbers")


def not_finite(arrays: "Mapping[str, mx.array]") -> str | None:
    """Find the first array that holds NaN or infinity, by sums, which are fast; evaluates all."""
    import mlx.core as mx

    floats = {n: array for n, array in arrays.items() if mx.issubdtype(array.dtype, mx.floating)}
    sums = {name: mx.isfinite(array.sum()) for name, array in floats.items()}
    mx.eval(list(arrays.values()), sums)
    for name, finite in sums.items():
        if not finite.item() and not mx.isfinite(floats[name]).all().item():
            return name
    return None


def sampled_digest(files: Sequence[Path], samples: int = 64, length: int = 4096) -> str:
    """Return a short digest of files: their sizes, and samples of what they hold."""
    digest = sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for number in range(samples):
                file.seek(max(0, size - length) * number // (samples - 1))
                digest.update(file.read(length))
    return digest.hexdigest()[:16]


def check_tensors(
    path: Path,
    found: Headers,
    expected: Mapping[str, tuple[int, ...]],
    integers: Collection[str] = (),
) -> None:
    """Compare a file's tensors with the expected ones; all but ``integers`` are of floats."""
    check_shapes(path, {name: shape for name, (shape, _) in found.items()}, expected)
    for name, (_, dtype) in found.items():
        allowed = ("I32",) if name in integers else ("F32", "F16", "BF16")
        if dtype not in allowed:
            raise UserError(f"{path}: {name} has dtype {dtype}, expected one of {allowed}")


def check_shapes(
    path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare the shapes of a file's tensors, by name, with the expected ones."""
    for name, shape in expected.items():
        if name not in found:
            raise UserError(f"{path} has no tensor {name}, expected one of shape {shape}")
        if found[name] != shape:
            raise UserError(f"{path}: {name} has shape {found[name]}, expected {shape}")
    unknown = sorted(set(found) - set(expected))
    if unknown:
        raise UserError(f"{path} has an unexpected tensor {unknown[0]}")


OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_WRITING = re.compile(r"FileWriter|Unable to write|failed writing|while writing")
_FULL = 2**20  # bytes free on a disk that is taken for full
_PATIENCE = 60.0  # seconds to wait for another process that writes the same


@contextmanager
def staged_directory(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty directory next to ``target`` that takes its place when the block ends.

    If the block raises or is interrupted, ``target`` stays as it was. What a killed process leaves
    is hidden, and removed by the next call. Of a link the destination is meant.
    """
    with _scratch(target) as (scratch, place):
        yield scratch
        if place.exists() and (not replace or not place.is_dir()):
            raise _taken(target)
        replaced = _hidden_sibling(place, "replaced")
        try:
            if place.exists():
                place.rename(replaced)
            scratch.rename(place)
        finally:
            _settle(replaced, place)


@contextmanager
def staged_file(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path that ends in ``target``'s name and replaces it at the end of the block."""
    with _scratch(target) as (scratch, place):
        if place.exists() and not place.is_file():
            raise UserError(f"{target} is a directory or a device, expected a file to replace")
        yield scratch / place.name
        if place.exists() and not replace:
            raise _taken(target)
        os.replace(scratch / place.name, place)


def append(path: Path, text: str) -> None:
    """Append text to a file, all of it or nothing."""
    data = text.encode()
    try:
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(data) < len(data):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def other_file(directory: Path, expected: re.Pattern[str]) -> Path | None:
    """Find a file or link in ``directory`` that is not ``expected``."""
    for parent, directories, files in os.walk(directory):
        directories.sort()
        links = [name for name in directories if (Path(parent) / name).is_symlink()]
        for name in sorted(files + links):
            path = (Path(parent) / name).relative_to(directory)
            # macOS leaves .DS_Store wherever somebody looked
            if name != ".DS_Store" and not expected.fullmatch(path.as_posix()):
                return path
    return None


@contextmanager
def _scratch(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a hidden empty directory, gone when the block ends, and what ``target`` points to."""
    from filelock import FileLock, Timeout

    place = real_path(target)
    scratch = _hidden_sibling(place, "partial")
    locks = Path(tempfile.gettempdir()) / f"specstream-mlx-{os.getuid()}"
    try:
        if os.path.islink(place):  # the destination is meant, and it has none: a link to itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        place.parent.mkdir(parents=True, exist_ok=True)
        locks.mkdir(mode=0o700, exist_ok=True)
        name = sha256(os.fsencode(place)).hexdigest()[:24]
        with FileLock(locks / name, timeout=_PATIENCE):
            try:
                shutil.rmtree(scratch, ignore_errors=True)  # what a killed process has left
                _settle(_hidden_sibling(place, "replaced"), place)
                scratch.mkdir()
                yield scratch, place
            except (OSError, UserError):
                raise
            except Exception as error:  # MLX's and other libraries' do not say why
                if (refused := _refused_write(error, scratch)) is not None:
                    raise refused from None
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except Timeout:
        raise UserError(f"{target} is being written by another process") from None
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}") from None


def _refused_write(error: Exception, scratch: Path) -> OSError | None:
    """Find out why a library could not write, by writing more; ``None``: nothing is in the way.

    A quota or a limit on the size of files may be, where the disk has room.
    """
    number = re.search(r"\(os error (\d+)\)", str(error))  # Rust's: tokenizers', safetensors'
    if number and int(number[1]) in OF_WRITING:
        return OSError(int(number[1]), os.strerror(int(number[1])))
    if "No space left" in str(error) or shutil.disk_usage(scratch).free < _FULL:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    files = [path for path in scratch.rglob("*") if path.is_file()]
    end = max((path.stat().st_size for path in files), default=0)
    try:
        with (scratch / "more").open("wb", buffering=0) as file:
            file.seek(end)  # as far as the largest file reaches, where a limit would be
            if file.write(bytes(_FULL)) < _FULL:
                file.write(bytes(_FULL))  # says why
    except OSError as refused:
        return refused
    return OSError(f"a library says: {reason(error)}") if _WRITING.search(str(error)) else None


def _taken(target: Path) -> UserError:
    return UserError(f"{target} exists already, expected a name that nothing else is written to")


def _hidden_sibling(place: Path, what: str) -> Path:
    return place.with_name(f".{place.name}.{what}")


def _settle(replaced: Path, target: Path) -> None:
    """Remove the directory that ``target`` replaced, or put it back if ``target`` never came."""
    if not replaced.exists():
        return
    if target.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(target)
