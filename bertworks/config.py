"""Settings: read from TOML recipes and overrides, and checked before anything is loaded or allocated.

A recipe is a file of sections, shipped with the package under a name or anywhere under a path that ends in `.toml`;
`section.key=value` on the command line overrides it. Settings are strict (a text "8" is not a number, nor is true) and
frozen, and a key that nobody reads is an error, not a comment. All problems of a recipe are reported at once, a line
each, in plain words; the values in them are shortened, as they come from outside.

A recipe may begin with `like = "base"`: then it is that shipped recipe but for what it says itself, and a variant is a
file of what differs. An override's value is read as TOML, and as plain text where it is not TOML, so
`vocab.algorithm=bpe` needs no quotes. Of two overrides of one key the last one wins: a script may append the user's to
its own.
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
# A recipe has some 2 kB. tomllib takes quadratic time over dotted keys (16 s for one of 32,000 parts), hence the lines.
_MAX_RECIPE_BYTES = 1 << 16
_MAX_LINE_LENGTH = 1_000
_LIKE = "like"
_FROM = "# From:"
_POSITION = re.compile(r" \(at (?P<where>line \d+, column \d+|end of document)\)$")

# The message for each kind of pydantic error; other kinds keep pydantic's own words.
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
    """Describe an error; where a key may be one of several kinds, pydantic reports each kind and only one is shown."""
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
    message = rule.format(given=given, **error.get("ctx", {})) if rule else f"{given}: {error['msg']}"
    return f"{_show_key(error['loc'])}: {message}"


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


class Settings(BaseModel):
    """A group of settings that cannot be changed once made and takes no key that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# In a file: more than there is of anything, and a float has room for it.
Count = Annotated[int, Field(ge=0, le=1 << 53)]


def _names_of_columns(value: Any) -> str | list[str]:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return value
    raise ValueError(f"{shorten(value)} is neither text nor a list of texts")


# A column of a file, or several; no union, for which pydantic reports a problem for each kind that a value is not.
ColumnNames = Annotated[Any, AfterValidator(_names_of_columns)]


def heads_share(width: str) -> AfterValidator:
    """Return the check that heads can share a width: on their field, so that it is reported with all else wrong."""

    def check(heads: int, info: ValidationInfo) -> int:
        total = info.data.get(width)
        if total is not None and total % heads:
            raise ValueError(f"{heads} heads cannot share {width} {total}; choose a divisor of it")
        return heads

    return AfterValidator(check)


