"""`bertworks finetune`: a model and a task's examples to a run folder.

The loop, the folder and exact resume are those of pre-training. The dev set is measured at the end of every epoch, and
`model/` holds the model that was best there so far by the task's main metric: it is replaced at the instant a better
one is measured, so that a run may be killed at any time and has its best model. Without settings of your own it is the
paper's fine-tuning (A.3): batches of 32, 3 epochs, Adam with a linear decay after a tenth of warm-up; dropout is the
model's own, 0.1 in the paper's.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

from bertworks.config import check_overrides, read_recipe
from bertworks.errors import ConfigError, UserError
from bertworks.finetuning.network import AnyPath, check_elmo_settings, open_features, starts_with_elmo
from bertworks.finetuning.session import Finetuned, prepare
from bertworks.finetuning.settings import FinetuneSettings, settings_for, without_effect
from bertworks.finetuning.start import find_data, open_task_start, refused_by_model, usual_for
from bertworks.models.kinds import check_model
from bertworks.nn.layers import find_device
from bertworks.report.logs import RECIPE_FILE
from bertworks.report.terminal import View, print_note, training_view, unseen
from bertworks.tasks.columns import Columns
from bertworks.tasks.heads import TaskHead, kind_of
from bertworks.tasks.own_files import recorded_columns
from bertworks.tasks.task import DEV, TRAIN, Dataset
from bertworks.train.checkpoint import checkpoint_folders
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
        resume: continue from the newest checkpoint; start if there is none, and do nothing if the run is finished. What
            is not given then is as it was: a run folder says its settings and its inputs.
        cache: where frozen features are kept, for several runs to share; in the run folder without it.
        device: where to train.
        quiet: show nothing; else how it goes is shown on the error stream.
        view: shows the progress, instead.
        note: is called with what is worth knowing at the start, instead.
    """
    run, note = Path(out), note or (_log.info if quiet or not is_first_rank() else print_note)
    check_out(run, RECIPE_FILE, resume=resume)
    check_overrides(overrides)
    inputs = read_inputs(run, "finetune") if resume else None
    if resume and settings is None and None in (task, model) and (run / RECIPE_FILE).is_file():
        # The recipe's steps are what the epochs came to, and epochs may be others now.
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
        except ConfigError as error:  # with what the model would refuse later: all problems at once
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
    """Fine-tune on examples that have been found, from the newest checkpoint if there is one; else as `finetune`.

    The kind is the task's if it is not given; inputs are recorded, to resume the run.
    """
    place, kind = local_device(find_device(device)), kind or kind_of(dataset.task)
    if starts_with_elmo(model, run):
        check_elmo_settings(settings, is_random=is_random)
    start = open_task_start(
        model, run, dataset.task, kind, settings.task,
        seed=settings.train.seed, is_random=is_random, beside=beside,
    )  # fmt: skip
    for line in start.notes:
        note(line)
    with joined_ranks(place, settings.train.rank_timeout) as ranks:
        if settings.task.features:
            kept = Path(cache) if cache else None
            start = start._replace(features=open_features(start.net, kept, run, settings, place, ranks, note))
        task = prepare(settings, dataset, start, note, kind, is_new=not checkpoint_folders(run))
        trainer = Trainer(task, task.settings, run, place, ranks, view)
        with hold_run(run) if ranks.is_first else nullcontext(), closing(task.clock):
            ranks.wait()
            with trainer.start(inputs, note) as progress:
                return task.finish(trainer.train(progress))
