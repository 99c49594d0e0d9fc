"""What is wrong with settings, in words for a person: pydantic's errors, keys that nobody knows, odd values."""

import re
import reprlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

# What a person is told for each kind of pydantic error; other kinds keep pydantic's own words.
_RULES = {
    "int_type": "{given} is not a whole number",
    "float_type": "{given} is not a number",
    "finite_number": "{given} is not a finite number",
    "bool_type": "{given} is neither true nor false",
    "string_type": "{given} is not text",
    "literal_error": "{given} is not allowed; choose {expected}",
    "greater_than_equal": "{given} is too small; at least {ge}",
    "greater_than": "{given} is too small; more than {gt}",
    "less_than_equal": "{given} is too large; at most {le}",
    "less_than": "{given} is too large; less than {lt}",
    "model_type": "{given} is not a section; set its keys one by one",
    "dict_type": "{given} is not an object",
    "list_type": "{given} is not a list",
    "tuple_type": "{given} is not a list",
    "too_short": "{given} is too short; at least {min_length}",
    "too_long": "{given} is too long; at most {max_length}",
    "missing": "not set; it has no default",
    "value_error": "{error}",
}

# How pydantic calls the kinds that a value may be of, in the place of an error, where the key of an object is too.
_BRANCH_NAME = re.compile(
    r"(constrained-)?(int|float|str|bool)|(literal|list|tuple|dict|function-\w+)\[.*\]", re.DOTALL
)
# What a value is not, of a key that may be one of several kinds.
_BRANCHES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "literal_error": "{expected}",
}


def explain_all(errors: Sequence[ErrorDetails], known: Mapping[str, bool]) -> list[str]:
    """Say what is wrong; of a key that may be one of several kinds pydantic tells each kind, and a person reads one."""
    by_key: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        path = error["loc"]
        is_value = known.get(".".join(map(str, path[:-1])), False)
        is_branch = path and is_value and _BRANCH_NAME.fullmatch(str(path[-1])) is not None
        by_key.setdefault(path[:-1] if is_branch else path, []).append(error)
    return [_explain_key(path, found, known) for path, found in by_key.items()]


def _explain_key(path: tuple[str | int, ...], errors: Sequence[ErrorDetails], known: Mapping[str, bool]) -> str:
    for error in errors:
        if len(errors) == 1 or error["type"] not in _BRANCHES:  # of the right kind, but not a value that is allowed
            return _explain({**error, "loc": path}, known)
    kinds = [_BRANCHES[error["type"]].format(**error.get("ctx", {})) for error in errors]
    return f"{_show_key(path)}: {shorten(errors[0]['input'])} is neither {' nor '.join(kinds)}"


def _explain(error: ErrorDetails, known: Mapping[str, bool]) -> str:
    if error["type"] == "extra_forbidden":
        return unknown_key(error["loc"], known)
    given = shorten(error["input"])
    rule = _RULES.get(error["type"])
    if error["type"] == "model_type" and not error["ctx"]["class_name"].endswith("Settings"):
        rule = _RULES["dict_type"]  # of a file in JSON, not of a recipe
    said = rule.format(given=given, **error.get("ctx", {})) if rule else f"{given}: {error['msg']}"
    return f"{_show_key(error['loc'])}: {said}"


def unknown_key(path: Sequence[str | int], known: Mapping[str, bool]) -> str:
    """Name the nearest key of the same section, else of any; compared without the section, which would drown a typo."""
    beside = [key for key in known if key.split(".")[:-1] == list(path[:-1])]
    for candidates in (beside, list(known)):
        by_name = {key.rpartition(".")[2]: key for key in candidates}
        if hint := nearest(str(path[-1]), by_name):
            return f"{_show_key(path)}: unknown key{hint}"
    sections = [key for key in known if "." not in key]
    return f"{_show_key(path)}: unknown key (known: {', '.join(beside or sections)})"


def nearest(given: str, by_name: Mapping[str, str]) -> str:
    """Return " (did you mean 'x'?)", x being what stands for the nearest name; "" where none is near."""
    found = get_close_matches(given.lower(), by_name, n=1)
    return f" (did you mean {by_name[found[0]]!r}?)" if found else ""


def _show_key(path: Sequence[str | int]) -> str:
    """Join the parts of a key; one that is not plain is quoted and shortened, for it may hold a line break or worse."""
    return ".".join(p if re.fullmatch(r"[\w-]{1,60}", p := str(part)) else shorten(p) for part in path[:6])


def shorten(value: Any) -> str:
    """Show a value from outside in some 60 characters, as TOML would spell it where that is no trouble."""
    if isinstance(value, bool):
        return str(value).lower()
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 60
    brief.maxlevel, brief.maxlong, brief.maxdict = 3, 30, 2
    try:
        return brief.repr(value)
    except ValueError:  # Python spells out no integer of more than 4,300 digits; a caller of `validate` may have one.
        return "a number of thousands of digits"
