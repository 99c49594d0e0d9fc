"""A run folder: held by one process, cleared of what a kill left half done, and with a `model/` that is always whole.

`RUN/model` is replaced in three steps, because no system renames a folder over a folder: the new model is completed as
`.next-model`, the old one gives up its name, the new one takes it. A kill before the first step is done leaves the old
model; after it the next start, which finds a complete `.next-model`, does the rest.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import CannotGoOn, UserError
from bertworks.files import atomic_folder, exclusive, make_folder, remove_leftovers, set_aside, sync_folder, usable_path

CHECKPOINTS, MODEL = "checkpoints", "model"
_NEXT_MODEL = ".next-model"
_ROOM_FACTOR = 2  # of what a save needs, so that a run does not fill the disk it lives on to the last byte


class ModelWriter(NamedTuple):
    """A model that can be written into a folder that is there, and about how many bytes it takes."""

    write: Callable[[Path], None]
    num_bytes: int


_TELLING = {  # of what a folder holds: by the file that is there from the start, what it is and how it is gone on with
    "grid.json": "runs of a grid, with which finetune goes on by --grid or --restarts",
    "glue.json": "runs of GLUE, with which `finetune glue` goes on",
    "recipe.toml": "one run, with which the command goes on that has begun it",
}
_OWN = {*_TELLING, CHECKPOINTS, MODEL, "starts.jsonl"}  # one of which is there early


def check_out(folder: Path, telling: str, *, resume: bool) -> None:
    """Refuse a folder that is not empty, or, where one is gone on with, one that holds another kind of work."""
    if not usable_path(folder).exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    if strangers := _strangers(folder):
        raise UserError(f"{folder} holds no run, but {strangers[0]}; choose another --out")
    if not resume and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; go on in it with --resume, or choose another --out")
    for name, what in _TELLING.items():
        if name != telling and (folder / name).exists():
            raise UserError(f"{folder} holds {what}; do that, or choose another --out")


def _strangers(folder: Path) -> list[str]:
    """Return the files of a folder in which no run has begun: a killed one may have left little, but no other files."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    return [] if names & _OWN else sorted(name for name in names if (folder / name).is_file())


@contextlib.contextmanager
def hold_run(run: Path) -> Iterator[None]:
    """Make a run folder if need be, hold it for this process alone and finish what a killed run had begun."""
    make_folder(run, "run folder")
    with exclusive(run):
        _recover(run)
        yield


def _recover(run: Path) -> None:
    try:
        remove_leftovers(run)
        remove_leftovers(run / CHECKPOINTS)
        _put_in_place(run)
    except OSError as error:
        raise UserError(f"cannot clear up what a killed run left in {run}: {error}") from error


def publish_model(run: Path, model: ModelWriter) -> None:
    """Replace RUN/model; the old one stays until the new one is complete, and stays if that fails."""
    target = run / MODEL
    check_room(run, target, model.num_bytes)
    with refusals_with_room(target, model.num_bytes):
        _put_in_place(run)  # of a call before that could not
        with atomic_folder(run / _NEXT_MODEL) as temporary:
            model.write(temporary)
        _put_in_place(run)


def _put_in_place(run: Path) -> None:
    following, target = run / _NEXT_MODEL, run / MODEL
    if not following.is_dir():
        return
    if target.exists() or target.is_symlink():
        set_aside(target)
    os.rename(following, target)
    sync_folder(run)
    remove_leftovers(run)


def check_room(run: Path, target: Path, needed: int) -> None:
    """Raise a UserError unless the disk of a run folder has room for what is to be written there."""
    try:
        free = shutil.disk_usage(run).free
    except OSError as error:
        raise UserError(f"cannot save {target}: the run folder {run}: {error.strerror}") from error
    if free < _ROOM_FACTOR * needed:
        raise CannotGoOn(
            f"cannot save {target}: it needs {needed:,} bytes, {_ROOM_FACTOR * needed:,} should be free, and {free:,} "
            "are; free some or choose another disk"
        )


@contextlib.contextmanager
def refusals_with_room(target: Path, needed: int) -> Iterator[None]:
    """Turn the disk's refusals into a UserError that names the target and the bytes needed and free."""
    try:
        yield
    except (OSError, UserError) as error:
        refusal = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(refusal, OSError):
            raise
        raise CannotGoOn(
            f"cannot save {target}: {refusal.strerror} (it needs {needed:,} bytes, {_free_at(target)} are free)"
        ) from error


def _free_at(target: Path) -> str:
    """Return the free bytes of the disk where a path would lie, though folders on the way may be gone."""
    for folder in target.absolute().parents:
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(folder).free:,}"
    return "an unknown number"
