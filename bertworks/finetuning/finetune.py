"""`bertworks finetune`: a model and a task's examples to a run folder.

The loop, the folder and exact resume are those of pre-training. The dev set is measured at the end of every epoch, and
`model/` holds the model that was best there so far by the task's main metric: it is replaced at the instant a better
one is measured, so that a run may be killed at any time and has its best model. Without settings of your own it is the
paper's fine-tuning (A.3): batches of 32, 3 epochs, Adam with a linear decay after a tenth of warm-up; dropout is the
model's own, 0.1 in the paper's.

A run starts from a model: a folder, a run folder or a name in the local cache. Its encoder is taken over, and its head
where it has the one that the task needs, with the same labels; what is missing is drawn from the seed. A run that is
resumed takes all of it from its checkpoint: the model that it came from may be gone.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, cast

from bertworks.config import check_overrides, read_recipe
from bertworks.errors import ConfigError, UserError
from bertworks.finetuning.network import (
    USUAL,
    AnyPath,
    TaskStart,
    check_elmo_settings,
    num_layers,
    open_features,
    open_network,
    raise_all,
    refused_sizes,
    starts_with_elmo,
)
from bertworks.finetuning.session import Finetuned, prepare
from bertworks.finetuning.settings import FinetuneSettings, TaskSettings, settings_for, without_effect, written
from bertworks.models.folder import find_encoder, find_model, read_about, read_rates
from bertworks.models.kinds import ELMO, ELMO_TASK, check_model, kind_of_model, read_model
from bertworks.nn.layers import find_device
from bertworks.report.logs import RECIPE_FILE
from bertworks.report.terminal import View, print_note, training_view, unseen
from bertworks.tasks import find_task
from bertworks.tasks.heads import TaskHead, kind_of
from bertworks.tasks.own_files import KINDS as OWN_KINDS
from bertworks.tasks.own_files import open_own, recorded_columns
from bertworks.tasks.task import DEV, TRAIN, Columns, Dataset, Task, open_dataset, split_off_dev
from bertworks.train.checkpoint import checkpoint_folders, latest_checkpoint
from bertworks.train.distributed import is_first_rank, joined_ranks, local_device
from bertworks.train.run_folder import (
    Inputs,
    check_out,
    check_still_there,
    given_as,
    hold_run,
    read_inputs,
    refuse_missing,
)
from bertworks.train.trainer import Trainer
from bertworks.train.warm_start import checksums

Init = Literal["model", "random"]
_log = logging.getLogger(__name__)


def finetune(
    task: str | None = None,
    *,
    model: AnyPath | None = None,
    out: AnyPath,
    data: AnyPath | None = None,
    train: AnyPath | None = None,
    dev: AnyPath | None = None,
    columns: Columns | Mapping[str, Any] | None = None,
    settings: FinetuneSettings | None = None,
    overrides: Sequence[str] = (),
    init: Init = "model",
    beside: AnyPath | None = None,
    resume: bool = False,
    cache: AnyPath | None = None,
    device: str = "auto",
    quiet: bool = False,
    view: View | None = None,
    note: Callable[[str], None] | None = None,
) -> Finetuned:
    """Fine-tune a model for a task into a run folder.

    Args:
        task: a benchmark's name, or a kind of task (classify, regress, multilabel, choose) on your own files.
        model: a model folder, a run folder, or a name in the local cache.
        out: the run folder; new or empty unless `resume`.
        data: the folder with a benchmark's files.
        train: your own file to learn from.
        dev: your own file to measure on; without it a tenth of the train file is split off.
        columns: of your own files; those that are not named are guessed.
        settings: all of them; without them they are the paper's.
        overrides: `section.key=value` over the paper's settings and the learning rate that the model recommends.
        init: whether the model's weights are taken, or only its sizes and vocabulary.
        beside: a second BERT, of the other direction, whose token outputs go beside the first one's.
        resume: continue from the newest checkpoint; start if there is none, and do nothing if the run is finished.
            Arguments that are left out are read from the run folder.
        cache: a folder of frozen features that several runs share; by default they are in the run folder.
        device: where to train.
        quiet: show nothing; otherwise progress is shown on the error stream.
        view: shows the progress instead of the default display.
        note: is called with remarks at the start, instead of showing them.

    Example:
        >>> run = bw.finetune(
        ...     "classify", model="mini", train="reviews.csv", dev="reviews.csv", out="reviews",
        ...     overrides=["train.epochs=3", "train.batch_size=8"], quiet=True,
        ... )
        >>> run.metric, run.score > 0.8, run.progress.step
        ('accuracy', True, 12)
        >>> bw.load("reviews").labels
        ['bad', 'good']
    """
    run, note = Path(out), note or (_log.info if quiet or not is_first_rank() else print_note)
    check_out(run, RECIPE_FILE, resume=resume)
    check_overrides(overrides)
    inputs = read_inputs(run, "finetune") if resume else None
    if resume and settings is None and None in (task, model) and (run / RECIPE_FILE).is_file():
        # The recipe has the steps of all its epochs, and the overrides may change the epochs.
        most = [f"train.max_steps={inputs.max_steps}"] if inputs and inputs.max_steps else []
        settings = read_recipe(FinetuneSettings, str(run / RECIPE_FILE), [*most, *overrides])
        overrides = ()
    if inputs:
        recorded = {"data": inputs.data, "train": inputs.train, "dev": inputs.dev}
        given = {"data": data, "train": train, "dev": dev}
        check_still_there(run, **{name: path for name, path in recorded.items() if given[name] is None})
        data, train, dev = (recorded[name] if given[name] is None else given[name] for name in recorded)
        task, model, beside = task or inputs.task, model or inputs.model, beside or inputs.beside
        columns = inputs.columns if columns is None else columns
        cache, init = cache or inputs.cache, cast(Init, inputs.init) if init == "model" else init
        device = inputs.device if device == "auto" else device
    if task is None or model is None:
        where = ["--data DIR, or --train FILE and --dev FILE"] * (data is None and train is None)
        refuse_missing(run, ["TASK"] * (task is None) + ["--model MODEL"] * (model is None) + where, resume=resume)
    if init not in ("model", "random"):
        raise UserError(f"init {str(init)[:40]!r} is not known; choose model or random")
    if settings is not None and overrides:
        raise UserError("settings have everything that overrides would change; give one of the two")
    for source in () if resume else (model, beside):
        if source is not None:
            check_model(source)
    dataset = find_data(task, data, {TRAIN: train, DEV: dev}, note, columns)
    for line in without_effect(dataset.task, overrides):
        note(line)
    if settings is None:
        usual = usual_for(model, run, dataset.task, overrides, note)
        try:
            settings = settings_for(dataset.task, [*usual, *overrides])
        except ConfigError as error:  # together with what the model would refuse later
            refused = refused_by_model(dataset.task, model, overrides)
            raise ConfigError(error.where, [*error.problems, *refused]) from error
    if cache is not None and not settings.task.features:
        raise UserError("--cache keeps the features of frozen layers; it goes with --features LAYERS")
    inputs = Inputs(
        command="finetune", task=task, model=given_as(model), beside=given_as(beside), data=given_as(data),
        train=given_as(train), dev=given_as(dev), columns=recorded_columns(task, columns), init=init,
        cache=given_as(cache), device=device, max_steps=settings.train.max_steps,
    )  # fmt: skip
    with training_view(view, quiet=quiet or not is_first_rank()) as view:
        return tune(
            dataset, settings, model, run,
            is_random=init == "random", beside=beside, cache=cache, device=device, view=view, note=note, inputs=inputs,
        )  # fmt: skip


def tune(
    dataset: Dataset,
    settings: FinetuneSettings,
    model: AnyPath,
    run: Path,
    *,
    is_random: bool = False,
    beside: AnyPath | None = None,
    cache: AnyPath | None = None,
    device: str = "auto",
    view: View = unseen,
    note: Callable[[str], None] = _log.info,
    kind: TaskHead | None = None,
    inputs: Inputs | None = None,
) -> Finetuned:
    """Fine-tune on an open dataset, from the newest checkpoint if there is one; the other arguments are `finetune`'s.

    `kind` is by default the task's; `inputs` are recorded, to resume the run.
    """
    torch_device, kind = local_device(find_device(device)), kind or kind_of(dataset.task)
    if starts_with_elmo(model, run):
        check_elmo_settings(settings, is_random=is_random)
    start = open_task_start(
        model, run, dataset.task, kind, settings.task,
        seed=settings.train.seed, is_random=is_random, beside=beside,
    )  # fmt: skip
    for line in start.notes:
        note(line)
    with joined_ranks(torch_device, settings.train.rank_timeout) as ranks:
        if settings.task.features:
            kept = Path(cache) if cache else None
            start = start._replace(features=open_features(start.net, kept, run, settings, torch_device, ranks, note))
        task = prepare(settings, dataset, start, note, kind, is_new=not checkpoint_folders(run))
        trainer = Trainer(task, task.settings, run, torch_device, ranks, view)
        with hold_run(run) if ranks.is_first else nullcontext(), closing(task.clock):
            ranks.wait()
            with trainer.start(inputs, note) as progress:
                return task.finish(trainer.train(progress))


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


def check_settings(folders: Sequence[Path], settings: Iterable[FinetuneSettings], *, is_random: bool) -> None:
    """Refuse settings of any run that the model, or one of two, would refuse, before the first run begins."""
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

    The model of a resumed run may have been deleted; its checkpoint names the same rates.
    """
    if starts_with_elmo(source, run):
        return USUAL
    given = {override.partition("=")[0].strip() for override in overrides}
    started = checkpoint_folders(run)
    rates = read_rates(read_about(started[0] if started else find_encoder(find_model(source))))
    if not rates or given & {"optim.lr", "task.features"}:
        return ()
    values = ",".join(map(written, rates["lr_grid"] if is_grid else [rates["lr"]]))
    if not started:  # else it was reported before
        usual = written(task.defaults.learning_rate)
        note(f"optim.lr={values}, as {source} recommends; for BERT base it would be {usual}")
    return (f"optim.lr={values}",)


