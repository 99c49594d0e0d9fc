"""`bertworks convert`: a checkpoint of the original BERT to a model folder, and a model folder to such a checkpoint.

Where it is allowed, also a folder with pickled weights to one without; and where a dtype is given, a model or run
folder to one with weights of that type. The way is told by what SRC is. Everything is read and checked before a byte
is written, and the folder of the result appears whole. Nothing is lost without a word: what is left out is named.
"""

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertworks import __version__
from bertworks.errors import UserError
from bertworks.files import atomic_folder, atomic_write, safe_join, sha256_of, usable_path
from bertworks.models.find import find_model, is_model
from bertworks.models.folder import (
    BERT_TYPE,
    CONFIG_FILE,
    OPTIMIZER_FILE,
    OWN_FILE,
    RIGHT_TO_LEFT_TYPE,
    WEIGHTS_FILE,
    check_files,
    has_safetensors,
    is_pickle,
    no_weights,
    pickles_in,
    read_json,
    read_tensors,
    refusal,
    save_tokenizer,
)
from bertworks.models.google import Tensors, read_google, write_google
from bertworks.models.names import COUNTERS, GLOBAL_STEP, SLOTS, TIED, by_modern_names, huggingface_names
from bertworks.models.sentence_transformers import find_encoder
from bertworks.models.weights import read_arrays, write_arrays
from bertworks.text.kinds import CLASSES, TOKENIZER_FILES, AnyTokenizer, kind_of
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from bertworks.text.vocabulary import SPECIAL_TOKENS

FORMS = ("google", "folder")
DEFAULT_PREFIX = "bert_model.ckpt"
_NO_STATE = "it has no state of Adam's; leave out --with-optimizer"
_RUN_STATE = "state.json"  # of a run's checkpoint, whose optimizer goes by our names of parameters


class Converted(NamedTuple):
    """What was made, for a person and for a script."""

    out: str
    form: str  # "folder" or "google"
    tensors: int
    parameters: int
    optimizer_tensors: int
    lowercase: bool | None  # None: the source has no vocabulary
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
    from_pickle: bool = False,
    dtype: str | None = None,
) -> Converted:
    """Convert a checkpoint of the original BERT to a model folder, or a model folder to such a checkpoint.

    Args:
        source: a checkpoint's prefix, one of its files or its folder; or a model folder.
        destination: a folder that is not there yet or is empty; or, for a checkpoint, a prefix in such a folder.
        to: "google" or "folder"; None: a checkpoint where `destination` ends in .ckpt, else a folder.
        lowercase: whether the model was trained on lower-cased text; None: what the vocabulary looks like.
        with_optimizer: convert Adam's state and the step too.
        from_pickle: make a folder of one whose weights are pickled; they are read as data, and no code is run.
        dtype: float32, bfloat16 or float16: make of a model or run folder one with weights of this type.
    """
    source, destination = usable_path(source), usable_path(destination)
    if source.is_dir():
        find_model(source) if is_model(source) else check_files(source)
    to = to or ("google" if destination.suffix == ".ckpt" else "folder")
    if to not in FORMS:
        raise UserError(f"--to {to!r:.60} is not possible; choose {' or '.join(FORMS)}")
    if dtype is not None:
        if to == "google" or with_optimizer or from_pickle:
            raise UserError("--dtype makes a model folder of a model or run folder; give SRC, a new folder and no more")
        return _to_dtype(source, destination, lowercase, dtype)
    if pickle := _pickle_of(source):
        if not from_pickle:
            raise UserError(refusal(pickle))
        if to == "google" or with_optimizer or not source.is_dir():
            raise UserError(
                f"--allow-pickle makes a model folder of a folder and nothing else: give {pickle.parent} and a new "
                "folder, without --with-optimizer; a checkpoint of Google's can then be made of that"
            )
        return _from_pickle(source, destination, lowercase)
    if to == "google" and is_model(source):
        source = _newest_checkpoint(source) if with_optimizer else Path(find_model(source))
    is_folder = (source / CONFIG_FILE).is_file()
    if to == "folder" and (is_folder or (is_model(source) and not _is_checkpoint(source))):
        raise UserError(_why_no_folder(source))
    if not is_folder and to == "google":
        raise UserError(f"{source} is no model folder: it has no {CONFIG_FILE}, so no checkpoint can be made of it")
    if is_folder:
        prefix = destination if destination.suffix == ".ckpt" else destination / DEFAULT_PREFIX
        return _to_google(source, prefix, lowercase, with_optimizer)
    return _to_folder(source, destination, lowercase, with_optimizer)


