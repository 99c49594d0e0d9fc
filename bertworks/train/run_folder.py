"""A run folder: held by one process, cleaned of what a kill left half done, with a `model/` that is always whole.

- `inputs.json` records what a run was started with, so that `--resume --out RUN` is enough.
- `RUN/model` is replaced in three steps, because no system renames a folder over a folder: the new model is completed
  as `.next-model`, the old one gives up its name, the new one takes it. A kill before the first step is done leaves the
  old model; after it the next start finds a complete `.next-model` and does the rest.
- A disk that refuses ends in an error that states how many bytes were needed and how many are free.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from pydantic import Field

from bertworks.config import ColumnNames, Settings, read_record
from bertworks.errors import CannotResume, UserError
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
_ROOM_FACTOR = 2  # times what a save needs must be free, so that a run does not fill its disk to the last byte


class Inputs(Settings):
    """What a run was started with besides its settings, so that its folder is enough to resume: `inputs.json`.

    Paths are absolute; what is not a path (a model's name) stays as it was given.
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
    max_steps: int | None = None  # as it was set; the recipe has the steps of all epochs
    # Of a folder of several runs, which has no single recipe:
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
        raise UserError(f"{run} was started by {inputs.command}, not by {commands[0]}; resume it with that command")
    return inputs


def refuse_missing(run: Path, missing: Sequence[str], *, resume: bool) -> NoReturn:
    """Raise an error that names what must be given to start, or to resume where the folder does not say it."""
    named = ", ".join(missing)
    if not resume:
        raise UserError(f"to start a run, give {named}; only --resume may leave them out")
    if not any((run / name).exists() for name in (*_TELLING, CHECKPOINTS)):
        raise UserError(f"{run} holds no run to resume; to start one, give {named}")
    raise UserError(f"{run} does not say all that it was started with (an earlier version made it); give {named}")


def check_still_there(run: Path, **recorded: str | None) -> None:
    """Refuse to resume if recorded files have moved; their new paths may be given."""
    for option, path in recorded.items():
        if path is not None and not os.path.exists(path):
            raise UserError(
                f"{run} was started with {path}, which is not there any more; give it again: --{option} PATH"
            )


_TELLING = {  # by a file that is there from the start: what the folder holds, and how it is resumed
    "grid.json": "runs of a grid, which `search` resumes",
    "glue.json": "runs of GLUE, which `glue` resumes",
    "recipe.toml": "one run, which the command that started it resumes",
}
_OWN = {*_TELLING, CHECKPOINTS, MODEL, "starts.jsonl"}  # of which every run folder soon has one


def check_out(folder: Path, telling: str, *, resume: bool) -> None:
    """Refuse a folder that is not empty, or, to resume, one that holds another kind of work."""
    if not usable_path(folder).exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another --out")
    # A run that was killed early may have left little, but no files of other kinds.
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    strangers = [] if names & _OWN else sorted(name for name in names if (folder / name).is_file())
    if strangers:
        raise UserError(f"{folder} holds no run, but {strangers[0]}; choose another --out")
    if not resume and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; continue it with --resume, or choose another --out")
    for name, what in _TELLING.items():
        if name != telling and (folder / name).exists():
            raise UserError(f"{folder} holds {what}; resume it so, or choose another --out")


@contextlib.contextmanager
def hold_run(run: Path) -> Iterator[None]:
    """Make a run folder if needed, lock it for this process and finish what a killed run had started."""
    make_folder(run, "run folder")
    with exclusive(run):
        try:
            remove_leftovers(run)
            remove_leftovers(run / CHECKPOINTS)
            _put_in_place(run)
        except OSError as error:
            raise UserError(f"cannot clear up what a killed run left in {run}: {error}") from error
        yield


@contextlib.contextmanager
def replace_model(run: Path, num_bytes: int) -> Iterator[Path]:
    """Give a folder to write a model of about `num_bytes` into, which then becomes RUN/model.

    The old model stays until the new one is complete, and stays if that fails.
    """
    target = run / MODEL
    check_room(run, target, num_bytes)
    with refusals_with_room(target, num_bytes):
        _put_in_place(run)  # what an earlier call could not put there
        with atomic_folder(run / _NEXT_MODEL) as temporary:
            yield temporary
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
        raise CannotResume(
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
        free = "an unknown number"
        for folder in reversed(target.absolute().parents):  # that of the nearest one that still exists counts
            with contextlib.suppress(OSError):
                free = f"{shutil.disk_usage(folder).free:,}"
        raise CannotResume(
            f"cannot save {target}: {refusal.strerror} (it needs {needed:,} bytes, {free} are free)"
        ) from error
