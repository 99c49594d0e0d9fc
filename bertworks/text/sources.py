"""From what a person names to the files that are read, and what each of them holds.

A source is a file, a folder, a pattern (`*`, `?`, `**`) or `-` for standard input. A folder gives the files whose
ending is known, at any depth, without hidden ones and without links that lead out of it; linked folders are not
entered, so a cycle of links ends. The vocabulary of a model or of prepared data in it is no text, and not read. A file
that is named, or that a pattern matches as the shell would, is read whatever its ending. The list comes sorted by
path, so that neither the shell's locale nor the order of a directory changes a vocabulary made from it.

What a file holds is told by its name and its first bytes: JSON lines, a JSON list, Parquet and a Wikipedia dump are
recognised under any name, and what is plainly no text (a PDF, a picture, an archive, a web page) is refused. Corpora
and the files of tasks follow the same rule.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, NoReturn

from bertworks.errors import UserError
from bertworks.text.compressed import (
    COMPRESSIONS,
    PIECE_BYTES,
    STANDARD_INPUT,
    PackedFile,
    check_installed,
    ending_of_packing,
    open_packed,
)
from bertworks.text.tokenizer_files import CONFIG_FILE, VOCABULARY_FILE

_log = logging.getLogger(__name__)
KINDS = (".txt", ".jsonl", ".json", ".parquet", ".xml")
TABLES = (".csv", ".tsv")
NAMES_OF_KINDS = {
    ".txt": "plain text", ".jsonl": "JSON lines", ".json": "JSON", ".parquet": "Parquet", ".xml": "a Wikipedia dump",
    ".csv": "CSV", ".tsv": "tab-separated text",
}  # fmt: skip
_SAME_KIND = {".ndjson": ".jsonl", ".jsonlines": ".jsonl", ".tab": ".tsv"}
_OTHER_PACKINGS = frozenset(
    (".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".7z", ".rar", ".lz4", ".lzma", ".lz", ".z", ".br")
)
# What a folder may hold besides: if one of its files is not read, the user may wonder why.
_MAYBE_TEXT = frozenset(
    (*TABLES, ".json", ".md", ".rst", ".tex", ".html", ".htm", ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".hwp",
     ".hwpx", ".rtf", ".odt", ".epub", ".arrow", ".zip", ".tar", ".tgz", ".7z")
)  # fmt: skip
_MODULES = {".zst": "zstandard", ".parquet": "pyarrow"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_TEXT = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a zip archive, as .docx, .xlsx, .hwpx, .epub and .npz are"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office or HWP document"),
    (b"{\\rtf", "an RTF document"),
    (b"%!PS", "PostScript"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"ARROW1", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF87a", "a picture"),
    (b"GIF89a", "a picture"),
    (b"\x7fELF", "a program"),
    *((bytes((0x80, version)), "a Python pickle") for version in (2, 3, 4, 5)),
)
_TAR_PLACE, _TAR_SIGNATURE = 257, b"ustar"
_NOT_READ = (
    (b"<!doctype html", "an HTML page", "take its text out first"),
    (b"<html", "an HTML page", "take its text out first"),
    (b"<doc id=", "WikiExtractor's text with tags", "run it with --json, or name the Wikipedia dump itself"),
    (b"<?xml", "XML, but not a Wikipedia dump", "take its text out first"),
)
_TAG_BYTES = 4096
_JSON_STRING = rb'"(?:[^"\\]|\\.)*"'
_JSON_OBJECT_START = re.compile(rb"\{\s*(?:" + _JSON_STRING + rb"\s*:|\})")
_JSON_LIST_START = re.compile(rb"\[\s*(?:\{\s*" + _JSON_STRING + rb"\s*:|" + _JSON_STRING + rb"\s*,|\]\s*$)")


class Form(NamedTuple):
    """How a file is read by its name: its kind (".txt") and its compression (".gz", or "" for none)."""

    kind: str
    compression: str


def form_of_name(path: Path) -> Form:
    """Return what a file's name says; its kind may be any ending, or none."""
    compression = ending_of_packing(path.name)
    kind = os.path.splitext(path.name.lower().removesuffix(compression))[1]
    return Form(_SAME_KIND.get(kind, kind), compression)


