"""A run folder: held by one process, cleared of what a kill left half done, and with a `model/` that is always whole.

`RUN/model` is replaced in three steps, because no system renames a folder over a folder: the new model is completed as
`.next-model`, the old one gives up its name, the new one takes it. A kill before the first step is done leaves the old
model; after it the next start, which finds a complete `.next-model`, does the rest.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from pydantic import Field

from bertworks.config import ColumnNames, Settings, read_record
from bertworks.errors import CannotGoOn, UserError
from bertworks.files import (
    atomic_folder,
    atomic_write,
    exclusive,
    make_folder,
    read_object,
    remove_leftovers,
    set_aside,
    sync_folder,
    usable_path,
)
from bertworks.report.logs import CHECKPOINTS, MODEL

INPUTS_FILE = "inputs.json"
_NEXT_MODEL = ".next-model"
_ROOM_FACTOR = 2  # of what a save needs, so that a run does not fill the disk it lives on to the last byte


class ModelWriter(NamedTuple):
    """A model that can be written into a folder that is there, and about how many bytes it takes."""

    write: Callable[[Path], None]
    num_bytes: int


class Inputs(Settings):
    """What a run was started with besides its settings, so that its folder is enough to go on: `inputs.json`.

    Paths are absolute; what is no path (a model's name) stays as it was given.
    """

    command: Literal["pretrain", "finetune", "grid", "glue"]
    task: str | None = None
    model: str | None = None  # what is fine-tuned, or in pre-training trained further
    beside: str | None = None
    data: str | None = None
    train: str | None = None
    dev: str | None = None
    columns: dict[str, ColumnNames | None] = Field(default_factory=dict)
    init: str = "model"
    cache: str | None = None
    device: str = "auto"
    skip_bad_shards: bool = False
    max_steps: int | None = None  # as it was set; the recipe has what the epochs came to
    # Of several runs, whose folder has no one recipe:
    overrides: list[str] = Field(default_factory=list)
    plan: dict[str, bool | int] = Field(default_factory=dict)
    from_mnli: bool = False


def given_as(source: str | os.PathLike[str] | None) -> str | None:
    """Return how an input is recorded: a path as an absolute one, a name as it is."""
    if source is None:
        return None
    return str(Path(source).absolute()) if os.path.exists(source) else os.fspath(source)


def write_inputs(run: Path, inputs: Inputs) -> None:
    """Record what a run was started with."""
    with atomic_write(run / INPUTS_FILE) as stream:
        json.dump(inputs.model_dump(exclude_defaults=True), stream, ensure_ascii=False, indent=1)


def read_inputs(run: Path, *commands: str) -> Inputs | None:
    """Return what a run was started with; None where its folder does not say. It must be one of the commands."""
    path = run / INPUTS_FILE
    if not path.exists():
        return None
    inputs = read_record(Inputs, read_object(path), str(path))
    if inputs.command not in commands:
        raise UserError(f"{run} was started by {inputs.command}, not by {commands[0]}; go on with that command")
    return inputs


def refuse_missing(run: Path, missing: Sequence[str], *, resume: bool) -> NoReturn:
    """Say what must be given to start, or to go on where the folder does not say it."""
    named = ", ".join(missing)
    if not resume:
        raise UserError(f"to start a run, give {named}; only to go on (--resume) may they be left out")
    if not any((run / name).exists() for name in (*_TELLING, CHECKPOINTS)):
        raise UserError(f"{run} holds no run to go on with; to start one, give {named}")
    raise UserError(f"{run} does not say all that it was started with (an earlier version made it); give {named}")


def check_still_there(run: Path, **recorded: str | None) -> None:
    """Refuse to go on with recorded files that have moved; they may be given anew."""
    for option, path in recorded.items():
        if path is not None and not os.path.exists(path):
            raise UserError(
                f"{run} was started with {path}, which is not there any more; give it anew: --{option} PATH"
            )


_TELLING = {  # of what a folder holds: by the file that is there from the start, what it is and how it is gone on with
    "grid.json": "runs of a grid, which `search` resumes",
    "glue.json": "runs of GLUE, which `glue` resumes",
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
