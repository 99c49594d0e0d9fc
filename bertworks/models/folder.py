"""A model folder in Hugging Face's form: where it lies, which files it has, and what bertworks.json says.

- A model is named by a folder, a run folder, a shipped model, or a name in the local Hugging Face cache. It is looked
  for in this order, so that a folder of one's own is never hidden by a name. Nothing is ever fetched.
- The models that come with the package are folders in `bertworks/shipped`, each with a card. A model is shipped by its
  folder being there; there is no list to keep. What is reported of one is read from its files, and without torch: sizes
  from config.json, parameters from the header of the weights, and from bertworks.json what no other file knows, under
  `shipped`: its `language`, what it was `trained_on` and its held-out `mlm_accuracy`.
- `bertworks.json` has what Hugging Face's form has no place for; `About` says which keys are read and of what kind they
  are. Other keys may be there, and are kept. A file that says something of the wrong kind is refused as a whole.
"""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from bertworks.config import ColumnNames, FileRecord, read_record, validate
from bertworks.errors import CorruptFile, UserError, did_you_mean, nearest_name
from bertworks.files import name_kind, read_object, safe_join
from bertworks.files import read_json as read_file
from bertworks.models.weights import INDEX_FILE, WEIGHTS_FILE, read_header

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
_CACHE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_MAX_REVISION_BYTES = 64
_FILES = "config.json model.safetensors vocab.txt tokenizer_config.json"
_ZIPS = {  # as the original's README names them
    "bert-base-uncased": "uncased_L-12_H-768_A-12",
    "bert-large-uncased": "uncased_L-24_H-1024_A-16",
    "bert-base-cased": "cased_L-12_H-768_A-12",
    "bert-large-cased": "cased_L-24_H-1024_A-16",
    "bert-base-multilingual-cased": "multi_cased_L-12_H-768_A-12",
    "bert-base-multilingual-uncased": "multilingual_L-12_H-768_A-12",
    "bert-base-chinese": "chinese_L-12_H-768_A-12",
}
_BERT_OWNER = "google-bert"  # where the names without an owner have moved to


def shipped_names() -> list[str]:
    """Return the names of the models that come with the package, in alphabetical order."""
    return sorted(config.parent.name for config in SHIPPED_FOLDER.glob(f"*/{CONFIG_FILE}"))


def find_shipped(name: str) -> Path | None:
    """Return the folder of the shipped model of that name, if there is one."""
    return SHIPPED_FOLDER / name if name in shipped_names() else None


def describe_shipped(name: str) -> dict[str, Any]:
    """Return what the files of a shipped model say of it; None: they do not say."""
    folder = _folder_of(name)
    config, about = read_json(folder / CONFIG_FILE), read_about(folder).get("shipped") or {}
    return {
        "name": name,
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "parameters": sum(math.prod(tensor.shape) for tensor in read_header(folder / WEIGHTS_FILE).values()),
        "megabytes": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,  # of 1,000,000 bytes
        "language": about.get("language"),
        "trained_on": about.get("trained_on"),
        "mlm_accuracy": about.get("mlm_accuracy"),
    }


def read_card(name: str) -> str:
    """Return the card of a shipped model: data, recipe, scores, licence, limits."""
    return (_folder_of(name) / CARD_FILE).read_text(encoding="utf-8")


def _folder_of(name: str) -> Path:
    folder = find_shipped(name)
    if folder is None:
        names = shipped_names()
        hint = did_you_mean(name, names) if names else "; none does in this version"
        raise UserError(f"no model {name[:80]!r} comes with the package{hint}")
    return folder


def find_model(source: str | os.PathLike[str]) -> Path:
    """Return the model folder that is meant; the error lists where it was looked for."""
    folder = _located(source)
    # An installer may have made the package out of links.
    return folder if folder.parent == SHIPPED_FOLDER else check_files(folder)


