"""Settings: read from TOML recipes and overrides, and checked before anything is loaded or allocated.

A recipe is a file of sections. It is either shipped with the package, and given by name, or your own, and given by a
path that ends in `.toml`. `section.key=value` on the command line overrides it. Settings are strict (neither the text
"8" nor true is accepted as a number) and frozen, and an unknown key is an error. All problems of a recipe are reported
at once, one per line; values are shortened, because they come from outside.

A recipe may begin with `like = "base"`: it then starts from that shipped recipe and lists only what differs. An
override's value is parsed as TOML, or taken as plain text if it is not TOML, so `vocab.algorithm=bpe` needs no quotes.
If a key is overridden twice, the last one wins, so a script can append the user's overrides to its own.
"""

import json
import re
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from bertworks.errors import ConfigError, CorruptFile, UserError, counted, did_you_mean

_NUM_SPECIAL_TOKENS = 5  # [PAD], [UNK], [CLS], [SEP], [MASK]
_MAX_VOCAB_SIZE = 10_000_000
# A recipe has about 2 kB. tomllib needs quadratic time for dotted keys (16 s for one of 32,000 parts), so the length of
# lines is limited too.
_MAX_RECIPE_BYTES = 1 << 16
_MAX_LINE_LENGTH = 1_000
_LIKE = "like"
_FROM = "# From:"
_POSITION = re.compile(r" \(at (?P<where>line \d+, column \d+|end of document)\)$")

# The message for each kind of pydantic error; other kinds keep pydantic's own message.
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

# If a value may have one of several types, pydantic adds the name of the type to the location of an error, after the
# keys.
_BRANCH_NAME = re.compile(
    r"(constrained-)?(int|float|str|bool)|(literal|list|tuple|dict|function-\w+)\[.*\]", re.DOTALL
)
# What to call each type in a message about a key that accepts several types.
_BRANCHES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "literal_error": "{expected}",
}


def explain_all(errors: Sequence[ErrorDetails], known: Mapping[str, bool]) -> list[str]:
    """Describe errors; if a key accepts several types, pydantic reports one error per type and only one is shown."""
    by_key: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        path = error["loc"]
        is_value = known.get(".".join(map(str, path[:-1])), False)
        is_branch = path and is_value and _BRANCH_NAME.fullmatch(str(path[-1])) is not None
        by_key.setdefault(path[:-1] if is_branch else path, []).append(error)
    return [_explain_key(path, found, known) for path, found in by_key.items()]


def _explain_key(path: tuple[str | int, ...], errors: Sequence[ErrorDetails], known: Mapping[str, bool]) -> str:
    for error in errors:
        if len(errors) == 1 or error["type"] not in _BRANCHES:  # the right type, but a value that is not allowed
            return _explain({**error, "loc": path}, known)
    kinds = [_BRANCHES[error["type"]].format(**error.get("ctx", {})) for error in errors]
    return f"{_show_key(path)}: {shorten(errors[0]['input'])} is neither {' nor '.join(kinds)}"


def _explain(error: ErrorDetails, known: Mapping[str, bool]) -> str:
    if error["type"] == "extra_forbidden":
        return unknown_key(error["loc"], known)
    given = shorten(error["input"])
    rule = _RULES.get(error["type"])
    if error["type"] == "model_type" and not error["ctx"]["class_name"].endswith("Settings"):
        rule = _RULES["dict_type"]  # in a JSON file, not in a recipe
    message = rule.format(given=given, **error.get("ctx", {})) if rule else f"{given}: {error['msg']}"
    return f"{_show_key(error['loc'])}: {message}"


def unknown_key(path: Sequence[str | int], known: Mapping[str, bool]) -> str:
    """Suggest the nearest key of the same section, else of any; only the key's last part is compared."""
    beside = [key for key in known if key.split(".")[:-1] == list(path[:-1])]
    for candidates in (beside, list(known)):
        by_name = {key.rpartition(".")[2]: key for key in candidates}
        if hint := nearest(str(path[-1]), by_name):
            return f"{_show_key(path)}: unknown key{hint}"
    sections = [key for key in known if "." not in key]
    return f"{_show_key(path)}: unknown key (known: {', '.join(beside or sections)})"


