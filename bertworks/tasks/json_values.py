"""JSON of datasets, taken apart with a place in every message: `train.json: data[3].paragraphs[0].context`."""

from pathlib import Path
from typing import Any, TypeVar

from bertworks.errors import UserError, shown_names
from bertworks.json_files import KIND_NAMES, name_kind, parse_json
from bertworks.tasks.lines import checked_file, decoded
from bertworks.text.compressed import open_packed
from bertworks.text.sources import kind_of

_MAX_FILE_BYTES = 2 << 30  # a parsed file takes some ten times its size, and it is parsed whole
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Value = TypeVar("_Value")


def read_json(path: Path) -> Any:
    """Return what a whole JSON file holds."""
    pieces, size = [], 0
    with open_packed(checked_file(path)) as file:
        kind_of(file)
        for piece in file.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_FILE_BYTES:
                raise UserError(f"{path} has more than {_MAX_FILE_BYTES >> 30} GiB of JSON; use JSON lines (.jsonl)")
    data = b"".join(pieces).removeprefix(_BYTE_ORDER_MARK)
    return parse_json(decoded(data, path, 1), str(path), strict=True)


def is_json_object(path: Path) -> bool:
    """Tell from a JSON file's first bytes whether it holds an object, and not a list."""
    with open_packed(checked_file(path)) as file:
        return file.head().removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"{")


def member(record: Any, name: str, kind: type[_Value], where: str) -> _Value:
    """Return an object's value of the wanted kind, or raise UserError with the place."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: {name_kind(record)} where an object with {name!r} is expected")
    if name not in record:
        raise UserError(f"{where}: no {name!r}; there are: {shown_names(record)}")
    return of_kind(record[name], kind, f"{where}.{name}")


def of_kind(value: Any, kind: type[_Value], where: str) -> _Value:
    """Return a value that is of the wanted kind."""
    if type(value) is not kind:
        raise UserError(f"{where}: {name_kind(value)} where {KIND_NAMES[kind]} is expected")
    return value