def _located(source: str | os.PathLike[str]) -> Path:
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"a model is named by a text or a path, not by {source!r:.40}")
    if not os.fspath(source):
        raise UserError("no model is named by an empty text; give a model or run folder, or a shipped model's name")
    try:
        folder = Path(source)
        if folder.is_dir():
            is_run = not (folder / "config.json").exists() and (folder / "model" / "config.json").exists()
            return folder / "model" if is_run else folder
        if folder.exists() and folder.suffix == ".onnx":
            raise UserError(
                f"{source} is an exported model, for bw.load and the commands that predict; for this give the folder "
                "that it was exported from"
            )
        if folder.exists():
            raise UserError(f"{source} is a file; give the folder with its config.json")
        found = find_shipped(os.fspath(source)) or _find_cached(os.fspath(source))
    except OSError as error:
        raise UserError(f"no model {str(source)[:80]!r}: {error.strerror}") from error
    if found is None:
        raise UserError(_not_found(os.fspath(source)))
    return found


def _not_found(name: str) -> str:
    names = shipped_names()
    message = (
        f"no model {name[:80]!r}{nearest_name(name[:80], names)}: neither a folder, nor shipped with the package "
        f"({', '.join(names) or 'none is'}), nor a name in {_cache_folder()}"
    )
    if name.startswith("bert-"):
        name = next((published for published in _ZIPS if published.startswith(name)), name)  # bert-base is no model
    if not _CACHE_NAME.fullmatch(name) or not ("/" in name or name.startswith("bert-")):
        return message
    full_name = name if "/" in name else f"{_BERT_OWNER}/{name}"
    files = f" {_FILES}" if full_name.startswith(f"{_BERT_OWNER}/") else ""  # elsewhere a model may need others
    zipped = _ZIPS.get(full_name.partition("/")[2])
    return (
        f"{message}\n  On any machine with a network: `pip install huggingface_hub`, `hf download {full_name}{files}"
        f" --local-dir {name}`; that folder, copied here, is the model"
        + (f"\n  Or Google's {zipped}.zip, unpacked: `bertworks convert {zipped} {name}`" if zipped else "")
    )


def is_model(source: str | os.PathLike[str]) -> bool:
    """Tell whether a name leads to a model folder, by the files that only such a folder has."""
    try:
        folder = _located(source)
    except UserError:
        return False
    return any((folder / name).exists() for name in ("config.json", "modules.json"))


def _cache_folder() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"


def _find_cached(name: str) -> Path | None:
    if not _CACHE_NAME.fullmatch(name):
        return None
    for full_name in (name, f"{_BERT_OWNER}/{name}"):
        folder = _cache_folder() / f"models--{full_name.replace('/', '--')}"
        reference = folder / "refs" / "main"
        if reference.is_file():
            with open(reference, "rb") as stream:
                revision = stream.read(_MAX_REVISION_BYTES).strip().decode(errors="replace")
            snapshot = safe_join(folder / "snapshots", revision)
            if snapshot.is_dir():
                return snapshot
    return None


MODULES_FILE = "modules.json"
CONFIG_FILE, OWN_FILE, CARD_FILE = "config.json", "bertworks.json", "CARD.md"
# The model_type of each kind in config.json.
BERT_TYPE, RIGHT_TO_LEFT_TYPE, INT8_TYPE = "bert", "bertworks-right-to-left", "bertworks-int8"
INT8_OF = "int8_of"  # in config.json, the type of the model that one in int8 was made of
GPT_TYPE, ELMO_TYPE = "openai-gpt", "bertworks-elmo"
COMPOUND_TYPE, FEATURES_TYPE = "bertworks-compound", "bertworks-features"
ELMO_TASK_TYPE = "bertworks-elmo-task"
_TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_SMALL_FILES = (
    CONFIG_FILE, OWN_FILE, CARD_FILE, "vocab.txt", "vocab.json", "merges.txt", "tokenizer.json",
    _TOKENIZER_CONFIG_FILE, "special_tokens_map.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
)  # fmt: skip
_READ = {
    *_SMALL_FILES, INDEX_FILE, "bert_config.json", "added_tokens.json", "state.json", "manifest.json",
}  # fmt: skip
_MAX_COPIED_BYTES = 1_000_000_000
_RUN_PARTS = ("recipe.toml", "checkpoints")  # which a run folder has before its first model


