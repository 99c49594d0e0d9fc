"""JSON from outside: the one place where it is parsed, with everything refused that a parser lets through.

Python's own parser ends deep nesting with a RecursionError and integers of thousands of digits with a bare ValueError,
returns integers that no float can hold, and lone surrogates that no file can be written with. Here the first three are
a CorruptFile with file and line, and a lone surrogate becomes U+FFFD. NaN and infinity, which are not JSON but what
Python's writer writes, are refused where the caller is `strict`.

What a parsed value must look like is checked afterwards: of our own records by a class and `config.validate`. Nothing
here needs pydantic, as opening a tokenizer must stay fast.
"""

import json
import re
from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from bertworks.errors import CorruptFile, UserError

MAX_BYTES = 10_000_000  # of a file that describes something; those that hold data have limits of their own
_MAX_DEPTH = 100
_MAX_DIGITS = 300  # a float has room for 308
_LONG_NUMBER = b"0" * _MAX_DIGITS
_MAX_KEY_SHOWN = 60
KIND_NAMES = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}
_AS_ZEROS = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# A backslash that is written twice comes first, as in "\\ud800", which is text; then the pairs, then what has no pair.
_ESCAPES = re.compile(
    r"(?P<kept>\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def read_object(path: Path, *, max_bytes: int = MAX_BYTES, unique: bool = False) -> dict[str, Any]:
    """Return the object that a JSON file holds, or raise UserError with the file and what is wrong.

    Args:
        path: the file.
        max_bytes: how large it may be.
        unique: whether a key that stands twice is an error; else the last one counts.
    """
    content = read_json(path, max_bytes=max_bytes, unique=unique)
    if not isinstance(content, dict):
        raise CorruptFile(f"{path} holds {name_kind(content)}, not an object")
    return content


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, unique: bool = False) -> Any:
    """Return what a JSON file holds, or raise UserError with the file and what is wrong."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # such as a pipe, which would be waited for
            raise UserError(f"cannot read {path}: it is not a regular file")
        with open(path, "rb") as stream:
            data = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > max_bytes:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes; at most {max_bytes:,} are read")
    return parse_json(data, str(path), unique=unique)


def parse_json(data: bytes | str, where: str, *, line: int = 1, strict: bool = False, unique: bool = False) -> Any:
    """Parse JSON, or raise CorruptFile with its place.

    Args:
        data: the JSON.
        where: the name of the file.
        line: that it begins at.
        strict: whether NaN and infinity are errors.
        unique: whether a key that stands twice in an object is one.
    """
    try:
        text = without_surrogates(data.decode(json.detect_encoding(data)) if isinstance(data, bytes) else data)
        raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
        # Only where there may be such a number, as looking at each makes the parser slower.
        has_long = len(raw) > _MAX_DIGITS and _LONG_NUMBER in raw.translate(_AS_ZEROS)
        value = _decoder(strict, unique, has_long).decode(text)
        brackets = raw.translate(None, _NOT_BRACKETS) if len(raw) > _MAX_DEPTH else b""
        # Brackets in texts are counted too, so this only tells that a value need not be looked through.
        if len(brackets) > _MAX_DEPTH and max(accumulate(map(_STEPS.__getitem__, brackets))) > _MAX_DEPTH:
            _check_depth(value)
    except json.JSONDecodeError as error:
        place = f"{where}:{line + error.lineno - 1}"
        raise CorruptFile(f"{place}: not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise CorruptFile(f"{where}:{line}: not JSON: nested too deeply") from error
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not {error.encoding.upper()}"
        raise CorruptFile(f"{where}:{line}: not JSON: {reason}") from error
    except ValueError as error:  # also for integers of more than 4,300 digits
        raise CorruptFile(f"{where}:{line}: not JSON: {error}") from error
    return value


def without_surrogates(text: str) -> str:
    """Replace the escapes of lone surrogates in JSON, which no file can be written with."""
    return _ESCAPES.sub(lambda found: found["kept"] or "\\ufffd", text) if _SURROGATE.search(text) else text


@cache
def _decoder(strict: bool, unique: bool, has_long: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_constant=_refuse_constant if strict else None,
        parse_int=_checked_int if has_long else None,
        object_pairs_hook=unique_keys if unique else None,
    )


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        values = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in values if isinstance(part, dict | list)]
    if level:
        raise RecursionError


def _checked_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, or raise ValueError where a name is in it twice; for json's `object_pairs_hook`."""
    content = dict(pairs)
    if len(content) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key[:_MAX_KEY_SHOWN]!r} is listed twice")
    return content


def name_kind(value: Any) -> str:
    """Name the kind of a parsed value in words."""
    return KIND_NAMES.get(type(value), f"a {type(value).__name__}")
