"""The start of fine-tuning: a task's files as examples, and a model with a new head.

A model is a folder, a run folder or a name in the local cache. Its encoder is taken over, and its head where it has the
one that the task needs, with the same labels; what is missing is drawn from the seed. A resumed run takes all of
it from its checkpoint: the model that it came from may be gone. What kind of model it is decides who opens it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertworks.errors import ConfigError, UserError
from bertworks.finetuning.network import (
    USUAL,
    AnyPath,
    TaskStart,
    Wanted,
    check_elmo_settings,
    num_layers,
    open_network,
    raise_all,
    refused_sizes,
    starts_with_elmo,
)
from bertworks.finetuning.settings import FinetuneSettings, TaskSettings, settings_for, written
from bertworks.models.folder import find_encoder, find_model, read_about, read_rates
from bertworks.models.kinds import ELMO, ELMO_TASK, kind_of_model, read_model
from bertworks.tasks import find_task
from bertworks.tasks.columns import Columns
from bertworks.tasks.examples import Example, Skipped
from bertworks.tasks.heads import TaskHead
from bertworks.tasks.own_files import KINDS as OWN_KINDS
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import DEV, TRAIN, Dataset, Task, open_dataset, split_off_dev
from bertworks.train.checkpoint import checkpoint_folders, latest_checkpoint
from bertworks.train.warm_start import checksums


def find_data(
    name: str,
    data: AnyPath | None,
    files: Mapping[str, AnyPath | None],
    note: Callable[[str], None],
    columns: Columns | Mapping[str, Any] | None = None,
) -> Dataset:
    """Open a benchmark by its name and folder, or a kind of task by your own files; reports what was guessed."""
    given = {split: path for split, path in files.items() if path is not None}
    for role, path in (("data", data), *given.items()):
        if not isinstance(path, str | os.PathLike | None):
            raise UserError(f"{role}: a {type(path).__name__} where one path is expected; write examples to a file")
    if not isinstance(name, str):
        raise UserError(f"the task {str(name)[:40]!r} is not a name; see `bertworks tasks`")
    if name in OWN_KINDS:
        if data is not None:
            raise UserError(f"{name} is trained on your own files, named with --train and --dev: leave --data out")
        if TRAIN not in given:
            raise UserError(f"{name} is trained on your own files: give --train FILE, and --dev FILE if you have one")
        dataset = open_own(name, given, columns)
    else:
        task = find_task(name)
        if given or data is None:
            wanted = "give --data DIR" if data is None else f"leave {' and '.join(f'--{split}' for split in given)} out"
            kinds = ", ".join(OWN_KINDS)
            raise UserError(f"{task.title} is read from a folder: {wanted}; your own files are for {kinds}")
        dataset = open_dataset(task, Path(data))
    if DEV not in dataset.found:
        dataset = split_off_dev(dataset)
    for line in dataset.notes:
        note(line)
    return dataset


def examples_of(dataset: Dataset, split: str, note: Callable[[str], None]) -> list[Example]:
    """Read a split, report what was left out, and refuse one without examples."""
    skipped = Skipped()
    examples = list(dataset.examples(split, skipped))
    if skipped and not (split == DEV and DEV in dataset.chosen):  # split off from train, for which it is reported
        note(f"{split}: {skipped}")
    if not examples:
        raise UserError(f"{dataset.task.title}: the {split} split in {dataset.origin} has no examples")
    return examples


def check_settings(folders: Sequence[Path], settings: Iterable[FinetuneSettings], *, is_random: bool) -> None:
    """Refuse what the model, or one of two, would refuse of many runs' settings, before any of them begins."""
    is_elmo = [kind_of_model(folder) in (ELMO, ELMO_TASK) for folder in folders]
    nets = {folder: read_model(folder).net for folder, elmo in zip(folders, is_elmo, strict=True) if not elmo}
    most = max(map(num_layers, nets.values()), default=0)
    problems: list[str] = []
    for one in settings:
        if is_elmo[0]:
            check_elmo_settings(one, is_random=is_random)
        for folder, net in nets.items():
            problems += refused_sizes(one.task, net.config.max_position_embeddings, most, folder)
    raise_all("settings that do not fit the model", list(dict.fromkeys(problems)))