class FileRecord(BaseModel):
    """A part of a JSON file: keys that are read are checked strictly, all others are ignored."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


class TokenizerSettings(Settings):
    """How text is cleaned before it is cut into pieces; stripping accents follows lower-casing unless it is set."""

    lowercase: bool = Field(default=True, description="Lower-case all text.")
    strip_accents: bool | None = Field(default=None, description="Take accents off; not set: as lowercase.")
    split_cjk: bool = Field(default=True, description="Make every Chinese character a word.")


class VocabSettings(Settings):
    """How a vocabulary is learnt: its size with all reserved pieces, and which characters and words are counted in."""

    size: int = Field(
        default=30522, ge=100, le=_MAX_VOCAB_SIZE, description="Number of pieces, including special and unused ones."
    )
    algorithm: Literal["wordpiece", "bpe", "gpt-bpe", "words"] = Field(
        default="wordpiece", description="For BERT wordpiece or bpe; for GPT-1 gpt-bpe; for ELMo words."
    )
    unused: int = Field(default=0, ge=0, description="Number of [unusedN] pieces to reserve.")
    coverage: float = Field(default=0.99995, gt=0, le=1, description="The share of the text's characters to cover.")
    min_count: int = Field(default=20, ge=1, le=10**15, description="Ignore words that occur less often.")

    # On the field and not on the whole section: so it is reported together with whatever else is wrong there.
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
# By kind of tokens the objectives that they are learnt by, the usual one first, each with its kinds of predictions.
OBJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "wordpiece": {"mlm+nsp": ("mlm", "nsp"), "mlm": ("mlm",), "ltr": ("lm",), "rtl": ("lm",)},
    "gpt-bpe": {"ltr": ("lm",)},
    "words": {"bilm": ("bilm",)},
}


class DataSettings(Settings):
    """How instances are made; the defaults are those of the paper and the original script."""

    objective: Objective = Field(default="mlm+nsp", description="The pre-training objective.")
    max_length: int = Field(default=128, ge=8, le=65_536, description="The longest sequence, in tokens.")
    short_length: int | None = Field(
        default=None, ge=8, le=65_536, description="The longest sequence in the first part of a run, if it has one."
    )
    short_share: float = Field(default=0.9, ge=0, le=1, description="That part's share of a run's steps, or time.")
    short_batch: int | None = Field(
        default=None, ge=1, le=10**15, description="Sequences of a batch in that part; not set: train.batch_size."
    )
    short_seq_prob: float = Field(default=0.1, ge=0, le=1, description="The share of instances of random length.")
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="The share of tokens that are to be predicted.")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="The share of those that become [MASK].")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="The share that becomes a random piece; the rest stay as they are."
    )
    whole_word: bool = Field(default=False, description="Mask all pieces of a word, or none.")
    max_predictions: int | None = Field(
        default=None, ge=1, le=65_536, description="The most per sequence; not set: as many as the rate gives."
    )
    dupe_factor: int = Field(
        default=0, ge=0, le=10**15, description="Pairs and masks repeat after so many epochs; 0: never."
    )

    def lengths(self) -> list[int]:
        """Return the lengths of sequences that a run has, the short one first."""
        return sorted({self.short_length or self.max_length, self.max_length})

    # On fields and not on the whole section: so they are reported together with whatever else is wrong there.
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
_NO_BOUND = 10**15  # a limit that only keeps numbers exact is not shown as one

SomeSettings = TypeVar("SomeSettings", bound=Settings)
SomeModel = TypeVar("SomeModel", bound=BaseModel)


def read_recipe(model_class: type[SomeSettings], name_or_path: str, overrides: Sequence[str] = ()) -> SomeSettings:
    """Return a shipped recipe by its name or one of your own by its path, with `section.key=value` overrides on top."""
    check_overrides(overrides)
    where, raw = _read_recipe(name_or_path)
    values, problems = _with_likes(_parse_recipe(raw, where), [name_or_path])
    problems += _apply_overrides(values, overrides, model_class)
    return _build(model_class, values, where, problems)


def is_like(name_or_path: str, name: str) -> bool:
    """Tell whether a recipe, which can be read, is the shipped one of a name or like it, by however many steps."""
    like: Any = name_or_path
    while isinstance(like, str) and like != name:
        where, raw = _read_recipe(like)
        like = _parse_recipe(raw, where).get(_LIKE)
    return bool(like == name)


def validate(model_class: type[SomeModel], values: Mapping[str, Any], where: str) -> SomeModel:
    """Build settings or a record of a file from plain values; a ConfigError names `where` and every problem."""
    return _build(model_class, values, where, problems=[])


def read_record(model_class: type[SomeModel], values: Mapping[str, Any], where: str) -> SomeModel:
    """Build a record from what a file of ours holds; a CorruptFile says in a line what is wrong, and of how much."""
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
    """Build settings from `key=value` alone; what is not given is as usual, by section, or keeps its default."""
    check_overrides(overrides)
    values: dict[str, Any] = {section: dict(keys) for section, keys in (usual or {}).items()}
    problems = _apply_overrides(values, overrides, model_class)
    return _build(model_class, values, where, problems)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse what is no list of texts: of one text every letter would be read."""
    if isinstance(overrides, str):
        raise UserError(f"overrides are a list, not one text; write overrides=[{shorten(overrides)}]")
    if not isinstance(overrides, Sequence) or not all(isinstance(one, str) for one in overrides):
        raise UserError(f"overrides are a list of texts such as 'train.seed=1', not {str(overrides)[:60]}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the sections of a recipe file as they are written, or raise UserError with what is wrong with the file."""
    return _parse_recipe(_read_file(path), str(path))


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes in alphabetical order."""
    folder = resources.files("bertworks") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def recipe_summary(name: str) -> str:
    """Return the summary of a shipped recipe: the first line of its header."""
    return _read_shipped(name).decode().partition("\n")[0].lstrip("# ").rstrip()


def recipe_origin(name: str) -> str:
    """Return the origin of a shipped recipe, from its header: a paper, a table."""
    header = _read_shipped(name).decode()
    return next((line[len(_FROM) :].strip() for line in header.splitlines() if line.startswith(_FROM)), "")


def to_toml(recipe: Settings) -> str:
    """Write a recipe with every default filled in, as text that loads to an equal recipe."""
    sections = []
    for name, section in recipe:
        # TOML has no null: a setting that is None is left out, and None is what it defaults to.
        lines = [f"{key} = {_toml_value(value)}" for key, value in section if value is not None]
        sections.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(sections)


def _toml_value(value: bool | int | float | str) -> str:
    # JSON writes these four as TOML does, but for the delete character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _read_recipe(name_or_path: str) -> tuple[str, bytes]:
    """Return the recipe's name in errors, and its bytes."""
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
    """Put a recipe's values over those of the shipped recipe that it is like; returns what is wrong with that, too.

    `names` are the recipes on the way here. A shipped one has no problems of its own, so whatever is wrong with the
    values together is reported for the recipe that was given.
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
    """Return (", line 3, column 5", reason) for what tomllib raises; only its own errors know a position."""
    if isinstance(error, RecursionError):
        return "", "the values are nested too deeply"
    message = str(error)
    found = _POSITION.search(message)
    return (f", {found['where']}", message[: found.start()][:200]) if found else ("", message[:200])


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str], model_class: type[Settings]) -> list[str]:
    """Put each `section.key=value` into values and return what is wrong with those that cannot be put there."""
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
    # A line break would begin further keys; a lone surrogate is how Python passes on an argument that is not UTF-8.
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
            return  # The recipe has a plain value for a section, which is reported elsewhere.
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
    """Return every key that the settings have, as written in an override; True for a value, False for a section."""
    keys = {}
    for name, field in model_class.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        keys[prefix + name] = not is_section
        if is_section:
            keys |= _dotted_keys(cast(type[Settings], field.annotation), f"{prefix}{name}.")
    return keys


def described(settings: Settings, prefix: str = "") -> list[dict[str, Any]]:
    """Return every setting of all sections: its key, its value here, what is allowed, and what it does."""
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
    if get_args(kind):  # one of several kinds; None is a setting that is left out
        return [value for one in get_args(kind) if one is not type(None) for value in _allowed_values(one)]
    return {bool: ["true", "false"], int: ["a whole number"], float: ["a number"], str: ["text"]}.get(kind, ["text"])
