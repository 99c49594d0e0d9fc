"""The units of work of a table, and the processes that do them side by side.

- A job pre-trains a model, fine-tunes and measures one, or measures one as it is. Its result is a JSON file with an
  array file beside it (what each example adds to each metric), in OUT/results. A job whose result is there is done.
- Workers share nothing but the folder. Each takes the first job whose inputs are there and that nobody holds, by the
  operating system's lock, so any number of them may work, a killed one blocks nobody, and what it had begun is resumed
  from its checkpoint.
- A result records what decides it. The same job with other settings, data or models is refused, and the first
  difference is named.
- What a fine-tuned model predicted is all that is kept of it; its folder is removed. Pre-trained models stay, without
  their checkpoints.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from bertworks.config import Count, Settings, read_record, validate
from bertworks.errors import CannotResume, CorruptFile, UserError
from bertworks.files import atomic_write, discard_folder, exclusive, make_folder, parse_json, read_object
from bertworks.models.weights import read_arrays, write_arrays
from bertworks.report.logs import CHECKPOINTS
from bertworks.reproduction.tables import TABLES

RESULTS, MODELS_FOLDER, WORK, LOCKS, CACHE = "results", "models", "work", "locks", "cache"
SUMS_ENDING = ".safetensors"  # of the file beside a result with what each example adds
_POLL_S = 0.5
_DIFFERENCES_SHOWN = 3


class Stopped(Exception):  # noqa: N818 -- a way to end, not an error
    """A signal ended a job; it resumes from its checkpoint."""


class Job(Settings):
    """A unit of work.

    Attributes:
        id: its name, which is also that of its result: `ltr-s0`, `ltr+bilstm-s0/mrpc-t1`.
        kind: what is done.
        needs: the jobs that make its models.
        config: what decides its result.
        inputs: where models and data are, which decides nothing.
        commands: the same by hand.
        minutes: about how long it takes.
    """

    id: str
    kind: Literal["pretrain", "finetune", "pairs", "text"]
    needs: list[str] = Field(default_factory=list)
    config: dict[str, Any]
    inputs: dict[str, Any]
    commands: list[str]
    minutes: float = 0.0


class _Split(Settings):
    """What was measured on a split: the score of a constant answer and that of the model, by metric."""

    examples: Count
    majority: dict[str, float]
    metrics: dict[str, float]


class _Result(Settings):
    """What others read of a result; it may hold more. Pre-training has no splits."""

    model_config = ConfigDict(extra="ignore")
    config: dict[str, Any]
    commands: list[str]
    minutes: float
    device: str = ""
    tokens: Count = 0
    parameters: Count = 0
    examples: Count | None = None
    notes: list[str] = Field(default_factory=list)
    splits: dict[str, _Split] = Field(default_factory=dict)


def result_path(out: Path, job_id: str) -> Path:
    """Return the file of a job's result."""
    return out / RESULTS / f"{job_id}.json"


def read_result(out: Path, job_id: str) -> dict[str, Any] | None:
    """Return the result of a job; None where it is not done."""
    path = result_path(out, job_id)
    return read_result_file(path) if path.exists() else None


def read_result_file(path: Path) -> dict[str, Any]:
    """Return what the file of a result holds, checked."""
    try:
        found = read_object(path)
        result = read_record(_Result, found, str(path))
        if not result.splits and "recipe" not in result.config:
            raise CorruptFile(f"{path}: splits: not set")
    except CorruptFile as error:
        raise CorruptFile(f"{error}; remove {path}, and it is measured again") from error
    return found


def read_sums(out: Path, job_id: str) -> dict[str, NDArray[Any]]:
    """Return what each example adds to each metric, by "split/metric", after checking that the file has all of it."""
    result = result_path(out, job_id)
    path = result.with_suffix(SUMS_ENDING)
    splits = read_result_file(result)["splits"]
    try:
        found = read_arrays(path)
        for split, about in splits.items():
            for metric in about["majority"]:
                sums = found.get(f"{split}/{metric}")
                if sums is None or sums.ndim != 2 or len(sums) != about["examples"]:
                    raise CorruptFile(f"{path} does not have {split}/{metric} of {about['examples']:,} examples")
            if not about["majority"] and found.get(f"{split}/perplexity", np.empty(0)).shape[1:] != (2,):
                raise CorruptFile(f"{path} does not have {split}/perplexity of batches")
    except UserError as error:
        raise CorruptFile(f"{error}; remove {result}, and it is measured again") from error
    return found


