"""Checkpoints of a run: whole or not there, and the newest whole one is computed, never linked.

- `RUN/checkpoints/step-00001000/` is a model folder with what is needed to resume: `optimizer.safetensors` and
  `state.json` (step, state of the data, random numbers, versions, and which tensors there are). `manifest.json`, with
  the sha256 of every file, comes last; then the folder gets its name. What is frozen in a network may lie in a file
  that checkpoints share by hard links (`put_divided`).
- A save that fails costs no older checkpoint: these are deleted only when the new one has been read back and verified.
- What it costs: a save hashes its bytes twice, once for the manifest and once to verify it, at 1 to 2 GB/s; 1.3 GB for
  BERT base with Adam.
- No times or host names are written: the same training gives the same bytes. The state of torch's generator is for
  dropout on a CPU; all else that is random, dropout on a GPU too, is a hash of (seed, step, place) and has no state.
- A checksum of everything that decides what is computed shows whether a run is resumed with its own settings.
"""

import hashlib
import json
import logging
import os
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks import __version__
from bertworks.config import Settings, read_toml
from bertworks.data.shards import Dataset
from bertworks.errors import CorruptFile, UserError
from bertworks.files import MANIFEST_NAME, atomic_folder, atomic_write, discard_folder, sync_folder, verify_manifest
from bertworks.models.folder import CONFIG_FILE, read_json
from bertworks.models.weights import INDEX_FILE, OPTIMIZER_FILE, WEIGHTS_FILE, read_tensors, read_weights, write_weights
from bertworks.recipe import Recipe
from bertworks.report.logs import CHECKPOINTS
from bertworks.train.run_folder import check_room, refusals_with_room

FORMAT = 1  # of state.json
STATE_FILE = "state.json"
_NEEDED_FILES = (CONFIG_FILE, OPTIMIZER_FILE, STATE_FILE)
_TENSOR_FILES = (WEIGHTS_FILE, OPTIMIZER_FILE)
_FOLDER_NAME = re.compile(r"step-(\d{8,})")
_log = logging.getLogger(__name__)

Layout = dict[str, list[Any]]  # of each tensor: its type and shape, as ["float32", 30522, 768]


class Checkpoint(NamedTuple):
    """What a folder holds; the tensors are views of the mapped files, read when they are used."""

    path: Path
    step: int
    state: dict[str, Any]
    weights: dict[str, Tensor]  # under the names of the model folder's form
    optimizer: dict[str, Tensor]


@contextmanager
def new_checkpoint(
    run: Path, step: int, optimizer: Mapping[str, Tensor], state: Mapping[str, Any], *, model_bytes: int, keep: int
) -> Iterator[Path | None]:
    """Give a folder to write the model into, complete it to the checkpoint of a step, and delete old checkpoints.

    Args:
        run: the run folder.
        step: how many steps have been made.
        optimizer: every tensor that the optimizer carries over.
        state: what else is needed to resume, as JSON; the same training must give the same state.
        model_bytes: about how many bytes the model takes, its weights in fp32.
        keep: how many checkpoints to keep, at least 1.

    If the checkpoint of the step is there already and whole (the run was resumed from it), it gives None and leaves it.
    A disk that refuses ends in a UserError with the bytes needed and free, and nothing is left of the attempt.
    """
    folder = run / CHECKPOINTS / f"step-{step:08d}"
    needed = model_bytes + sum(tensor.nbytes for tensor in optimizer.values())
    check_room(run, folder, needed)
    with refusals_with_room(folder, needed):
        if _is_whole(folder):
            yield None
        else:
            folder.parent.mkdir(exist_ok=True)
            sync_folder(run)  # or a power cut could take the folder of all checkpoints
            with atomic_folder(folder) as temporary:
                yield temporary
                write_weights(temporary / OPTIMIZER_FILE, optimizer)
                layouts = {name: layout_of(tensors) for name, tensors in _tensors(temporary).items()}
                own = {
                    "format": FORMAT,
                    "step": step,
                    "versions": {"bertworks": __version__, "torch": torch.__version__},
                }
                assert not {*own, "tensors"} & set(state), "these names are the checkpoint's own"
                with atomic_write(temporary / STATE_FILE) as stream:
                    json.dump({**own, **state, "tensors": layouts}, stream, indent=1, allow_nan=False)
    prune(run, keep)


