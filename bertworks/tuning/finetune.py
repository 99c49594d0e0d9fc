"""`bertworks finetune`: a model and a task's examples to a run folder.

The loop, the folder and exact resume are those of pre-training. The dev set is measured at the end of every epoch, and
`model/` holds the model that was best there so far by the task's main metric: it is replaced at the instant a better
one is measured, so that a run may be killed at any time and has its best model. Without settings of your own it is the
paper's fine-tuning (A.3): batches of 32, 3 epochs, Adam with a linear decay after a tenth of warm-up; dropout is the
model's own, 0.1 in the paper's.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from bertworks.config import check_overrides
from bertworks.errors import UserError
from bertworks.nn.devices import find_device
from bertworks.tasks.kinds import Kind, kind_of
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.task import DEV, TRAIN, Dataset
from bertworks.train.distributed import joined_ranks, local_device
from bertworks.train.run_facts import RECIPE_FILE
from bertworks.train.run_folder import check_out, hold_run
from bertworks.train.view import View, unseen
from bertworks.tuning.elmo_start import check_elmo_settings, starts_with_elmo
from bertworks.tuning.frozen import open_features
from bertworks.tuning.session import Finetuned, Session
from bertworks.tuning.settings import FinetuneSettings, settings_for, without_effect
from bertworks.tuning.start import find_data, open_task_start, usual_for
from bertworks.tuning.task_start import AnyPath

Init = Literal["model", "random"]
_log = logging.getLogger(__name__)


def finetune(
    task: str,
    *,
    model: AnyPath,
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
    view: View = unseen,
    note: Callable[[str], None] = _log.info,
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
        resume: go on from the newest checkpoint; start if there is none, and do nothing if the run is finished.
        cache: where frozen features are kept, for several runs to share; in the run folder without it.
        device: where to train.
        view: shows a person how it goes.
        note: is told what a person wants to know at the start.
    """
    run = Path(out)
    check_out(run, RECIPE_FILE, resume=resume)
    check_overrides(overrides)
    if init not in ("model", "random"):
        raise UserError(f"init {str(init)[:40]!r} is not known; choose model or random")
    if settings is not None and overrides:
        raise UserError("settings have everything that overrides would change; give one of the two")
    dataset = find_data(task, data, {TRAIN: train, DEV: dev}, note, columns)
    for line in without_effect(dataset.task, overrides):
        note(line)
    if settings is None:
        usual = usual_for(model, run, dataset.task, overrides, note)
        settings = settings_for(dataset.task, [*usual, *overrides])
    if cache is not None and not settings.task.features:
        raise UserError("--cache keeps the features of frozen layers; it goes with --features LAYERS")
    return tune(
        dataset, settings, model, run,
        is_random=init == "random", beside=beside, cache=cache, device=device, view=view, note=note,
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
    kind: Kind | None = None,
) -> Finetuned:
    """Fine-tune on examples that have been found, from the newest checkpoint if there is one; else as `finetune`.

    The kind is the task's if it is not given.
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
        session = Session(settings, dataset, start, run, place, view, ranks, note, kind)
        with hold_run(run) if ranks.is_first else nullcontext():
            ranks.wait()
            return session.run()
