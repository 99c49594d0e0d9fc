"""`bertworks convert`: a checkpoint of the original BERT to a model folder, and a model folder to such a checkpoint.

- Where it is allowed, also a folder with pickled weights to one without; and where a dtype is given, a model or run
  folder to one with weights of that type: half the bytes to ship, or float32 for what reads nothing else. bfloat16
  keeps the range of float32 and 8 bits of each number; what does not fit, as may be with float16, is refused by name.
  int8 is for the matrices of a BERT's layers, a quarter of their bytes, and opens here alone (`nn/cpu.py`).
- What SRC is decides what is done. Everything is read and checked before a byte is written, and the folder of the
  result appears whole. What is left out is named.
- Between a checkpoint of Google's and a model folder nothing needs torch.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertworks import __version__
from bertworks.errors import UserError, counted
from bertworks.files import MANIFEST_NAME, atomic_folder, atomic_write, safe_join, sha256_of, usable_path
from bertworks.models.folder import (
    BERT_TYPE,
    CONFIG_FILE,
    INT8_OF,
    INT8_TYPE,
    OWN_FILE,
    RIGHT_TO_LEFT_TYPE,
    check_files,
    copy_small_files,
    find_encoder,
    find_model,
    int8_source,
    is_model,
    num_positions,
    read_json,
)
from bertworks.models.google import Tensors, read_google, write_google
from bertworks.models.names import (
    COUNTERS,
    GLOBAL_STEP,
    INTERMEDIATE,
    KEY,
    LAYER_MATRIX,
    QUERY,
    SLOTS,
    TIED,
    VALUE,
    by_modern_names,
    huggingface_names,
)
from bertworks.models.weights import (
    INDEX_FILE,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    dequantized,
    has_safetensors,
    is_pickle,
    no_weights,
    pickles_in,
    quantized,
    read_arrays,
    read_tensors,
    read_weights,
    refusal,
    write_arrays,
    write_weights,
)
from bertworks.text.kinds import CLASSES, TOKENIZER_FILES, kind_of
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from bertworks.text.vocabulary import SPECIAL_TOKENS, write_tokenizer_files

if TYPE_CHECKING:
    from torch import Tensor

FORMS = ("google", "folder")
DEFAULT_PREFIX = "bert_model.ckpt"
_DTYPES = ("float32", "bfloat16", "float16", "int8")
_NO_STATE = "it has no state of Adam's; leave out --with-optimizer"
_RUN_STATE = "state.json"  # of a run's checkpoint, whose optimizer goes by our names of parameters


class Converted(NamedTuple):
    """The result of a conversion."""

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
        dtype: float32, bfloat16, float16 or int8: make of a model or run folder one with weights of this type.

    Example:
        >>> written = bw.convert("mini", "mini-half", dtype="bfloat16")
        >>> bw.load("mini-half", dtype="bfloat16").dtype
        'bfloat16'
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
    is_checkpoint = Path(f"{source}.index").is_file() or any(source.glob("*.index"))
    pickle = source if source.is_file() and is_pickle(source) else None  # where weights should be
    if source.is_dir() and not any(source.glob("*.index")):
        pickle = next(iter(pickles_in(source)), None)
    if pickle:
        if not from_pickle:
            raise UserError(refusal(pickle))
        if to == "google" or with_optimizer or not source.is_dir():
            raise UserError(
                f"--allow-pickle makes a model folder of a folder and nothing else: give {pickle.parent} and a new "
                "folder, without --with-optimizer; a checkpoint of Google's can then be made of that"
            )
        from bertworks.models.pickles import read_pickled_folder  # needs torch

        _check_free(destination)
        return _rewrite(source, destination, read_pickled_folder(source), lowercase, ("pytorch_model*",))
    if to == "google" and is_model(source):
        newest = None
        if with_optimizer and (source / "checkpoints").is_dir():  # whose weights and Adam's state are of one step
            from bertworks.train.checkpoint import latest_checkpoint  # needs torch

            newest = latest_checkpoint(source)
        source = newest.path if newest else find_model(source)
    is_folder = (source / CONFIG_FILE).is_file()
    if to == "folder" and (is_folder or (not is_checkpoint and is_model(source))):
        model = find_encoder(find_model(source))
        there = f"{source} is a model folder already; give --to google for a checkpoint, or --dtype"
        raise UserError(there if has_safetensors(model) else no_weights(model))
    if not is_folder and to == "google":
        raise UserError(f"{source} is no model folder: it has no {CONFIG_FILE}, so no checkpoint can be made of it")
    if is_folder:
        prefix = destination if destination.suffix == ".ckpt" else destination / DEFAULT_PREFIX
        return _to_google(source, prefix, lowercase, with_optimizer)
    return _to_folder(source, destination, lowercase, with_optimizer)


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
        rules = Rules(lowercase=lowercase, strip_accents=lowercase)  # as in the original
        write_tokenizer_files(folder, model.pieces, rules, num_positions(folder))
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
        raise UserError(f"{prefix} would become several files in the current folder; give NEW_FOLDER/{prefix.name}")
    _check_free(prefix.parent)
    safe_join(prefix.parent, prefix.name)
    config = read_json(source / CONFIG_FILE)
    if config.get("model_type") not in (None, BERT_TYPE, RIGHT_TO_LEFT_TYPE):
        kind = config["model_type"]
        hint = "make it float32 with --dtype first" if kind == INT8_TYPE else "a checkpoint of Google's is a BERT"
        raise UserError(f"{source} is of the type {kind}; {hint}")
    tensors = by_modern_names(read_tensors(source, read_arrays), source)
    for copy, original in TIED.items():
        if copy in tensors and not np.array_equal(tensors[copy], tensors[original]):
            raise UserError(
                f"{copy} is not the same as {original}; BERT has one matrix for both, so it cannot be written"
            )
    tensors = {name: tensor for name, tensor in tensors.items() if name not in TIED and name not in COUNTERS}
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
    # The original code knows only whether it lower-cases.
    if is_lower and not tokenizer.rules.strip_accents:
        warnings.append(
            "the model keeps accents, and the original code strips them from what it lower-cases, which takes Hangul "
            "apart too: give it text that is lower-cased already, with --do_lower_case=False"
        )
    if not tokenizer.rules.split_cjk:
        warnings.append("the model leaves Chinese characters together, and the original code splits them")
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


def _to_dtype(source: Path, destination: Path, lowercase: bool | None, dtype: str) -> Converted:
    """Make a folder with numbers of another type; only floating-point tensors change, names and order do not."""
    if dtype not in _DTYPES:
        raise UserError(f"--dtype {dtype[:40]!r} is not possible; choose {', '.join(_DTYPES)}")
    import torch

    _check_free(destination)
    source = find_model(source)
    config = read_json(source / CONFIG_FILE)
    tensors, rounded, wanted = {}, set(), getattr(torch, dtype)
    if dtype == "int8" and config.get("model_type", BERT_TYPE) not in (BERT_TYPE, RIGHT_TO_LEFT_TYPE, INT8_TYPE):
        raise UserError(f"{source} is of the type {config['model_type']!s:.40}; int8 is for a BERT")
    stored = read_tensors(source, read_weights)
    for name, tensor in (stored if dtype == "int8" else dequantized(stored)[0]).items():
        recast = tensors[name] = tensor.to(wanted) if tensor.is_floating_point() and dtype != "int8" else tensor
        if bool((recast.isinf() & ~tensor.isinf()).any()):
            raise UserError(f"{name[:80]} has numbers too large for {dtype}; float32 keeps them")
        if torch.promote_types(tensor.dtype, recast.dtype) != recast.dtype:
            rounded.add(str(tensor.dtype).removeprefix("torch."))
    notes = [f"rounded from {', '.join(sorted(rounded))} to {dtype}"] if rounded else []
    if dtype == "int8" and config.get("model_type") != INT8_TYPE:
        factors = _int8_factors(source, tensors)
        tensors = quantized(tensors, factors)
        notes = [f"{counted(len(factors), 'matrix', 'matrices')} of the layers in int8, all else as it was"]
    return _rewrite(source, destination, tensors, lowercase, ("model*.safetensors", INDEX_FILE), dtype, notes)


def _int8_factors(source: Path, tensors: Iterable[str]) -> "dict[str, Tensor | None]":
    """Return the names of the matrices that become int8, with the factors of their inputs."""
    from bertworks.models.kinds import read_model
    from bertworks.nn.cpu import input_factors

    found = input_factors(read_model(source).net.eval().float())
    parts = {QUERY: 0, KEY: 0, VALUE: 0, INTERMEDIATE: 1}
    matches = filter(None, map(LAYER_MATRIX.fullmatch, tensors))
    return {m[0]: found[int(m["layer"])][parts[m["part"]]] if m["part"] in parts else None for m in matches}


def _rewrite(
    source: Path,
    destination: Path,
    tensors: "dict[str, Tensor]",
    lowercase: bool | None,
    replaced: Sequence[str],
    dtype: str | None = None,
    notes: Sequence[str] = (),
) -> Converted:
    """Make a folder of new weights and of copies of the small files of another.

    Args:
        source: the other.
        destination: the folder.
        tensors: the weights.
        lowercase: whether the tokenizer does that; None: as it did.
        replaced: patterns of names of files that the weights are instead of.
        dtype: the new type, for a config.json that states one: transformers goes by it.
        notes: for the user.
    """
    from bertworks.models.kinds import read_model  # needs torch

    with _new_folder(destination) as folder:
        copy_small_files(source, folder)
        write_weights(folder / WEIGHTS_FILE, tensors)
        was = config = read_json(folder / CONFIG_FILE)
        if dtype and config.get("model_type") == INT8_TYPE:
            config = int8_source(config)
        if dtype == "int8":  # of a type that other libraries refuse: they would read the rest without its scales
            config = config | {INT8_OF: config.get("model_type", BERT_TYPE), "model_type": INT8_TYPE}
        elif dtype:
            config = config | {key: dtype for key in ("dtype", "torch_dtype") if key in config}
        if config != was:
            with atomic_write(folder / CONFIG_FILE) as stream:
                json.dump(config, stream, ensure_ascii=False, indent=2)
        read_model(folder)  # or raise: what does not open is no result
        names = {path.name for path in source.iterdir()} - {path.name for one in replaced for path in source.glob(one)}
        left_out = sorted(name for name in names - {MANIFEST_NAME} if not (folder / name).exists())
        tokenizer = _tokenizer_of(folder, lowercase)
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


def _tokenizer_of(folder: Path, lowercase: bool | None) -> Any:
    """Open a folder's tokenizer, if it has one, and override whether it lower-cases, if requested."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES if name != TOKENIZER_CONFIG_FILE):
        return None
    tokenizer = CLASSES[kind_of(folder)].from_folder(folder)
    if lowercase is None or lowercase == getattr(tokenizer.rules, "lowercase", None):
        return tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise UserError("--cased and --lowercase are for a BERT's vocabulary; leave them out for this model")
    tokenizer = Tokenizer(tokenizer.pieces, lowercase=lowercase, split_cjk=tokenizer.rules.split_cjk)
    tokenizer.save(folder, max_length=num_positions(folder))
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
        raise UserError(
            f"{folder} exists and is not an empty folder; give a new one, because the files belong together"
        )


def _new_folder(folder: Path) -> AbstractContextManager[Path]:
    if folder.is_dir():
        os.rmdir(os.path.realpath(folder))  # empty, or this is refused
    return atomic_folder(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        json.dump(content, stream, indent=2, sort_keys=True, ensure_ascii=False)
        stream.write("\n")