def _why_no_folder(source: Path) -> str:
    """Say why no model folder is made of one: it is there already, or its weights are missing or a pickle."""
    model = find_encoder(find_model(source))
    if not has_safetensors(model):
        return no_weights(model)
    return f"{source} is a model folder already; give --to google for a checkpoint, or --dtype"


def _newest_checkpoint(source: Path) -> Path:
    """Return a run's newest whole checkpoint, whose weights and Adam's state are of one step; of another model it."""
    if not (source / "checkpoints").is_dir():
        return Path(find_model(source))
    from bertworks.train.checkpoint import latest_checkpoint  # needs torch

    newest = latest_checkpoint(source)
    return newest.path if newest else Path(find_model(source))


def _of_a_run(optimizer: Tensors, weights: Tensors, source: Path) -> Tensors:
    """Return what a run's checkpoint keeps of Adam by Hugging Face's names; the three of attention are one of ours."""
    found: Tensors = {GLOBAL_STEP: np.asarray(optimizer[GLOBAL_STEP])} if GLOBAL_STEP in optimizer else {}
    for name, tensor in optimizer.items():
        ours, _, slot = name.rpartition(".")
        if slot not in SLOTS:
            continue  # the mean of a weight, which Google's code does not have
        try:
            theirs = huggingface_names(ours)
        except KeyError:
            raise UserError(f"{source}: Google's code has no place for Adam's state of {ours[:80]}") from None
        parts = dict(zip(theirs, np.split(tensor, len(theirs)), strict=True))
        for part, array in parts.items():
            if part in weights and weights[part].shape != array.shape:
                raise UserError(
                    f"{source}: fine-tuning keeps Adam's state of the rows in use alone, which Google's code cannot "
                    "take; leave out --with-optimizer"
                )
        found |= {f"{part}.{slot}": array for part, array in parts.items() if part in weights}
    return found


def _pickle_of(source: Path) -> Path | None:
    """Return the pickle that stands where weights should, if there is one."""
    if source.is_dir():
        return None if any(source.glob("*.index")) else next(iter(pickles_in(source)), None)
    return source if source.is_file() and is_pickle(source) else None


def _is_checkpoint(source: Path) -> bool:
    return Path(f"{source}.index").is_file() or any(source.glob("*.index"))


def _to_folder(source: Path, destination: Path, lowercase: bool | None, with_optimizer: bool) -> Converted:
    _check_free(destination)
    model = read_google(source, with_optimizer=with_optimizer)
    notes = [_left_out_note(model.left_out)] if model.left_out else []
    if with_optimizer and not model.optimizer:
        raise UserError(f"{source}: {_NO_STATE}")
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
        write_arrays(folder / WEIGHTS_FILE, model.tensors)
        if model.optimizer:
            write_arrays(folder / OPTIMIZER_FILE, model.optimizer)
        save_tokenizer(Tokenizer(model.pieces, lowercase=lowercase), folder)
        _write_json(folder / OWN_FILE, {"provenance": provenance})
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
    if prefix.parent == Path():
        raise UserError(f"{prefix} would be several files among others; give NEW_FOLDER/{prefix.name}")
    _check_free(prefix.parent)
    safe_join(prefix.parent, prefix.name)
    config = read_json(source / CONFIG_FILE)
    if config.get("model_type") not in (None, BERT_TYPE, RIGHT_TO_LEFT_TYPE):
        raise UserError(f"{source} is of the type {config['model_type']}; a checkpoint of Google's is a BERT")
    tensors = _each_once(by_modern_names(read_tensors(source, read_arrays), source))
    tokenizer = Tokenizer.from_folder(source)
    left_out = [name for name in tensors if not name.startswith(("bert.", "cls."))]
    has_optimizer, is_runs_own = ((source / name).is_file() for name in (OPTIMIZER_FILE, _RUN_STATE))
    if with_optimizer and not has_optimizer:
        raise UserError(f"{source}: {_NO_STATE}")
    optimizer = read_arrays(source / OPTIMIZER_FILE) if with_optimizer else {}
    if has_optimizer and not with_optimizer:
        left_out.append(OPTIMIZER_FILE)
    kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    if is_runs_own and optimizer:
        optimizer = _of_a_run(optimizer, kept, source)
    with _new_folder(prefix.parent) as folder:
        warnings = write_google(folder / prefix.name, config, kept, tokenizer.pieces, optimizer)
    is_lower = tokenizer.rules.lowercase if lowercase is None else lowercase
    warnings += _other_rules(tokenizer.rules, is_lower)
    return Converted(
        out=str(prefix),
        form="google",
        tensors=len(kept),
        parameters=sum(tensor.size for tensor in kept.values()),
        optimizer_tensors=len(optimizer),
        lowercase=is_lower,
        left_out=left_out,
        notes=[
            *([_left_out_note(left_out, is_runs_own=is_runs_own)] if left_out else []),
            *(["hidden_act gelu_new is called gelu there"] if config.get("hidden_act") == "gelu_new" else []),
            f"the original code must be told --do_lower_case={is_lower}; its files do not say it",
        ],
        warnings=warnings,
    )


