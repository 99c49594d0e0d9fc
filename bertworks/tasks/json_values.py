"""JSON from outside, taken apart with a place in every message: `train.json: data[3].paragraphs[0].context`.

JSON's own reader lets through what no dataset means: NaN, lone surrogates, and it gives up with a RecursionError on
deep nesting and a plain ValueError on integers of thousands of digits. Each is a UserError here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bertworks.errors import UserError
from bertworks.tasks.lines import checked_file, decoded
from bertworks.text.compressed import open_packed
from bertworks.text.sources import form_of
from bertworks.text.utf8 import Utf8Decoder

_MAX_FILE_BYTES = 2 << 30  # a parsed file takes some ten times its size, and it is parsed whole
_MAX_NAMES_SHOWN = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KIND_NAMES = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip

_Value = TypeVar("_Value")


def read_json(path: Path) -> Any:
    """Return what a whole JSON file holds."""
    pieces, size = [], 0
    with open_packed(checked_file(path), form_of(path).compression) as file:
        for piece in file.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_FILE_BYTES:
                raise UserError(f"{path} has more than {_MAX_FILE_BYTES >> 30} GiB of JSON; use JSON lines (.jsonl)")
    data = b"".join(pieces).removeprefix(_BYTE_ORDER_MARK)
    return parse_json(decoded(data, path, 1), path, 1)


def is_json_object(path: Path) -> bool:
    """Tell from a JSON file's first bytes whether it holds an object, and not a list."""
    with open_packed(checked_file(path), form_of(path).compression) as file:
        return next(file.pieces(), b"").removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"{")


def parse_json(text: str, path: Path, line: int) -> Any:
    """Parse JSON that starts at a line of a file."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise UserError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise UserError(f"{path}:{line}: JSON nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{path}:{line}: not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def member(record: Any, name: str, kind: type[_Value], where: str) -> _Value:
    """Return an object's value of the wanted kind, or raise UserError with the place."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: {name_kind(record)} where an object with {name!r} is expected")
    if name not in record:
        raise UserError(f"{where}: no {name!r}; there are: {shown_names(record)}")
    return of_kind(record[name], kind, f"{where}.{name}")


def of_kind(value: Any, kind: type[_Value], where: str) -> _Value:
    """Return a value that is of the wanted kind, lone surrogates in it replaced."""
    if type(value) is not kind:
        raise UserError(f"{where}: {name_kind(value)} where {_KIND_NAMES[kind]} is expected")
    return without_surrogates(value) if isinstance(value, str) else value  # type: ignore[return-value]


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and no file can be written with."""
    return Utf8Decoder().without_surrogates(text)


def name_kind(value: Any) -> str:
    """Name the kind of a value in words."""
    return _KIND_NAMES.get(type(value), f"a {type(value).__name__}")


def shown_names(names: Mapping[str, Any]) -> str:
    """List names for a message, none of them long."""
    shown = [repr(str(name)[:40]) for name in list(names)[:_MAX_NAMES_SHOWN]]
    return ", ".join(shown + ["..."] * (len(names) > _MAX_NAMES_SHOWN)) or "none"