def _is_whole(folder: Path) -> bool:
    """Tell whether a whole checkpoint is there; a corrupt one is removed, as the run has reached its step again."""
    if not folder.exists():
        return False
    try:
        read_checkpoint(folder)
    except CorruptFile as error:
        _log.warning("%s is written again: %s", folder, error)
        discard_folder(folder)
        return False
    return True


def latest_checkpoint(run: Path) -> Checkpoint | None:
    """Return the whole checkpoint of the highest step; None if there are none at all.

    A corrupt one is skipped, with a warning that names its file and the reason. If all are corrupt that is an
    error: starting again would look like resuming.
    """
    folders = checkpoint_folders(run)
    newest = next(_whole(folders), None)
    if newest is None and folders:
        raise CorruptFile(
            f"none of the {len(folders)} checkpoints in {run / CHECKPOINTS} is intact, see the warnings; "
            "remove them to start again"
        )
    return newest


def _whole(folders: Sequence[Path]) -> Iterator[Checkpoint]:
    for folder in folders:
        try:
            yield read_checkpoint(folder)
        except CorruptFile as error:
            _log.warning("skipped a corrupt checkpoint: %s", error)


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the folders named as checkpoints, newest first, whole or not."""
    try:
        found = [path for path in (run / CHECKPOINTS).iterdir() if _FOLDER_NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        in_the_way = next(path for path in (run / CHECKPOINTS, run, *run.parents) if path.exists())
        raise UserError(f"{in_the_way} is not a folder, so {run} cannot be a run folder; choose another") from error
    except OSError as error:
        raise UserError(f"cannot read {run / CHECKPOINTS}: {error.strerror}") from error
    return sorted(found, key=_step_in_name, reverse=True)


def _step_in_name(folder: Path) -> int:
    match = _FOLDER_NAME.fullmatch(folder.name)
    assert match, folder
    return int(match[1])


def read_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint after verifying every byte of it, or raise CorruptFile with the file and the reason."""
    listed = verify_manifest(path)
    is_divided = INDEX_FILE in listed and not (path / WEIGHTS_FILE).exists()
    for name in (*_NEEDED_FILES, INDEX_FILE if is_divided else WEIGHTS_FILE):
        if name not in listed:
            raise CorruptFile(f"{path / MANIFEST_NAME} does not list {name}, which is needed to resume")
    where = path / STATE_FILE
    state = read_json(where)
    if type(written := state.get("format")) is int and written > FORMAT:
        raise UserError(f"{where} is of format {written}, and this version reads {FORMAT}; use a newer bertworks")
    if written != FORMAT or type(state.get("step")) is not int:
        raise CorruptFile(f"{where} has no format and step")
    if _FOLDER_NAME.fullmatch(path.name) and state["step"] != _step_in_name(path):
        raise CorruptFile(f"{where} is of step {state['step']}, not of its folder's")
    layouts = state.get("tensors")
    if not isinstance(layouts, dict) or not all(isinstance(layouts.get(name), dict) for name in _TENSOR_FILES):
        raise CorruptFile(f"{where} does not say which tensors there are")
    found = _tensors(path)
    for name, tensors in found.items():
        check_layout(path / name, layout_of(tensors), layouts[name])
    return Checkpoint(path, state["step"], state, found[WEIGHTS_FILE], found[OPTIMIZER_FILE])