def _other_rules(rules: Rules, is_lower: bool) -> list[str]:
    """Say where the original code, which knows only whether it lower-cases, splits text in another way."""
    found = []
    if is_lower and not rules.strip_accents:
        found.append(
            "the model keeps accents, and the original code strips them from what it lower-cases, which takes Hangul "
            "apart too: give it text that is lower-cased already, with --do_lower_case=False"
        )
    if not rules.split_cjk:
        found.append("the model leaves Chinese characters together, and the original code splits them")
    return found


def _each_once(tensors: Tensors) -> Tensors:
    """Leave out copies and counters; a copy that is none is an error."""
    for copy, original in TIED.items():
        if copy in tensors and not np.array_equal(tensors[copy], tensors[original]):
            raise UserError(
                f"{copy} is not the same as {original}; BERT has one matrix for both, so it cannot be written"
            )
    return {name: tensor for name, tensor in tensors.items() if name not in TIED and name not in COUNTERS}


def _from_pickle(source: Path, destination: Path, lowercase: bool | None) -> Converted:
    from bertworks.models.pickles import read_pickled_folder, write_unpickled  # needs torch

    _check_free(destination)
    tensors = read_pickled_folder(source)
    with _new_folder(destination) as folder:
        left_out = write_unpickled(folder, source, tensors)
        tokenizer = _tokenizer_of(folder, lowercase)
    return _rewritten(destination, tensors, tokenizer, left_out, [])


def _to_dtype(source: Path, destination: Path, lowercase: bool | None, dtype: str) -> Converted:
    from bertworks.models.recast import check_dtype, read_recast, write_recast  # needs torch

    check_dtype(dtype)
    _check_free(destination)
    model = find_model(source)
    tensors, notes = read_recast(model, dtype)
    with _new_folder(destination) as folder:
        left_out = write_recast(folder, model, tensors)
        tokenizer = _tokenizer_of(folder, lowercase)
    return _rewritten(destination, tensors, tokenizer, left_out, notes)


def _rewritten(
    destination: Path, tensors: dict[str, Any], tokenizer: Any, left_out: list[str], notes: Sequence[str]
) -> Converted:
    return Converted(
        out=str(destination),
        form="folder",
        tensors=len(tensors),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        optimizer_tensors=0,
        lowercase=tokenizer.rules.lowercase if tokenizer else None,
        left_out=left_out,
        notes=[*notes, *([_left_out_note(left_out)] if left_out else [])],
        warnings=[],
    )


def _tokenizer_of(folder: Path, lowercase: bool | None) -> AnyTokenizer | None:
    """Open a folder's tokenizer, if it has one, and set anew whether it lower-cases, if that is asked for."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES if name != TOKENIZER_CONFIG_FILE):
        return None
    tokenizer = CLASSES[kind_of(folder)].from_folder(folder)
    if lowercase is None or lowercase == getattr(tokenizer.rules, "lowercase", None):
        return tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise UserError("--cased and --lowercase are for a BERT's vocabulary; leave them out for this model")
    tokenizer = Tokenizer(tokenizer.pieces, lowercase=lowercase, split_cjk=tokenizer.rules.split_cjk)
    save_tokenizer(tokenizer, folder)
    return tokenizer


def has_capitals(pieces: Sequence[str]) -> bool:
    """Tell whether a vocabulary has ASCII capitals outside of its special and unused pieces."""
    return any(
        "A" <= char <= "Z" for piece in pieces if piece not in SPECIAL_TOKENS and piece[:1] != "[" for char in piece
    )


def _left_out_note(names: Sequence[str], *, is_runs_own: bool = False) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    has_state = not is_runs_own and any("adam_" in name or "optimizer" in name for name in names)
    state = "; --with-optimizer keeps Adam's state" if has_state else ""
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