def is_done(out: Path, job: Job) -> bool:
    """Tell whether a job has a result, and a pre-trained model is still there."""
    if not result_path(out, job.id).exists():
        return False
    return job.kind != "pretrain" or (out / MODELS_FOLDER / job.id / "model" / "config.json").exists()


def check_same(out: Path, jobs: Sequence[Job]) -> None:
    """Refuse to go on where a job was done or begun with something else, or its result is damaged, and say so."""
    for job in jobs:
        result, begun = read_result(out, job.id), _begun_path(out, job)
        for before in (result, read_object(begun) if begun.exists() else None):
            if before is None or before.get("config") == job.config:
                continue
            named = list(_differences(before.get("config"), job.config))
            more = f", and {len(named) - _DIFFERENCES_SHOWN} more" if len(named) > _DIFFERENCES_SHOWN else ""
            raise CannotResume(
                f"{out} has {job.id} of another configuration: {'; '.join(named[:_DIFFERENCES_SHOWN])}{more}. Use the "
                "same to resume, or choose another --out"
            )
        if result is not None and job.kind != "pretrain":
            read_sums(out, job.id)  # damage is noticed now, and not after hours of other work


def _differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield "key: was this, is that" for whatever differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                yield from _differences(before.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(now, list):
        gone, new = ([one for one in a if one not in b] for a, b in ((before, now), (now, before)))
        yield f"{where} had {', '.join(map(str, gone)) or 'none'}, now {', '.join(map(str, new)) or 'none'}"
    else:
        yield f"{where} was {_short(before)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def _begun_path(out: Path, job: Job) -> Path:
    return out / LOCKS / job.id / "begun.json"


# Doing a job.


def do_job(out: Path, job: Job, device: str) -> None:
    """Do a job, or resume it, and write its result; the caller holds its lock."""
    with atomic_write(_begun_path(out, job)) as stream:
        json.dump({"config": job.config}, stream)
    before = read_result(out, job.id)
    work: Callable[[Path, Job, str], tuple[dict[str, Any], dict[str, NDArray[Any]]]] = {
        "pretrain": _pretrain, "finetune": _finetune, "pairs": _pairs, "text": _text,
    }[job.kind]  # fmt: skip
    started = time.monotonic()
    facts, sums = work(out, job, device)
    minutes = facts.pop("minutes", None)
    # A model that was made again took its time before, too.
    minutes = (time.monotonic() - started) / 60 if minutes is None else minutes
    result = {"config": job.config, "commands": job.commands, "minutes": round(minutes, 4), **facts}
    if before is not None and "device" not in result:
        result["device"] = before.get("device", "")
    path = result_path(out, job.id)
    make_folder(path.parent)
    if sums:
        write_arrays(path.with_suffix(SUMS_ENDING), {name: each.astype(np.float32) for name, each in sums.items()})
    with atomic_write(path) as stream:
        json.dump(result, stream, indent=1, allow_nan=False)
        stream.write("\n")
    # Not before: a kill in between would have cost the whole run.
    leftover = out / MODELS_FOLDER / job.id / CHECKPOINTS if job.kind == "pretrain" else out / WORK / job.id
    if leftover.exists():
        discard_folder(leftover)
    _begun_path(out, job).unlink(missing_ok=True)


def _pretrain(out: Path, job: Job, device: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Pre-train a model; snapshots on the way become model folders, and the checkpoints are removed."""
    from bertworks.finetuning.report import device_name
    from bertworks.inference.model import load
    from bertworks.nn.layers import find_device
    from bertworks.report.logs import TIMING_FILE, read_log, training_seconds
    from bertworks.train.pretrain import pretrain

    run = out / MODELS_FOLDER / job.id
    result = pretrain(
        job.config["recipe"], data=job.inputs["data"], out=run, overrides=job.config["overrides"], resume=True,
        device=device, quiet=True,
    )  # fmt: skip
    if result.signal:
        raise Stopped
    for share, step in job.inputs.get("snapshots", {}).items():
        name, _, seed = job.id.rpartition("-")
        folder = out / MODELS_FOLDER / f"{name}@{share}-{seed}" / "model"
        checkpoint = run / CHECKPOINTS / f"step-{step:08}"
        if checkpoint.exists():
            make_folder(folder.parent)
            if folder.exists():
                discard_folder(folder)
            load(checkpoint, device="cpu").save(folder)
    model = load(run, device="cpu")
    return {
        "minutes": training_seconds(read_log(run / TIMING_FILE)) / 60,
        "device": device_name(find_device(device), 1),
        "tokens": result.progress.tokens,
        "steps": result.progress.step,
        "parameters": sum(weight.numel() for weight in model.net.parameters()),
        "metrics": {name: float(value) for name, value in result.metrics.items()},
    }, {}


def _finetune(out: Path, job: Job, device: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Fine-tune a model, and measure it on every split that has labels."""
    from bertworks.finetuning.finetune import finetune, tune, usual_for
    from bertworks.finetuning.search import in_memory
    from bertworks.finetuning.settings import settings_for
    from bertworks.inference.evaluate import measure_models
    from bertworks.inference.model import load
    from bertworks.inference.predict import Ensemble
    from bertworks.nn.layers import find_device
    from bertworks.reproduction.statistics import form_of, majority_score, sums_of
    from bertworks.tasks import find_task
    from bertworks.tasks.metrics import gold_of
    from bertworks.tasks.task import DEV, TRAIN, SpanExample, examples_of, open_dataset

    config, inputs, run = job.config, job.inputs, out / WORK / job.id
    most, task, on_gpu = config.get("max_dev", 0), find_task(config["task"]), find_device(device).type == "cuda"
    dataset, has_features = open_dataset(task, inputs["data"]), any("task.features" in o for o in config["overrides"])
    options = {"beside": inputs["beside"], "cache": out / CACHE if has_features else None, "device": device}
    if most:  # of the scale that shows that all works
        train, dev = examples_of(dataset, TRAIN, _unheard), list(islice(dataset.examples(DEV), most))
        usual = usual_for(inputs["model"], run, task, config["overrides"], _unheard)
        settings = settings_for(task, [*usual, *config["overrides"]])
        small = in_memory(dataset, {TRAIN: train, DEV: dev})
        ended = tune(small, settings, inputs["model"], run, is_random=config["init"] == "random", **options)
    else:
        ended = finetune(
            task.name, model=inputs["model"], data=inputs["data"], out=run, overrides=config["overrides"],
            init=config["init"], resume=True, quiet=True, **options,
        )  # fmt: skip
    if ended.signal:
        raise Stopped
    # In half precision on a GPU, as the dev set was measured in training; features are exact.
    model = load(run, device=device, dtype="auto" if on_gpu and not has_features else None)
    ensemble = Ensemble([model], [task.name])
    splits: dict[str, Any] = {}
    sums: dict[str, NDArray[Any]] = {}
    for split in dataset.found:
        if split == TRAIN or (split != DEV and split not in measured_splits(config["task"])):
            continue
        measured = measure_models(ensemble, task.name, inputs["data"], split, max_examples=most)
        # The labels, or of questions whether they have an answer.
        answered = [bool(one.answers) for one in measured.examples if isinstance(one, SpanExample)]
        gold, positive = answered or gold_of(measured.examples), task.positive or (task.labels or ("",))[-1]
        splits[split] = {"examples": len(measured.examples), "majority": {}}
        for metric in _measured_metrics(config["task"]):
            sums[f"{split}/{metric}"] = sums_of(measured.task, metric, measured.examples, gold, measured.predictions)
            constant = majority_score(form_of(task, metric), task, gold, positive)
            splits[split]["majority"][metric] = round(constant, 4)
        splits[split]["metrics"] = {
            name: float(value) for name, value in measured.metrics.items() if np.isfinite(value)
        }
    cost = model.about.get("provenance") or {}
    facts = {
        "minutes": ended.minutes, "device": str(cost.get("device", "")), "splits": splits, "best_step": ended.step,
        "steps": ended.progress.step, "parameters": sum(weight.numel() for weight in model.net.parameters()),
        "examples": cost.get("examples"), "notes": list(dataset.notes),
    }  # fmt: skip
    return facts, sums


def _unheard(_: str) -> None:
    """Take a remark that nobody reads."""


def measured_splits(task: str) -> set[str]:
    """Return the splits of a task that a table has a column of."""
    return {column.split for table in TABLES.values() for column in table.columns if column.task == task}


def _measured_metrics(task: str) -> list[str]:
    columns = (column for table in TABLES.values() for column in table.columns if column.task == task)
    return sorted({column.metric for column in columns})


def _pairs(_: Path, job: Job, device: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Measure a pre-trained model on minimal pairs."""
    from bertworks.inference.minimal_pairs import measure_pairs

    metrics, scores = measure_pairs(
        job.inputs["model"], job.inputs["data"], max_pairs=job.config["max_pairs"], device=device
    )
    about = {"examples": len(scores), "majority": {"accuracy": 50.0}, "metrics": {"accuracy": metrics["accuracy"]}}
    return {"splits": {"dev": about}, "terms": metrics["terms"]}, {"dev/accuracy": scores[:, None]}


def _text(_: Path, job: Job, device: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Measure how well a pre-trained model predicts masked pieces of held-out text, batch by batch."""
    from bertworks.inference.held_out import measure_text

    parts: list[list[float]] = []

    def keep(sums: Mapping[str, Any]) -> None:
        loss, _, weight = next(sums[kind] for kind in ("mlm", "lm") if kind in sums).tolist()
        parts.append([loss, weight])

    metrics, counts, _length = measure_text(
        job.inputs["model"], job.inputs["data"], max_tokens=job.config["max_tokens"], device=device, each=keep
    )
    about = {"examples": counts["tokens"], "majority": {}, "metrics": metrics}
    return {"splits": {"holdout": about}}, {"holdout/perplexity": np.array(parts)}


# Workers.


def work_off(
    out: Path,
    jobs: Sequence[Job],
    device: str,
    ended: Callable[[Job, str], None] = lambda _job, _error: None,
    *,
    pretrains: bool = True,
) -> None:
    """Do all jobs that can be done, together with other processes; returns when none is left, or raises Stopped.

    Args:
        out: the folder.
        jobs: in the order in which they should be done.
        device: where to compute.
        ended: is called with each job that this process has done, and its error, "" without.
        pretrains: whether this process takes jobs that pre-train; if not, it waits for others to do them.
    """
    failed = {job.id for job in jobs if _error_path(out, job.id).exists()}
    known = {job.id: job for job in jobs}
    while True:
        is_held = has_worked = False
        for job in jobs:
            if job.id in failed or is_done(out, job):
                continue
            if not all(need not in known or is_done(out, known[need]) for need in job.needs):
                if any(_error_path(out, need).exists() for need in job.needs):
                    failed.add(job.id)
                continue
            if job.kind == "pretrain" and not pretrains:
                is_held |= not _error_path(out, job.id).exists()
                continue
            make_folder(out / LOCKS / job.id)
            try:
                with exclusive(out / LOCKS / job.id):
                    if is_done(out, job) or _error_path(out, job.id).exists():
                        continue
                    has_worked = True
                    error = _try(out, job, device)
            except CannotResume as refusal:
                if "in use by" not in str(refusal):
                    raise
                is_held, has_worked = True, False  # the job, or features that another one computes right now
                continue
            if error:
                failed.add(job.id)
            ended(job, error)
            break  # look from the beginning: what others wait for comes first
        if not has_worked and not is_held:
            return
        if not has_worked:
            time.sleep(_POLL_S)


def _try(out: Path, job: Job, device: str) -> str:
    """Do a job; an error of its own is recorded and returned, so that the others go on."""
    import torch

    try:
        do_job(out, job, device)
    except (Stopped, KeyboardInterrupt, CannotResume):
        raise
    except Exception as error:
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        make_folder(_error_path(out, job.id).parent)
        with atomic_write(_error_path(out, job.id)) as stream:
            details = "" if isinstance(error, UserError) else traceback.format_exc()
            json.dump({"error": message, "details": details}, stream, indent=1)
        return message or type(error).__name__
    finally:
        import gc

        gc.collect()  # a run's parts refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return ""


def _error_path(out: Path, job_id: str) -> Path:
    return out / WORK / f"{job_id}.error.json"


def read_error(out: Path, job_id: str) -> str:
    """Return why a job failed in the last start; "" if it did not."""
    path = _error_path(out, job_id)
    return str(read_object(path).get("error")) if path.exists() else ""


def clear_errors(out: Path, jobs: Sequence[Job]) -> None:
    """Let jobs that failed before be tried again."""
    for job in jobs:
        make_folder(_error_path(out, job.id).parent)
        _error_path(out, job.id).unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Be a worker: `python -m bertworks.reproduction.jobs JOBS.json DEVICE ROLE`; the role is `all` or `finetune`."""
    path, device, role = Path(arguments[0]), arguments[1], arguments[2]
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)  # a run saves first

    threading.Thread(target=end_with_parent, daemon=True).start()
    listed: Mapping[str, Any] = parse_json(path.read_bytes(), str(path))
    jobs = [validate(Job, values, str(path)) for values in listed["jobs"]]
    try:
        work_off(Path(listed["out"]), jobs, device, pretrains=role == "all")
    except (Stopped, KeyboardInterrupt):
        return 130
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