def _tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return the model's tensors, in however many files they lie, and the optimizer's."""
    return {WEIGHTS_FILE: read_tensors(folder, read_weights), OPTIMIZER_FILE: read_weights(folder / OPTIMIZER_FILE)}


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """Describe tensors by their types and shapes, as JSON."""
    return {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in sorted(tensors.items())}


def check_layout(where: Path, found: Layout, wanted: Layout) -> None:
    """Raise CorruptFile for the first tensor of a file that is missing, surplus or of another type or shape."""
    for name in sorted({*found, *wanted}):
        if name not in found:
            raise CorruptFile(f"{where} lacks the tensor {name[:80]!r}")
        if name not in wanted:
            raise CorruptFile(f"{where} has a tensor {name[:80]!r} that does not belong there")
        if found[name] != wanted[name]:
            raise CorruptFile(f"{where}: {name[:80]!r} is {found[name]} and should be {str(wanted[name])[:80]}")


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, oldest first, once the newest whole one has been verified.

    Corrupt ones that are newer do not count; if none is whole, nothing is deleted.
    """
    assert keep >= 1, keep
    folders = checkpoint_folders(run)
    if len(folders) <= keep:
        return
    newest = next(_whole(folders), None)
    if newest is None:
        return
    for folder in reversed(folders[folders.index(newest.path) + keep :]):
        try:
            discard_folder(folder)
        except OSError as error:
            # The new checkpoint is safe, so a run does not end because an old one cannot be deleted.
            _log.warning("cannot delete the old checkpoint %s: %s", folder, error.strerror)


def be_deterministic() -> None:
    """Have torch add up in the same order every time; where it cannot, it raises an error that names the operation."""
    # cuBLAS splits sums over buffers as it likes unless their number is set before its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def restore_rng(state: str) -> None:
    """Set the CPU's generator to a state that `to_hex` wrote."""
    try:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"a checkpoint's state of random numbers is not one: {str(error)[:100]}") from error


def to_hex(state: Tensor) -> str:
    """Write what `torch.get_rng_state` returned."""
    return state.numpy().tobytes().hex()


# Settings that may differ when a run is resumed: how long it runs and what it logs, not what it computes; and how
# memory is saved, which gives the same numbers up to rounding, as another number of ranks does.
_LIMITS = {"max_steps", "epochs", "max_tokens", "max_minutes"}
_IDLE = {
    "save_minutes", "keep", "loader_workers", "on_nonfinite", "max_skips", "on_save_error", "rank_timeout", "recompute",
    "check_memory",
}  # fmt: skip
_SPREAD = {"shard"}  # in fine-tuning only the rows in use of a token table that is not spread are trained as such
_TRAIN, _TASK = "train", "task"


def digest_of(recipe: Recipe, dataset: Dataset) -> str:
    """Return the checksum of a recipe's settings and of the data's vocabulary and files."""
    files = {name: entry["sha256"] for name, entry in dataset.manifest["files"].items()}
    return digest_with(recipe, {"vocabulary": {"sha256": dataset.manifest["vocab_sha256"]}, "files": files})


def digest_with(recipe: Settings, more: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the checksum of all settings that decide what is computed, and of further sections."""
    # Defaults are left out, so that a later version, which has more settings, can resume the run.
    sections = _without(_free(type(recipe).model_fields), recipe.model_dump(exclude_defaults=True))
    return hashlib.sha256(json.dumps({**sections, **more}, sort_keys=True).encode()).hexdigest()


def outcome_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings, by sections, without those that do not change the result of a run."""
    return _without(_IDLE, settings)


def _free(sections: Container[str]) -> set[str]:
    """Return which settings of `[train]` may differ; a section for the task says that it is fine-tuning."""
    return _LIMITS | _IDLE if _TASK in sections else _LIMITS | _IDLE | _SPREAD


def _without(free: set[str], sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all sections, always with `[train]`, without the settings of `[train]` that may differ."""
    return {**sections, _TRAIN: {key: value for key, value in sections.get(_TRAIN, {}).items() if key not in free}}


def other_settings(recipe: Path, now: str) -> list[str] | None:
    """Name the settings by which a recipe in TOML differs from a file's, but for those that may; None if unreadable."""
    try:
        there, here = _decisive(read_toml(recipe)), _decisive(tomllib.loads(now))
    except (UserError, AttributeError):  # the latter for a value where a section is expected
        return None
    return [
        f"{key} was {there.get(key)}, not {here.get(key)}"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]


def _decisive(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, settings in _without(_free(recipe), recipe).items()
        for key, value in settings.items()
    }
