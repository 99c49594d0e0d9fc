"""`bertworks convert`: a checkpoint of the original BERT to a model folder, and a model folder to such a checkpoint.

The way is told by what SRC is. Everything is read and checked before a byte is written, and the folder of the result
appears whole. Nothing is lost without a word: what is left out is named.
"""

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from bertworks import __version__
from bertworks.errors import UserError
from bertworks.files import atomic_folder, atomic_write, safe_join, sha256_of
from bertworks.interop.folder import (
    CONFIG_FILE,
    OPTIMIZER_FILE,
    PROVENANCE_FILE,
    WEIGHTS_FILE,
    read_safetensors,
    with_modern_names,
    write_safetensors,
)
from bertworks.interop.google import read_google
from bertworks.interop.google_config import read_json_object
from bertworks.interop.google_writer import write_google
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

FORMS = ("google", "folder")
DEFAULT_PREFIX = "bert_model.ckpt"
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a pickle by itself, and torch's archive with one in it


class Converted(NamedTuple):
    """What was made, for a person and for a script."""

    out: str
    form: str  # "folder" or "google"
    tensors: int
    parameters: int
    optimizer_tensors: int
    lowercase: bool
    left_out: list[str]
    notes: list[str]
    warnings: list[str]


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str | None = None,
    lowercase: bool | None = None,
    with_optimizer: bool = False,
) -> Converted:
    """Convert a checkpoint of the original BERT to a model folder, or a model folder to such a checkpoint.

    Args:
        source: a checkpoint's prefix, one of its files or its folder; or a model folder.
        destination: a folder that is not there yet or is empty; or, for a checkpoint, a prefix in such a folder.
        to: "google" or "folder"; None: a checkpoint where `destination` ends in .ckpt, else a folder.
        lowercase: whether the model was trained on lower-cased text; None: what the vocabulary looks like.
        with_optimizer: convert Adam's state and the step too.
    """
    source, destination = Path(source), Path(destination)
    to = to or ("google" if destination.suffix == ".ckpt" else "folder")
    if to not in FORMS:
        raise UserError(f"--to {to!r:.60} is not possible; choose {' or '.join(FORMS)}")
    _refuse_pickle(source)
    is_folder = (source / CONFIG_FILE).is_file()
    if is_folder and to == "folder":
        raise UserError(f"{source} is a model folder already; for a checkpoint of Google's, give --to google")
    if not is_folder and to == "google":
        raise UserError(f"{source} is no model folder: it has no {CONFIG_FILE}, so no checkpoint can be made of it")
    if is_folder:
        prefix = destination if destination.suffix == ".ckpt" else destination / DEFAULT_PREFIX
        return _to_google(source, prefix, lowercase, with_optimizer)
    return _to_folder(source, destination, lowercase, with_optimizer)


def _refuse_pickle(source: Path) -> None:
    names: list[str] = []
    if source.is_dir() and not (source / WEIGHTS_FILE).exists() and not any(source.glob("*.index")):
        names = sorted(path.name for path in source.iterdir() if path.suffix in _PICKLE_ENDINGS)
    elif source.is_file():
        with open(source, "rb") as stream:
            if source.suffix in _PICKLE_ENDINGS or stream.read(4).startswith(_PICKLE_STARTS):
                names = [source.name]
    if names:
        raise UserError(
            f"refused: pickle ({source}: {names[0]}) can run code; save the model as {WEIGHTS_FILE} instead"
        )


def _to_folder(source: Path, destination: Path, lowercase: bool | None, with_optimizer: bool) -> Converted:
    _check_free(destination)
    model = read_google(source, with_optimizer=with_optimizer)
    notes = [_left_out_note(model.left_out)] if model.left_out else []
    if lowercase is None:
        lowercase = not has_capitals(model.pieces)
        kind = "no capital letters: lower-cased text" if lowercase else "capital letters: text as it is"
        notes.append(f"the vocabulary has {kind} (--cased or --lowercase says it otherwise)")
    provenance = {
        "converted_from": "a checkpoint of google-research/bert",
        "files": {path.name: sha256_of(path) for path in model.files},
        "bertworks": __version__,
    }
    with _new_folder(destination) as folder:
        _write_json(folder / CONFIG_FILE, model.config)
        write_safetensors(folder / WEIGHTS_FILE, model.tensors)
        if model.optimizer:
            write_safetensors(folder / OPTIMIZER_FILE, model.optimizer)
        Tokenizer(model.pieces, lowercase=lowercase).save(folder)
        _write_json(folder / PROVENANCE_FILE, {"provenance": provenance})
    return Converted(
        out=str(destination),
        form="folder",
        tensors=len(model.tensors),
        parameters=sum(tensor.size for tensor in model.tensors.values()),
        optimizer_tensors=len(model.optimizer),
        lowercase=lowercase,
        left_out=model.left_out,
        notes=notes,
        warnings=model.warnings,
    )


def _to_google(source: Path, prefix: Path, lowercase: bool | None, with_optimizer: bool) -> Converted:
    _check_free(prefix.parent)
    safe_join(prefix.parent, prefix.name)
    config = read_json_object(source / CONFIG_FILE)
    tensors = with_modern_names(read_safetensors(source / WEIGHTS_FILE))
    tokenizer = Tokenizer.from_folder(source)
    left_out = [name for name in tensors if not name.startswith(("bert.", "cls."))]
    has_optimizer = (source / OPTIMIZER_FILE).is_file()
    optimizer = read_safetensors(source / OPTIMIZER_FILE) if has_optimizer and with_optimizer else {}
    if has_optimizer and not with_optimizer:
        left_out.append(OPTIMIZER_FILE)
    kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    with _new_folder(prefix.parent) as folder:
        warnings = write_google(folder / prefix.name, config, kept, tokenizer.pieces, optimizer)
    is_lower = tokenizer.rules.lowercase if lowercase is None else lowercase
    return Converted(
        out=str(prefix),
        form="google",
        tensors=len(kept),
        parameters=sum(tensor.size for tensor in kept.values()),
        optimizer_tensors=len(optimizer),
        lowercase=is_lower,
        left_out=left_out,
        notes=[
            *([_left_out_note(left_out)] if left_out else []),
            *(["hidden_act gelu_new is called gelu there"] if config.get("hidden_act") == "gelu_new" else []),
            f"the original code must be told --do_lower_case={is_lower}; its files do not say it",
        ],
        warnings=warnings,
    )


def has_capitals(pieces: Sequence[str]) -> bool:
    """Tell whether a vocabulary has ASCII capitals outside of its special and unused pieces."""
    return any(
        "A" <= char <= "Z" for piece in pieces if piece not in SPECIAL_TOKENS and piece[:1] != "[" for char in piece
    )


def _left_out_note(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    state = (
        "; --with-optimizer keeps Adam's state" if any("adam_" in name or "optimizer" in name for name in names) else ""
    )
    return f"left out: {', '.join(name[:80] for name in names[:3])}{more}{state}"


def _check_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and not an empty folder; give a new one, for the files belong together")


def _new_folder(folder: Path) -> AbstractContextManager[Path]:
    if folder.is_dir():
        os.rmdir(os.path.realpath(folder))  # empty, or this is refused
    return atomic_folder(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        json.dump(content, stream, indent=2, sort_keys=True, ensure_ascii=False)
        stream.write("\n")
