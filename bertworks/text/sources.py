"""From what a person names to the files that are read.

A source is a file, a folder, a pattern (`*`, `?`, `**`) or `-` for standard input. A folder gives the files whose
ending is known, at any depth, without hidden ones and without links that lead out of it; linked folders are not
entered, so a cycle of links ends. The vocabulary of a model or of prepared data in it is no text, and not read. A file
that is named, or that a pattern matches as the shell would, is read whatever its ending: an unknown one is taken for
plain text. The list comes sorted by path, so that neither the shell's locale nor the order of a directory changes a
vocabulary made from it.
"""

import importlib.util
import logging
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, NoReturn

from bertworks.errors import UserError
from bertworks.text.tokenizer_files import CONFIG_FILE, VOCABULARY_FILE

_log = logging.getLogger(__name__)
STANDARD_INPUT = Path("-")
KINDS = (".txt", ".jsonl", ".parquet", ".xml")
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_OTHER_PACKINGS = frozenset(
    (".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".7z", ".rar", ".lz4", ".lzma", ".lz", ".z", ".br")
)
_MODULES = {".zst": "zstandard", ".parquet": "pyarrow"}


class Form(NamedTuple):
    """How a file is read: its kind (".txt") and its compression (".gz", or "" for none)."""

    kind: str
    compression: str


def form_of(path: Path) -> Form:
    """Tell from a file's name how it is read; an unknown ending counts as plain text."""
    form = _form_of_name(path)
    return form if form.kind in KINDS else Form(".txt", form.compression)


def find_files(sources: Sequence[str | os.PathLike[str]], without: Sequence[str | os.PathLike[str]] = ()) -> list[Path]:
    """Return the files that the sources name, absolute, sorted and each once; standard input comes last.

    Those of `without` are left out unless they are named themselves.
    """
    if not sources:
        raise UserError("no corpus was given; name files, folders, patterns, or - for standard input")
    named = {STANDARD_INPUT} if any(os.fspath(source) == "-" for source in sources) else set()
    found: list[Path] = []
    left_out = {os.path.realpath(path) for path in without}
    for source in sources:
        if os.fspath(source) != "-":
            found += _files_of(os.fspath(source), left_out)
    files = _without_duplicates(sorted(found))
    for path in files:
        _check_usable(path)
    return [*files, *named]


def _form_of_name(path: Path) -> Form:
    name = path.name.lower()
    compression = next((ending for ending in COMPRESSIONS if name.endswith(ending)), "")
    return Form(os.path.splitext(name.removesuffix(compression))[1], compression)


def _files_of(source: str, left_out: Container[str]) -> Iterable[Path]:
    path = Path(source)
    try:
        if not path.is_dir() and (path.exists() or not any(character in source for character in "*?[")):
            return [_named_file(path)]
        found = _files_of_folder(path) if path.is_dir() else _files_of_pattern(source)
        return [path for path in found if os.path.realpath(path) not in left_out]
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from error


def _named_file(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; pipe it in and use - for standard input")
    # Absolute but not resolved: a link's name carries the ending that says how the file is read.
    return Path(os.path.abspath(path))


def _files_of_folder(folder: Path) -> list[Path]:
    root = Path(os.path.realpath(folder))
    files = [path for path in _walk(Path(os.path.abspath(folder))) if path.is_file() and _is_inside(root, path)]
    if not files:
        raise UserError(
            f"{folder} holds no corpus files ({', '.join(KINDS)}, also with {', '.join(COMPRESSIONS)}); "
            "hidden files and links that lead out of a folder are not read"
        )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            kind, compression = _form_of_name(Path(name))
            if name == VOCABULARY_FILE and CONFIG_FILE in names:
                continue
            if not name.startswith(".") and kind in KINDS and not (kind == ".parquet" and compression):
                yield Path(parent, name)


def _raise(error: OSError) -> NoReturn:
    raise UserError(f"cannot read {error.filename}: {error.strerror or error}") from error


def _is_inside(root: Path, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(root)


def _files_of_pattern(pattern: str) -> list[Path]:
    parts = Path(pattern).parts
    fixed = tuple(takewhile(lambda part: not any(character in part for character in "*?["), parts))
    base = Path(os.path.abspath(Path(*fixed)))
    moving = [*parts[len(fixed) :], "*"] if parts[-1] == "**" else list(parts[len(fixed) :])
    wants_hidden = any(part.startswith(".") for part in moving)
    try:
        # Path.glob, unlike glob.glob, does not let ** follow links, which may be a cycle.
        matches = [path for path in base.glob("/".join(moving)) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{pattern} is not a usable pattern: {error}") from error
    files = [path for path in matches if wants_hidden or not _is_hidden(path.relative_to(base))]
    if not files:
        raise UserError(f"{pattern} matches no files")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _without_duplicates(files: list[Path]) -> list[Path]:
    seen: dict[str, Path] = {}
    again = [path for path in files if seen.setdefault(os.path.realpath(path), path) is not path]
    if again:
        more = f" and {len(again) - 1:,} more are" if len(again) > 1 else " is"
        _log.warning("%s%s named more than once, and read once; a copy would be read again", again[0], more)
    return list(seen.values())


def _check_usable(path: Path) -> None:
    """Refuse now what would otherwise stop the work after hours of reading the files before it."""
    kind, compression = _form_of_name(path)
    if kind in _OTHER_PACKINGS or (kind == ".parquet" and compression):
        raise UserError(f"{path} is packed in a form that is not read; unpack it first and name what was inside")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {path}: permission denied")
    module = _MODULES.get(compression or kind)
    if module and importlib.util.find_spec(module) is None:
        raise UserError(f"reading {path} needs {module}: pip install 'bertworks[data]'")