def kind_of(file: PackedFile) -> str:
    """Return what an open file holds, by its first bytes and its name: one of KINDS and TABLES.

    Text of an unknown ending is plain text. What is plainly not text raises UserError.
    """
    head, named = file.head(), form_of_name(file.path).kind
    if head.startswith(b"PAR1") or (named == ".parquet" and not file.compression):
        if file.compression or file.path == STANDARD_INPUT:
            raise UserError(f"{file.path} is Parquet, which is read from a file of its own; save or unpack it first")
        check_installed(file.path, _MODULES[".parquet"])
        return ".parquet"
    what = next((what for signature, what in _NOT_TEXT if head.startswith(signature)), "")
    if what or head[_TAR_PLACE:].startswith(_TAR_SIGNATURE):
        raise UserError(f"{file.path} is {what or 'a tar archive'}, not text; take the text out of it first")
    start = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if start.startswith(b"<"):
        tags = start[:_TAG_BYTES].lower()
        if b"<mediawiki" in tags:
            return ".xml"
        for signature, what, advice in _NOT_READ if named != ".xml" else ():
            if tags.startswith(signature):
                raise UserError(f"{file.path} is {what}; {advice}")
    return _json_kind(start, named) or (named if named in (*KINDS, *TABLES) else ".txt")


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


def _json_kind(start: bytes, named: str) -> str:
    """Return ".jsonl" for a record on each line, ".json" for other JSON, or "" for what is plainly neither.

    One value on one line is both; the name decides.
    """
    is_named = named in (".jsonl", ".json")
    if start.startswith(b"["):
        return ".json" if named == ".json" or _JSON_LIST_START.match(start) else ""
    if not _JSON_OBJECT_START.match(start):
        return ""
    lines = [line for line in start.replace(b"\r", b"\n").split(b"\n") if line and not line.isspace()]
    if lines[0].strip() == b"{":
        return ".json"  # an object over several lines
    try:
        is_record = isinstance(json.loads(lines[0].decode(errors="replace")), dict)
    except (ValueError, RecursionError):
        is_record = len(lines) == 1 and len(start) >= PIECE_BYTES  # it may go on
    if len(lines) == 1 and is_record:
        return ".json" if named == ".json" else ".jsonl"
    if not is_record:
        return named if is_named else ""
    # Prose may begin with an example of JSON.
    are_records = sum(line.lstrip().startswith(b"{") for line in lines) > len(lines) // 2
    return ".jsonl" if is_named or are_records else ""


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
    left_out = Counter[str]()
    files = [
        path for path in _walk(Path(os.path.abspath(folder)), left_out) if path.is_file() and _is_inside(root, path)
    ]
    not_read = ", ".join(f"{count:,} {ending}" for ending, count in left_out.most_common())
    if not files:
        more = f"; there are {not_read}, to be named one by one or by a pattern" if not_read else ""
        raise UserError(
            f"{folder} holds no corpus files ({', '.join(KINDS)}, also with {', '.join(COMPRESSIONS)}){more}; "
            "hidden files and links that lead out of a folder are not read"
        )
    if not_read:
        _log.warning("%s: not read: %s; name them, or a pattern, if they are text", folder, not_read)
    return files


def _walk(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    """Yield the corpus files of a folder, and count others that may be text by their endings."""
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        is_model = CONFIG_FILE in names
        for name in names:
            kind, compression = form_of_name(Path(name))
            if name.startswith(".") or (is_model and (name == VOCABULARY_FILE or kind == ".json")):
                continue
            if (
                kind in KINDS
                and not (kind == ".parquet" and compression)
                and not (kind == ".json" and not _is_json_records(Path(parent, name)))
            ):
                yield Path(parent, name)
            elif kind in _MAYBE_TEXT:
                left_out[kind + compression] += 1


def _is_json_records(path: Path) -> bool:
    """Tell whether a JSON file is lines or a list, and not a single object as settings are."""
    if not path.is_file():
        return False
    with open_packed(path) as file:
        start = file.head().removeprefix(_BYTE_ORDER_MARK).lstrip()
    return start.startswith(b"[") or _json_kind(start, ".json") == ".jsonl"


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
    kind, compression = form_of_name(path)
    if kind in _OTHER_PACKINGS or (kind == ".parquet" and compression):
        raise UserError(f"{path} is packed in a form that is not read; unpack it first and name what was inside")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {path}: permission denied")
    if module := _MODULES.get(compression or kind):
        check_installed(path, module)