def usual_for(
    source: AnyPath,
    run: Path,
    task: Task,
    overrides: Sequence[str],
    note: Callable[[str], None],
    *,
    is_grid: bool = False,
) -> tuple[str, ...]:
    """Return and report settings to apply before the user's: an ELMo's, or the learning rates that a model names.

    A resumed run may have lost the model it came from, but its checkpoint has the same.
    """
    if starts_with_elmo(source, run):
        return USUAL
    given = {override.partition("=")[0].strip() for override in overrides}
    started = checkpoint_folders(run)
    rates = read_rates(read_about(started[0] if started else find_encoder(find_model(source))))
    if not rates or given & {"optim.lr", "task.features"}:
        return ()
    values = ",".join(map(written, rates["lr_grid"] if is_grid else [rates["lr"]]))
    if not started:  # it was reported then
        usual = written(task.defaults.learning_rate)
        note(f"optim.lr={values}, as {source} recommends; for BERT base it would be {usual}")
    return (f"optim.lr={values}",)


def refused_by_model(task: Task, model: AnyPath, overrides: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a model's name, or what it refuses of single settings, beside what is wrong anyway."""
    try:
        folders = [find_encoder(find_model(model))]
    except UserError as error:
        yield str(error)
        return
    valid: list[str] = []
    for override in overrides:
        if override.partition("=")[0].strip() in ("task.max_length", "task.freeze"):
            with suppress(ConfigError):  # which is among the others
                settings_for(task, [override])
                valid.append(override)
    try:
        check_settings(folders, [settings_for(task, valid)] if valid else [], is_random=False)
    except ConfigError as error:
        yield from error.problems
    except UserError as error:
        yield str(error)


def open_task_start(
    source: AnyPath,
    run: Path,
    task: Task,
    kind: TaskHead,
    settings: TaskSettings,
    *,
    seed: int,
    is_random: bool,
    beside: AnyPath | None = None,
) -> TaskStart:
    """Make the network that is fine-tuned, on the CPU, with the models' weights or with weights drawn from the seed.

    Args:
        source: the model to start from.
        run: the run folder; a resumed run takes all from its newest checkpoint.
        task: what is learnt.
        kind: the task's.
        settings: of the task.
        seed: what is new is drawn from it.
        is_random: take nothing but sizes and vocabulary.
        beside: a second BERT, whose outputs go beside the first one's.
    """
    started = latest_checkpoint(run) if run.exists() else None
    about = _begun(started.path, source, beside) if started else None
    if about and is_random and about.get("init") != "random":
        raise UserError(f"the run in {run} was started from a model's weights; leave out --init random")
    is_random = is_random if about is None else about.get("init") == "random"
    sources = [source] if beside is None else [source, beside]
    folders = [started.path] if started else [find_encoder(find_model(one)) for one in sources]
    heads = {kind.head: kind.num_outputs(task)}
    wanted = Wanted(folders[0], folders[1] if folders[1:] else None, task, heads, settings, seed, is_random)
    if settings.features and started:  # the encoder is not trained, so the checkpoint gives its weights here or never
        wanted = wanted._replace(is_random=False)
    start = open_network(wanted)
    if about is None:
        about = {"model": os.fspath(source), "weights": _weights(folders), "init": "random" if is_random else "model"}
        about |= start.about | ({} if beside is None else {"with": os.fspath(beside)})
    return start._replace(about=about, rates=read_rates(read_about(folders[0])))


def _begun(checkpoint: Path, source: AnyPath, beside: AnyPath | None) -> dict[str, Any]:
    """Return where a resumed run came from; another model now is an error, one that is gone is not."""
    about: dict[str, Any] = (read_about(checkpoint).get("provenance") or {}).get("start") or {}
    try:
        sources = [source] if beside is None else [source, beside]
        is_another = _weights([find_encoder(find_model(one)) for one in sources]) != about.get("weights")
    except UserError:
        return about
    if is_another:
        began = " and ".join(str(about.get(name)) for name in ("model", "with") if name in about)
        now = " and ".join(map(str, sources))
        if not began:  # such as a run of pre-training, which has no such start
            raise UserError(f"the run in {checkpoint.parents[1]} was started from other weights than those of {now}")
        raise UserError(f"the run was started from {began}, whose weights are not those of {now}")
    return about


def _weights(folders: Sequence[Path]) -> dict[str, str]:
    """Return the checksums of the first model's files, and of those of a second one."""
    found = checksums(folders[0])
    return found | {f"with/{name}": digest for folder in folders[1:] for name, digest in checksums(folder).items()}