def refused_by_model(task: Task, model: AnyPath, overrides: Sequence[str]) -> Iterator[str]:
    """Yield the problems of a model's name, or of single settings with the model, besides those found already."""
    try:
        folders = [find_encoder(find_model(model))]
    except UserError as error:
        yield str(error)
        return
    valid: list[str] = []
    for override in overrides:
        if override.partition("=")[0].strip() in ("task.max_length", "task.freeze"):
            with suppress(ConfigError):  # reported already
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
        is_random: take only sizes and vocabulary.
        beside: a second BERT, whose outputs go beside the first one's.
    """
    started = latest_checkpoint(run) if run.exists() else None
    about = _begun(started.path, source, beside) if started else None
    if about and is_random and about.get("init") != "random":
        raise UserError(f"the run in {run} was started from a model's weights; leave out --init random")
    is_random = is_random if about is None else about.get("init") == "random"
    sources = [source] if beside is None else [source, beside]
    folders = [started.path] if started else [find_encoder(find_model(one)) for one in sources]
    # With features the encoder is not trained, so its weights are read from the checkpoint here.
    is_drawn = is_random and not (settings.features and started)
    start = open_network(
        folders[0], task, {kind.head: kind.num_outputs(task)}, settings, seed=seed, is_random=is_drawn,
        beside=folders[1] if folders[1:] else None,
    )  # fmt: skip
    if about is None:
        about = {"model": os.fspath(source), "weights": _weights(folders), "init": "random" if is_random else "model"}
        about |= start.about | ({} if beside is None else {"with": os.fspath(beside)})
    return start._replace(about=about, rates=read_rates(read_about(folders[0])))


def _begun(checkpoint: Path, source: AnyPath, beside: AnyPath | None) -> dict[str, Any]:
    """Return the model that a resumed run started from; another model is an error, a deleted one is not."""
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