def nearest(given: str, by_name: Mapping[str, str]) -> str:
    """Return " (did you mean 'x'?)" with the entry of the nearest name, or "" if none is close."""
    found = get_close_matches(given.lower(), by_name, n=1)
    return f" (did you mean {by_name[found[0]]!r}?)" if found else ""


def _show_key(path: Sequence[str | int]) -> str:
    """Join the parts of a key; unusual parts are quoted and shortened, because they may contain line breaks."""
    return ".".join(p if re.fullmatch(r"[\w-]{1,60}", p := str(part)) else shorten(p) for part in path[:6])


def shorten(value: Any) -> str:
    """Show a value from outside in about 60 characters, in TOML's spelling where that is easy."""
    if isinstance(value, bool):
        return str(value).lower()
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 60
    brief.maxlevel, brief.maxlong, brief.maxdict = 3, 30, 2
    try:
        return brief.repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits, and callers may pass one
        return "a number of thousands of digits"


class Settings(BaseModel):
    """A group of settings: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# A count in a file. The limit is larger than any real count, and a float holds it exactly.
Count = Annotated[int, Field(ge=0, le=1 << 53)]


def _names_of_columns(value: Any) -> str | list[str]:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return value
    raise ValueError(f"{shorten(value)} is neither text nor a list of texts")


# A column of a file, or several. Not a union type: pydantic would report one problem per type.
ColumnNames = Annotated[Any, AfterValidator(_names_of_columns)]


def heads_share(width: str) -> AfterValidator:
    """Return a check that heads divide a width; as a field's check its problem is reported together with the others."""

    def check(heads: int, info: ValidationInfo) -> int:
        total = info.data.get(width)
        if total is not None and total % heads:
            raise ValueError(f"{heads} heads cannot share {width} {total}; choose a divisor of it")
        return heads

    return AfterValidator(check)


