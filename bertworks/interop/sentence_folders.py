"""Folders of sentence-transformers: a BERT, possibly in a folder of its own, and how its tokens become one vector."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write, safe_join
from bertworks.interop.folder import parse_json, read_json

MODULES_FILE = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_MODES: dict[str, Literal["cls", "mean", "max"]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


class Pooling(NamedTuple):
    """How a folder wants its texts embedded; the mean where it does not say."""

    mode: Literal["cls", "mean", "max"] = "mean"
    normalize: bool = False
    max_length: int | None = None


def find_encoder(folder: Path) -> Path:
    """Return the folder of the BERT itself."""
    encoder = _modules(folder).get("Transformer", "")
    return safe_join(folder, encoder) if encoder else folder


def read_pooling(folder: Path) -> Pooling:
    """Return how a folder of sentence-transformers makes vectors, or the default for other folders."""
    modules = _modules(folder)
    if not modules:
        return Pooling()
    unknown = set(modules) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise UserError(f"{folder / MODULES_FILE}: a module {sorted(unknown)[0][:40]!r} is not read here")
    mode: Literal["cls", "mean", "max"] = "mean"
    if "Pooling" in modules:
        mode = _mode(safe_join(folder, modules["Pooling"]) / "config.json")
    return Pooling(mode, "Normalize" in modules, _max_length(find_encoder(folder)))


def _mode(path: Path) -> Literal["cls", "mean", "max"]:
    raw = read_json(path)
    if raw.get("pooling_mode") in _MODES.values():
        return raw["pooling_mode"]  # type: ignore[no-any-return]
    asked = [name for name, value in raw.items() if name.startswith("pooling_mode_") and value is True]
    if len(asked) != 1 or asked[0] not in _MODES:
        raise UserError(f"{path}: pooling {', '.join(asked)[:80] or 'none'} is not read here; only cls, mean or max")
    return _MODES[asked[0]]


def _max_length(folder: Path) -> int | None:
    if not (folder / _LENGTH_FILE).exists():
        return None
    length = read_json(folder / _LENGTH_FILE).get("max_seq_length")
    return length if type(length) is int and length > 0 else None


def _modules(folder: Path) -> dict[str, str]:
    """Return the paths of a folder's modules by their kind, or nothing if it has no list of modules."""
    path = folder / MODULES_FILE
    if not path.exists():
        return {}
    try:
        modules = {module["type"].rpartition(".")[2]: module["path"] for module in parse_json(path)}
        if not all(isinstance(name, str) for name in modules.values()):
            raise TypeError("a path is not text")
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{path} is not a list of modules: {str(error)[:200]}") from error
    return modules


def write_pooling(folder: Path, pooling: Pooling, width: int) -> None:
    """Write how a folder's texts are embedded, so that sentence-transformers does it too."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    modes = {name: mode == pooling.mode for name, mode in _MODES.items()}
    contents: dict[str, Any] = {
        MODULES_FILE: modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **modes},
        _LENGTH_FILE: {"max_seq_length": pooling.max_length, "do_lower_case": False},
    }
    for path in paths[1:]:
        (folder / path).mkdir()
    for name, content in contents.items():
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, indent=2)