def find_encoder(folder: Path) -> Path:
    """Return the folder of the BERT itself: in one of sentence-transformers it may be a folder in it."""
    modules = read_modules(folder)
    return safe_join(folder, modules[0][1]) if modules and modules[0][1] else folder


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return a folder's modules in order, each as its kind and path; none if it has no list of modules."""
    path = folder / MODULES_FILE
    if not path.exists():
        return []
    try:
        modules = [(module["type"].rpartition(".")[2], module["path"], module["type"]) for module in read_file(path)]
        if not all(isinstance(name, str) for _, name, _ in modules):
            raise TypeError("a path is not text")
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path} is not a list of modules: {str(error)[:200]}") from error
    for _, _, type_name in modules:
        if not type_name.startswith("sentence_transformers."):
            raise UserError(f"{path}: {type_name[:60]!r} is code of its own, which is not run here")
    return [(kind, name) for kind, name, _ in modules]


# What is in it.


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file of a model folder holds; where there is none, say what the folder may be."""
    try:
        return read_object(path)
    except UserError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise UserError(f"{path.parent} has no {path.name}: {_what_it_is(path.parent)}") from None
        raise


def _what_it_is(folder: Path) -> str:
    """Return what a folder without the file of a model may be, and what to do then."""
    if (folder / "bert_config.json").exists():
        return f"a checkpoint of the original BERT? `bertworks convert {folder} NEW` makes a model folder of it"
    if any((folder / name).exists() for name in _RUN_PARTS):
        return "a run that has no model yet; resume it, by the command that started it and --resume"
    if find_shipped(str(folder)):
        return f"not a model folder, and it hides the shipped model {folder}; rename it, or start in another folder"
    return "not a model folder"


def check_files(folder: Path) -> Path:
    """Return a model folder, unless a file in it that is read is a link that leaves it, or no file: a UserError.

    A folder of somebody else's is saved and converted with what is in it, and a link could take any file of this
    machine along. A snapshot in Hugging Face's cache consists of links, to the blobs beside it.
    """
    root = Path(os.path.realpath(folder))
    snapshot = next((one for one in (root, *root.parents) if one.parent.name == "snapshots"), None)
    homes = [root, *([snapshot.parents[1] / "blobs"] if snapshot else [])]
    for name in sorted(filter(_is_read, _files_in(folder))):
        path, real = folder / name, Path(os.path.realpath(folder / name))
        if not any(real.is_relative_to(home) for home in homes):
            raise UserError(f"{path} is a link to {real}, outside of the folder; put a copy of the file in its place")
        if not real.exists():
            raise UserError(f"{path} is a link that leads to no file; put the file in its place")
        if not real.is_file():
            raise UserError(f"cannot read {path}: it is not a regular file")
    return folder


def _files_in(folder: Path) -> Iterator[str]:
    """Yield what is in a folder and in those in it."""
    for name in os.listdir(folder):
        yield name
        if not name.startswith("."):
            with contextlib.suppress(OSError):  # not a folder
                yield from [f"{name}/{one}" for one in os.listdir(folder / name)]


def _is_read(path: str) -> bool:
    """Tell whether a file is read when a model is opened or converted."""
    name = path.rpartition("/")[2]
    return name in _READ or name.endswith(".safetensors") or name.startswith("pytorch_model") or ".ckpt" in name


def copy_small_files(source: Path, folder: Path) -> None:
    """Copy everything of a model folder that is not weights and that we know."""
    modules = [f"{path.parent.name}/{path.name}" for path in sorted(source.glob("[0-9]*_*/*"))]
    modules = [name for name in modules if name.endswith(("/config.json", f"/{WEIGHTS_FILE}"))]
    for name in (*_SMALL_FILES, *modules):
        if (source / name).is_file():
            if (source / name).stat().st_size > _MAX_COPIED_BYTES:
                raise UserError(f"{source / name} has more than {_MAX_COPIED_BYTES:,} bytes; move it out of the folder")
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)


def num_positions(folder: Path) -> int | None:
    """Return how many tokens a model reads, by its configuration; None where that sets no limit."""
    config = read_json(folder / CONFIG_FILE)
    most: int | None = config.get("max_position_embeddings", config.get("n_positions"))
    return most


_Tokens = Annotated[int, Field(ge=1, le=1 << 20)]
_Rate = Annotated[float, Field(gt=0, le=100)]


class TaskRecord(FileRecord):
    """What a model was fine-tuned for, and how much of an example it read at once."""

    name: str = ""
    kind: Literal["classify", "regress", "multilabel", "choose", "tag", "answer"] | None = None
    labels: list[str] = Field(default_factory=list)
    is_pair: bool = False
    score_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    columns: dict[str, ColumnNames | None] | None = None  # of the files, by their roles
    max_length: _Tokens = 128
    context: Literal["document", "sentence"] = "document"
    stride: _Tokens | None = None
    doc_stride: _Tokens = 128
    max_query: _Tokens = 64


class RatesRecord(FileRecord):
    """At which learning rates a model is best fine-tuned: one to begin with, and those that a search goes through."""

    lr: _Rate
    lr_grid: list[_Rate] = Field(default_factory=list)


class StartRecord(FileRecord):
    """The model that a run began with."""

    model: str = ""
    weights: dict[str, str] = Field(default_factory=dict)
    init: str = ""
    new_words: int = 0
    drawn: list[str] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)


class Provenance(FileRecord):
    """Where a model comes from."""

    start: StartRecord | None = None
    minutes: Annotated[float, Field(ge=0, le=1e9)] | None = None
    device: str = ""
    steps: int = 0
    examples: int = 0
    notes: list[str] = Field(default_factory=list)


class Shipped(FileRecord):
    """The facts about a shipped model that the list of models shows."""

    language: str | None = None
    trained_on: str | None = None
    mlm_accuracy: float | None = None


class About(FileRecord):
    """The whole file."""

    task: TaskRecord | None = None
    provenance: Provenance | None = None
    shipped: Shipped | None = None
    finetune: RatesRecord | None = None
    head: Literal["classify", "tag", "choose"] | None = None
    problem: Literal["classify", "multilabel", "regress"] | None = None
    threshold: Annotated[float, Field(allow_inf_nan=True)] | None = None
    units: Literal["word", "character"] = "word"


def read_about(folder: Path) -> dict[str, Any]:
    """Return what bertworks.json says, as it is written; nothing if there is none."""
    path = folder / OWN_FILE
    if not path.exists():
        return {}
    raw = read_json(path)
    read_record(About, raw, str(path))
    return raw


def int8_source(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of the model that one in int8 was made of."""
    return {name: value for name, value in config.items() if name != INT8_OF} | {"model_type": config.get(INT8_OF)}


def check_about(about: Mapping[str, Any]) -> None:
    """Refuse facts about a model that could not be written to bertworks.json, or not be read again from there."""
    if not isinstance(about, Mapping):
        raise UserError(f"about: {name_kind(about)} where a mapping is expected, such as {{'task': {{...}}}}")
    try:
        as_written = json.loads(json.dumps(about))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"about cannot be written as JSON: {error}") from error
    validate(About, as_written, "about")


def read_rates(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rates that a model recommends, if it does: `lr`, and `lr_grid` for a search."""
    rates = about.get("finetune")
    if rates is None:
        return {}
    return {"lr": float(rates["lr"]), "lr_grid": [float(rate) for rate in rates.get("lr_grid") or [rates["lr"]]]}