class FileRecord(BaseModel):
    """A part of a JSON file: known keys are checked strictly, all others are ignored."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


class TokenizerSettings(Settings):
    """How text is normalised before it is split; accents are stripped if text is lower-cased, unless set otherwise."""

    lowercase: bool = Field(default=True, description="Lower-case all text.")
    strip_accents: bool | None = Field(default=None, description="Strip accents; not set: the same as lowercase.")
    split_cjk: bool = Field(default=True, description="Make every Chinese character a separate word.")


class VocabSettings(Settings):
    """How a vocabulary is learned: its size including reserved pieces, and which characters and words are used."""

    size: int = Field(
        default=30522, ge=100, le=_MAX_VOCAB_SIZE, description="Number of pieces, including special and unused ones."
    )
    algorithm: Literal["wordpiece", "bpe", "gpt-bpe", "words"] = Field(
        default="wordpiece", description="For BERT wordpiece or bpe; for GPT-1 gpt-bpe; for ELMo words."
    )
    unused: int = Field(default=0, ge=0, description="Number of [unusedN] pieces to reserve.")
    coverage: float = Field(default=0.99995, gt=0, le=1, description="The share of the text's characters to cover.")
    min_count: int = Field(default=20, ge=1, le=10**15, description="Ignore words that occur less often.")

    # A check of the field, not of the whole section, so that it is reported together with the section's other problems.
    @field_validator("unused")
    @classmethod
    def _leave_room_for_pieces(cls, unused: int, info: ValidationInfo) -> int:
        algorithm = info.data.get("algorithm", "wordpiece")
        if unused and algorithm not in ("wordpiece", "bpe"):
            raise ValueError(f"{shorten(unused)} is too large; a vocabulary of {algorithm} has no unused pieces")
        size = info.data.get("size", _MAX_VOCAB_SIZE)
        most = size - _NUM_SPECIAL_TOKENS - 1
        if unused > most:
            raise ValueError(f"{shorten(unused)} is too large; at most {most}, for size {size} has to hold pieces too")
        return unused


Objective = Literal["mlm+nsp", "mlm", "ltr", "rtl", "bilm"]
# For each kind of tokens its objectives, the default first; for each objective the kinds of predictions it has.
OBJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "wordpiece": {"mlm+nsp": ("mlm", "nsp"), "mlm": ("mlm",), "ltr": ("lm",), "rtl": ("lm",)},
    "gpt-bpe": {"ltr": ("lm",)},
    "words": {"bilm": ("bilm",)},
}


class DataSettings(Settings):
    """How training instances are made; the defaults are those of the paper and the original script."""

    objective: Objective = Field(default="mlm+nsp", description="The pre-training objective.")
    max_length: int = Field(default=128, ge=8, le=65_536, description="The longest sequence, in tokens.")
    short_length: int | None = Field(
        default=None,
        ge=8,
        le=65_536,
        description="The longest sequence in the first part of a run; not set: the run has one part.",
    )
    short_share: float = Field(
        default=0.9, ge=0, le=1, description="The share of a run's steps, or of its time, that the first part takes."
    )
    short_batch: int | None = Field(
        default=None, ge=1, le=10**15, description="Sequences of a batch in the first part; not set: train.batch_size."
    )
    short_seq_prob: float = Field(
        default=0.1, ge=0, le=1, description="The share of documents whose sequences get a random shorter length."
    )
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="The share of tokens to predict.")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="The share of those that become [MASK].")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="The share of those that become a random piece; the rest stay unchanged."
    )
    whole_word: bool = Field(default=False, description="Mask all pieces of a word, or none.")
    max_predictions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Most tokens to predict in a sequence; not set: as many as mask_rate gives.",
    )
    dupe_factor: int = Field(
        default=0, ge=0, le=10**15, description="The number of epochs after which pairs and masks repeat; 0: never."
    )

    def lengths(self) -> list[int]:
        """Return the sequence lengths of a run, the short one first."""
        return sorted({self.short_length or self.max_length, self.max_length})

    # Checks of fields, not of the whole section, so that they are reported together with the section's other problems.
    @field_validator("short_length")
    @classmethod
    def _short_is_not_long(cls, short_length: int | None, info: ValidationInfo) -> int | None:
        max_length = info.data.get("max_length")
        if short_length is not None and max_length is not None and short_length > max_length:
            raise ValueError(f"{short_length} is more than max_length {max_length}")
        return short_length

    @field_validator("short_batch")
    @classmethod
    def _short_batch_has_a_length(cls, short_batch: int | None, info: ValidationInfo) -> int | None:
        if short_batch is not None and "short_length" in info.data and info.data["short_length"] is None:
            raise ValueError(
                f"{short_batch} is for batches of short_length, which is not set; train.batch_size is for all"
            )
        return short_batch

    @field_validator("random_share")
    @classmethod
    def _shares_fit(cls, random_share: float, info: ValidationInfo) -> float:
        mask_share = info.data.get("mask_share", 0.0)
        if mask_share + random_share > 1 + 1e-9:
            raise ValueError(f"{random_share} and mask_share {mask_share} are more than 1 together")
        return random_share


_BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
_NO_BOUND = 10**15  # a limit this large only keeps numbers exact, so it is not shown

SomeSettings = TypeVar("SomeSettings", bound=Settings)
SomeModel = TypeVar("SomeModel", bound=BaseModel)


def read_recipe(model_class: type[SomeSettings], name_or_path: str, overrides: Sequence[str] = ()) -> SomeSettings:
    """Return a shipped recipe by name, or your own by path, changed by `section.key=value` overrides."""
    check_overrides(overrides)
    where, raw = _read_recipe(name_or_path)
    values, problems = _with_likes(_parse_recipe(raw, where), [name_or_path])
    problems += _apply_overrides(values, overrides, model_class)
    return _build(model_class, values, where, problems)


def is_like(name_or_path: str, name: str) -> bool:
    """Tell whether a readable recipe is the shipped one of a given name, or starts from it, directly or indirectly."""
    like: Any = name_or_path
    while isinstance(like, str) and like != name:
        where, raw = _read_recipe(like)
        like = _parse_recipe(raw, where).get(_LIKE)
    return bool(like == name)


def validate(model_class: type[SomeModel], values: Mapping[str, Any], where: str) -> SomeModel:
    """Build settings or a file record from plain values; a ConfigError names `where` and lists every problem."""
    return _build(model_class, values, where, problems=[])


def read_record(model_class: type[SomeModel], values: Mapping[str, Any], where: str) -> SomeModel:
    """Build a record from one of our own files; a CorruptFile names the first problem and counts the others."""
    try:
        return validate(model_class, values, where)
    except ConfigError as error:
        first, *others = error.problems
        more = f"; and {counted(len(others), 'problem')} more" if others else ""
        raise CorruptFile(f"{where}: {first}{more}") from error


def from_overrides(
    model_class: type[SomeSettings],
    overrides: Sequence[str],
    where: str,
    usual: Mapping[str, Mapping[str, Any]] | None = None,
) -> SomeSettings:
    """Build settings from `key=value` alone; other keys take the values in `usual`, by section, or their defaults."""
    check_overrides(overrides)
    values: dict[str, Any] = {section: dict(keys) for section, keys in (usual or {}).items()}
    problems = _apply_overrides(values, overrides, model_class)
    return _build(model_class, values, where, problems)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse anything but a list of texts: a single text would be read letter by letter."""
    if isinstance(overrides, str):
        raise UserError(f"overrides are a list, not one text; write overrides=[{shorten(overrides)}]")
    if not isinstance(overrides, Sequence) or not all(isinstance(one, str) for one in overrides):
        raise UserError(f"overrides are a list of texts such as 'train.seed=1', not {str(overrides)[:60]}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the sections of a recipe file as written; a UserError describes what is wrong with the file."""
    return _parse_recipe(_read_file(path), str(path))


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes in alphabetical order."""
    folder = resources.files("bertworks") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def recipe_summary(name: str) -> str:
    """Return the summary of a shipped recipe: the first line of its header."""
    return _read_shipped(name).decode().partition("\n")[0].lstrip("# ").rstrip()


def recipe_origin(name: str) -> str:
    """Return the origin of a shipped recipe, such as a paper or a table, from its header."""
    header = _read_shipped(name).decode()
    return next((line[len(_FROM) :].strip() for line in header.splitlines() if line.startswith(_FROM)), "")


def to_toml(recipe: Settings) -> str:
    """Write a recipe with every default filled in, as text that loads to an equal recipe."""
    sections = []
    for name, section in recipe:
        # TOML has no null: a setting that is None is left out, and its default is None.
        lines = [f"{key} = {_toml_value(value)}" for key, value in section if value is not None]
        sections.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(sections)


def _toml_value(value: bool | int | float | str) -> str:
    # JSON spells these four types as TOML does, except for the delete character, which TOML requires to be escaped.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _read_recipe(name_or_path: str) -> tuple[str, bytes]:
    """Return a recipe's name for error messages, and its bytes."""
    if name_or_path.endswith(".toml"):
        return name_or_path, _read_file(Path(name_or_path))
    return f"recipe {name_or_path}", _read_shipped(name_or_path)


def _read_shipped(name: str) -> bytes:
    names = recipe_names()
    if name not in names:
        raise UserError(
            f"no recipe {shorten(name)}{did_you_mean(name, names)}; give a shipped recipe's name or a path to a .toml"
        )
    return (resources.files("bertworks") / "recipes" / f"{name}.toml").read_bytes()


def _read_file(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"cannot read {path}: it is not a regular file")
        with open(path, "rb") as stream:
            raw = stream.read(_MAX_RECIPE_BYTES + 1)
    except FileNotFoundError:
        known = {name: name for name in recipe_names()} | {f.stem: str(f) for f in sorted(path.parent.glob("*.toml"))}
        raise UserError(f"no recipe file {path}{nearest(path.stem, known)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {shorten(str(path))}: {reason}") from error
    if len(raw) > _MAX_RECIPE_BYTES:
        raise UserError(f"{path} is too large for a recipe; at most {_MAX_RECIPE_BYTES:,} bytes")
    return raw


def _parse_recipe(raw: bytes, where: str) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{where}, line {line}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    for number, line_text in enumerate(text.split("\n"), start=1):
        if len(line_text) > _MAX_LINE_LENGTH:
            length = f"{len(line_text):,} characters"
            raise UserError(f"{where}, line {number}: {length} in one line; at most {_MAX_LINE_LENGTH:,}")
    try:
        return tomllib.loads(text + "\n")  # Without the line break an error in the last line has no line number.
    except (ValueError, RecursionError) as error:
        position, reason = _explain_toml(error)
        raise UserError(f"{where}{position}: {reason}") from error


def _with_likes(values: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Merge a recipe's values into those of the shipped recipe that it is like; also returns any problems.

    `names` are the recipes that led to this one. A shipped recipe has no problems itself, so any problem of the merged
    values is reported for the recipe that was given.
    """
    if _LIKE not in values:
        return values, []
    name, known = values.pop(_LIKE), recipe_names()
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(name, known) if isinstance(name, str) else ""
        return values, [f"{_LIKE}: no recipe {shorten(name)}{hint}; give a shipped recipe's name"]
    if name in names:
        return values, [f"{_LIKE}: {' is like '.join([*names, name])}, which is a cycle"]
    under, problems = _with_likes(_parse_recipe(_read_shipped(name), f"recipe {name}"), [*names, name])
    for section, keys in values.items():
        both = isinstance(keys, dict) and isinstance(under.get(section), dict)
        under[section] = under[section] | keys if both else keys
    return under, problems


def _explain_toml(error: ValueError | RecursionError) -> tuple[str, str]:
    """Return (", line 3, column 5", reason) for an exception of tomllib; only its own errors have a position."""
    if isinstance(error, RecursionError):
        return "", "the values are nested too deeply"
    message = str(error)
    found = _POSITION.search(message)
    return (f", {found['where']}", message[: found.start()][:200]) if found else ("", message[:200])


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str], model_class: type[Settings]) -> list[str]:
    """Put each `section.key=value` into values and return the problems of those that are wrong."""
    known = _dotted_keys(model_class)
    problems = []
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        if not key or not equals:
            problems.append(f"{shorten(override)} is not a setting; write section.key=value")
        elif key not in known:
            problems.append(unknown_key(key.split("."), known))
        elif not known[key]:
            example = next(other for other in known if other.startswith(f"{key}."))
            problems.append(f"{key}: a section; set one of its keys, as in {example}=...")
        else:
            try:
                _put(values, key.split("."), _parse_override(text))
            except ValueError as error:
                problems.append(f"{key}: {shorten(text)} {error}")
    return problems


def _parse_override(text: str) -> Any:
    if not text:
        raise ValueError("is not a value")
    if len(text) > _MAX_LINE_LENGTH:
        raise ValueError(f"is too long; at most {_MAX_LINE_LENGTH:,} characters")
    # A line break would start another key. Python turns bytes of an argument that are not UTF-8 into lone surrogates.
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text):
        raise ValueError("has control characters or is not UTF-8")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        if text[0] in "\"'[{":
            raise ValueError(f"is not TOML: {_explain_toml(error)[1]}") from error
        return text


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            return  # The recipe has a plain value where a section belongs; that is reported elsewhere.
    values[path[-1]] = value


def _build(model_class: type[SomeModel], values: Mapping[str, Any], where: str, problems: list[str]) -> SomeModel:
    try:
        settings = model_class.model_validate(dict(values))
    except ValidationError as error:
        found = explain_all(error.errors(include_url=False), _dotted_keys(model_class))
        raise ConfigError(where, problems + found) from error
    if problems:
        raise ConfigError(where, problems)
    return settings


def _dotted_keys(model_class: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Return every key of the settings as written in an override; True for a value, False for a section."""
    keys = {}
    for name, field in model_class.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        keys[prefix + name] = not is_section
        if is_section:
            keys |= _dotted_keys(cast(type[Settings], field.annotation), f"{prefix}{name}.")
    return keys


def described(settings: Settings, prefix: str = "") -> list[dict[str, Any]]:
    """Return every setting of all sections: its key, its current value, the allowed values and its description."""
    rows = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            rows += described(value, f"{prefix}{name}.")
            continue
        allowed = ", ".join(_allowed_values(field.annotation))
        bounds = {
            key: bound for one in field.metadata for key in _BOUNDS if (bound := getattr(one, key, None)) is not None
        }
        limits = [_BOUNDS[key].format(f"{bound:,}") for key, bound in bounds.items() if bound < _NO_BOUND]
        rows.append({
            "setting": prefix + name,
            "default": value,
            "allowed": ", ".join([allowed, *limits]),
            "help": field.description or "",
        })  # fmt: skip
    return rows


def _allowed_values(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_args(kind):  # one of several types; None means that the setting may be left out
        return [value for one in get_args(kind) if one is not type(None) for value in _allowed_values(one)]
    return {bool: ["true", "false"], int: ["a whole number"], float: ["a number"], str: ["text"]}.get(kind, ["text"])
