"""Which recipe is best for a short run? Candidates pre-trained alike but for some settings, then fine-tuned alike.

    python benchmarks/candidates.py pretrain "reference:" "slow: optim.lr=1e-3" --shards DIR --out runs --minutes 2.5
    python benchmarks/candidates.py score --data DIR --out runs --jobs 10 --json candidates.json

By --minutes each has the same time, its rate following the clock, so that what a step costs is in the result; by
--steps other work on the machine changes no result. A candidate is the recipe at length 128 with its settings on top.
What a run reports of documents kept aside is of its own masks; beside that stand the figures with the paper's, the same
for all. The tasks' scores are means over two seeds, on dev sets: small tasks at the better of two rates, large ones as
`compact.py` has them, but for two epochs at one rate. Enough to choose among recipes, and no result to quote. What was
killed goes on with the same command; what is there is not made again, so other settings want another --out.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from compact import said, write_json
from compact_task import LARGE, WORKS

from bertworks.errors import UserError
from bertworks.files import safe_join

TASKS = ("qnli", "sst2", "cola", "stsb", "mrpc", "rte")  # the longest first
RATES = ("2e-4", "1e-4")  # at 3e-4 the original's Adam fails for some seeds
FEW = ("train.epochs=4", "task.layer_decay=0.6")  # examples
MANY = ("train.epochs=2", *LARGE)
SEEDS = (0, 1)
_WHOLE = ("steps", "minutes")  # why a run ends that is not to go on


def pretrain(given: argparse.Namespace) -> int:
    """Pre-train the candidates that are not there yet, one after the other; returns how many failed."""
    if given.minutes:
        length = [f"train.max_minutes={given.minutes}", "optim.clock=true"]
    else:
        length = [f"train.max_steps={given.steps}", "optim.clock=false", "train.max_minutes=1000"]
    shared = [*length, "data.short_length=128", "data.max_length=128", "train.batch_size=1024", "train.eval_batches=16",
              "train.eval_every=1000000", "train.save_every=1000000"]  # fmt: skip
    num_failed = 0
    for name, overrides in map(named, given.candidates):
        run = safe_join(given.out, name)
        if (run / "result.json").exists():
            continue
        said(f"{name}: {overrides}")
        command = [sys.executable, "-m", "bertworks", "pretrain", given.recipe, "--data", str(given.shards), "--json",
                   "--out", str(run), "--resume", *shared, *given.set, *overrides.split()]  # fmt: skip
        started = time.monotonic()
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        found = json.loads(ended.stdout) if not ended.returncode else {"reason": f"status {ended.returncode}"}
        if found["reason"] not in _WHOLE:
            said(f"{name}: failed ({found['reason']})")
            num_failed += 1
            continue
        found |= {"overrides": overrides.split(), "seconds": time.monotonic() - started}
        found |= as_in_the_paper(run, given.shards)
        write_json(run / "result.json", found)
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        said(f"{name}: {json.dumps(found)}")
    return num_failed


def named(spec: str) -> tuple[str, str]:
    """Return the name and the settings of a candidate."""
    name, _, overrides = spec.partition(":")
    if not name.strip():
        raise UserError(f"{spec!r} has no name; write NAME: SETTINGS")
    return name.strip(), overrides.strip()


def as_in_the_paper(run: Path, shards: Path) -> dict[str, float]:
    """Return how many of the paper's masks and pairs in documents kept aside a model gets right."""
    from bertworks.inference.held_out import measure_text

    metrics, _, _ = measure_text(run, shards)
    return {f"holdout_paper_{name}": value for name, value in metrics.items() if name.endswith("_accuracy")}


def score(given: argparse.Namespace) -> int:
    """Fine-tune every candidate for every task, some at a time, and print the table; returns how many failed."""
    runs = sorted(path.parent for path in given.out.glob("*/result.json"))
    waiting = [
        (run, task) for task in TASKS if task in given.tasks for run in runs if not score_path(run, task).exists()
    ]
    running: dict[str, subprocess.Popen[bytes]] = {}
    num_failed = 0
    try:
        while waiting or running:
            while waiting and len(running) < given.jobs:
                run, task = waiting.pop(0)
                running[f"{run.name}, {task}"] = start_child(given, run, task)
            time.sleep(0.1)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if status := running.pop(name).returncode:
                    said(f"{name}: failed ({status}); see its log")
                    num_failed += 1
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    table = {run.name: row(run) for run in runs}
    if given.json:
        write_json(given.json, table)
    for name, found in table.items():
        shown = " ".join(
            f"{task} {100 * found['scores'][task]['mean']:.1f}" for task in TASKS if task in found["scores"]
        )
        accuracies = " ".join(f"{key} {value:.4f}" for key, value in found.items() if key.startswith("holdout"))
        said(f"{name}: {accuracies} | {shown}")
    return num_failed


def start_child(given: argparse.Namespace, run: Path, task: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "child", "--data", str(given.data), "--out", str(run), "--tasks", task,
               "--examples", str(given.examples)]  # fmt: skip
    with open(run / f"{task}.log", "wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


def score_path(run: Path, task: str) -> Path:
    return run / f"{task}.json"


def child(given: argparse.Namespace) -> int:
    """Fine-tune one candidate for one task at its rates with every seed; returns a signal that ended it."""
    import bertworks as bw

    (task,) = given.tasks
    scores: dict[str, list[float]] = {}
    is_large = WORKS[task].is_large
    for rate in RATES[-1:] if is_large else RATES:
        for seed in SEEDS:
            folder = given.out / f"{task}-{rate}-{seed}"
            overrides = [f"optim.lr={rate}", f"train.seed={seed}", "train.save_every=1000000",
                         f"task.max_examples={given.examples}", *(MANY if is_large else FEW)]  # fmt: skip
            outcome = bw.finetune(
                task, model=given.out / "model", data=given.data, out=folder, overrides=overrides, resume=True
            )
            if outcome.signal:
                return outcome.signal
            # Who says the same of all has no correlation: no better than chance.
            scores.setdefault(rate, []).append(0.0 if math.isnan(outcome.score) else outcome.score)
            said(f"{task} {rate} {seed}: {scores[rate][-1]:.4f}")
    best = max(scores, key=lambda rate: statistics.mean(scores[rate]))
    write_json(score_path(given.out, task), {"mean": statistics.mean(scores[best]), "rate": best, "scores": scores})
    for folder in given.out.glob(f"{task}-*-[0-9]"):
        shutil.rmtree(folder)
    return 0


def row(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    paths = {task: score_path(run, task) for task in TASKS}
    found["scores"] = {
        task: json.loads(path.read_text(encoding="utf-8")) for task, path in paths.items() if path.exists()
    }
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pretrain", "score", "child"))
    parser.add_argument("candidates", nargs="*", metavar="NAME: SETTINGS")
    parser.add_argument("--recipe", default="mini-20min")
    parser.add_argument("--shards", type=Path, help="the folder that `bertworks prepare` made")
    parser.add_argument("--data", type=Path, help="folder with the tasks' own files, unpacked")
    parser.add_argument("--out", type=Path, required=True, help="a folder for each candidate")
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--minutes", type=float, help="instead of --steps, compiling included")
    parser.add_argument("--set", nargs="+", default=(), metavar="KEY=VALUE", help="for all candidates")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--examples", type=int, default=0, help="of a train set at most; 0: all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error("--jobs must be 1 or more")
    return given


def main() -> int:
    given = options()
    try:
        return 1 if {"pretrain": pretrain, "score": score, "child": child}[given.what](given) else 0
    except UserError as error:
        print(f"candidates.py: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
