"""What do our compact models score? Every task searched as Google's were, three seeds at the best, one table.

    python benchmarks/compact.py runs/mini --data DIR --out runs/mini-tasks --jobs 8 --init model random
    python benchmarks/compact.py runs/ko --name mini-ko --data DIR --out runs/ko-tasks --tasks nsmc korsts kornli
    python benchmarks/compact.py --json runs/mini-tasks/results.json runs/ko-tasks/results.json --table compact.md

Each rate of a task's search is a process, and so is each of its seeds, --jobs of them at a time: small models leave
most of a GPU idle, so several runs share it, best under NVIDIA's MPS, and the minutes of each are then longer than it
would take alone. Results are written after every task, beside what the file has; a task that is in it is passed over
unless --again. What was ended, by --minutes or by a kill, goes on where it was with the same command, as long as --out
is there.
"""

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from compact_runs import is_search, parts_of, place_of, read_search, result_path, run_part, summary
from compact_table import SIZE_NAMES, Models, check_same_model, joined, markdown, merged
from compact_task import ENGLISH, FULL, QUICK, WORKS, Search

from bertworks.errors import UserError
from bertworks.files import atomic_write, check_can_write
from bertworks.train.run_folder import hold_run

_STOPPED = 75  # a child's status when a signal ended its runs
_POLL_S = 0.2
_PARENT = "COMPACT_PARENT"  # its process, which may be gone before a child can ask for it


class Job(NamedTuple):
    """A part, the search or a seed, of a task from the model's weights or from random ones."""

    init: str
    name: str
    part: str

    def __str__(self) -> str:
        return f"{self.init}/{self.name}/{self.part}"

    def waits_for(self, other: "Job") -> bool:
        """Tell whether another one must end first: seeds wait for their search, and some works for others' models."""
        if self.init != other.init:
            return False
        is_own_search = other.name == self.name and is_search(other.part) and not is_search(self.part)
        return is_own_search or other.name == WORKS[self.name].source


class Child(NamedTuple):
    """A part under way."""

    job: Job
    process: subprocess.Popen[bytes]
    started: float


class Board:
    """The results of this command's model, in a file that others add to as well."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.path: Path = given.json[0] if given.json else given.out / "results.json"
        self.out: Path = given.out
        self.about = about_model(given.model)
        sizes: str = self.about["sizes"]
        self.name: str = given.name or SIZE_NAMES.get(sizes, sizes)
        if given.quick:
            self.name += "-quick"
        check_can_write(self.path)
        there = read_models(self.path)
        if self.name in there:
            check_same_model(there[self.name], self.name, self.about)

    def has(self, init: str, name: str) -> bool:
        """Tell whether a task was measured already, here or on another machine."""
        return name in read_models(self.path).get(self.name, {}).get("results", {}).get(init, {})

    def path_of(self, job: Job) -> Path:
        """Return where the result of a part is."""
        return result_path(self.out / job.init, job.name, job.part)

    def add(self, job: Job, search: Search) -> dict[str, Any] | None:
        """Put a task beside the others, read anew as another command may have added some; None if a part is missing."""
        parts = {part: self.path_of(job._replace(part=part)) for part in parts_of(job.name, search)}
        if not all(path.exists() for path in parts.values()):
            return None
        seeds = [json.loads(path.read_text(encoding="utf-8")) for part, path in parts.items() if not is_search(part)]
        result = summary(job.name, search, read_search(self.out / job.init, job.name, search), seeds)
        result |= {key: seeds[0][key] for key in ("command", "machine")}
        with waited_for(self.path):
            models = merged(read_models(self.path), self.name, self.about, job.init, {job.name: result})
            write_json(self.path, {"models": models})
        return result


def search_of(name: str, given: argparse.Namespace) -> Search:
    """Return which runs a task has by the options."""
    search = (QUICK if given.quick else FULL).of(WORKS[name]).changed(given.set)
    return search.with_seeds(given.seeds) if given.seeds else search


def about_model(model: str) -> dict[str, Any]:
    """Return the sizes of a model and the checksums of its weights."""
    from bertworks.models.folder import CONFIG_FILE, find_encoder, find_model, read_json
    from bertworks.train.warm_start import checksums

    folder = find_encoder(find_model(model))
    config = read_json(folder / CONFIG_FILE)
    return {"sizes": f"{config['num_hidden_layers']}x{config['hidden_size']}", "weights": checksums(folder)}


def machine(jobs: int) -> str:
    import torch

    place = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    return f"{place}, torch {torch.__version__}, {jobs} searches and seeds at a time, a thread each"


def read_models(path: Path) -> Models:
    models: Models = json.loads(path.read_text(encoding="utf-8"))["models"] if path.exists() else {}
    return models


def write_json(path: Path, content: Any) -> None:
    with atomic_write(path) as stream:
        json.dump(content, stream, ensure_ascii=False, indent=1, allow_nan=False)
        stream.write("\n")


@contextmanager
def waited_for(path: Path) -> Iterator[None]:
    """Hold a file against other commands that add to it."""
    with open(path.with_name(f".{path.name}.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def said(line: str) -> None:
    print(line, flush=True)


def end_with(parent: int) -> None:
    """Ask this process to end when its parent is gone: killed, that one can tell it nothing."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def run_child(given: argparse.Namespace) -> int:
    """Make the runs of one part in this process and leave its result beside them."""
    parent = int(os.environ.get(_PARENT, os.getppid()))
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    job = Job(*given.child.split("/"))
    folder = given.out / job.init
    folder.mkdir(parents=True, exist_ok=True)
    search = search_of(job.name, given)
    place = place_of(job.name, given.model, given.data, folder, job.init, search.seeds)
    found = run_part(place, search, job.part)
    if found is None:
        return _STOPPED
    arguments = sys.argv[1 : sys.argv.index("--child")]
    told = [Path(argument).name if argument.startswith("/") else argument for argument in arguments]
    command = shlex.join(["python", "benchmarks/compact.py", *told])  # where files lie on a machine tells nobody else
    write_json(result_path(folder, *job[1:]), found | {"command": command, "machine": machine(given.jobs)})
    return 0


def start_child(job: Job, given: argparse.Namespace) -> Child:
    log_path = given.out / "logs" / f"{job}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-u", __file__, *sys.argv[1:], "--child", str(job)]
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", _PARENT: str(os.getpid())},
            process_group=0,  # a second signal ends a run without saving it, so only this process sends them one
        )  # fmt: skip
    return Child(job, process, time.monotonic())


def measure_all(given: argparse.Namespace) -> int:
    """Run the tasks, some at a time, until all have ended or the time is up; returns how many have no result."""
    with hold_run(given.out):
        return measure(Board(given), given)


def measure(board: Board, given: argparse.Namespace) -> int:
    tasks = [(init, name) for init in given.init for name in dict.fromkeys(given.tasks)]
    tasks = [task for task in tasks if given.again or not board.has(*task)]
    waiting = [Job(*task, part) for task in tasks for part in parts_of(task[1], search_of(task[1], given))]
    for job in waiting:  # what they say is worked out anew from the runs, which are gone on with
        board.path_of(job).unlink(missing_ok=True)
    said(f"{board.name}: {', '.join(map('/'.join, tasks)) or 'nothing to do'}; results in {board.path}")
    ends = time.monotonic() + 60 * given.minutes if given.minutes is not None else float("inf")
    running: list[Child] = []
    num_missed, signals = 0, noted_signals()
    try:
        while (running or waiting) and not signals and time.monotonic() < ends:
            while len(running) < given.jobs and (job := next_ready(waiting, [child.job for child in running])):
                waiting.remove(job)
                running.append(start_child(job, given))
            time.sleep(_POLL_S)
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                num_missed += not ended(child, board, given)
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            child.process.wait()
            num_missed += not ended(child, board, given)
    if waiting:
        said(f"{len(waiting)} of the parts have not begun; the same command goes on")
    return num_missed + len(waiting)


def noted_signals() -> list[int]:
    """Return a list that gets the signals that ask for an end: the children's runs are then saved before it."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    return signals


def next_ready(waiting: list[Job], running: list[Job]) -> Job | None:
    """Return the first part that waits for no other; one for which another has failed says so itself."""
    busy = [*waiting, *running]
    return next((job for job in waiting if not any(map(job.waits_for, busy))), None)


def ended(child: Child, board: Board, given: argparse.Namespace) -> bool:
    """Say how a part ended; with the last one its task goes into the file."""
    minutes, status = (time.monotonic() - child.started) / 60, child.process.returncode
    if status:
        how = "stopped; the same command goes on" if status in (_STOPPED, -signal.SIGTERM) else f"failed ({status})"
        said(f"{child.job}: {how}; {minutes:.1f} minutes; see logs/")
        return False
    found = json.loads(board.path_of(child.job).read_text(encoding="utf-8"))
    scores = [f"{run['point']} {run['score']}" for run in found.get("runs", [{"point": "dev", **found}])]
    said(f"{child.job}: {', '.join(scores)}; {minutes:.1f} minutes")
    if not is_search(child.job.part) and (result := board.add(child.job, search_of(child.job.name, given))):
        said(f"{child.job.name}: {result['metric']} {result['median']}, the median of {len(result['seeds'])}")
    return True


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="model folder or run folder; without it --table alone is possible")
    parser.add_argument("--name", help="of the model in results; by its sizes without it: 4x256 is mini, 4x512 small")
    parser.add_argument("--data", type=Path, help="folder with the tasks' own files, unpacked")
    parser.add_argument("--out", type=Path, help="folder for runs and logs; the same one goes on")
    parser.add_argument(
        "--tasks", nargs="+", choices=tuple(WORKS), default=tuple(ENGLISH), help="in this order, as far as they can be"
    )
    parser.add_argument("--init", nargs="+", choices=("model", "random"), default=("model",))
    parser.add_argument("--json", type=Path, nargs="+", help="results; several only with --table. OUT/results.json")
    parser.add_argument("--jobs", type=int, default=1, help="searches and seeds at a time")
    parser.add_argument(
        "--set", nargs="+", default=(), metavar="KEY=VALUE", help="over the settings; noted in the table"
    )
    parser.add_argument("--seeds", type=int, help="at the best setting, instead of three; noted in the table")
    parser.add_argument("--minutes", type=float, help="ask what is under way to end after so many")
    parser.add_argument("--again", action="store_true", help="also tasks that the results have already")
    parser.add_argument("--quick", action="store_true", help="100 examples, 1 epoch, 2 points, 2 seeds: to try it out")
    parser.add_argument("--table", type=Path, help="write the results as markdown")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.model and not (given.data and given.out):
        parser.error("MODEL needs --data and --out")
    if not given.model and not (given.table and given.json):
        parser.error("give MODEL, --data and --out to measure, or --table and --json for a table")
    if given.model and given.json and len(given.json) > 1:
        parser.error("one --json to measure into")
    if given.jobs < 1 or (given.seeds is not None and given.seeds < 1):
        parser.error("--jobs and --seeds must be 1 or more")
    return given


def main() -> int:
    given = options()
    try:
        if given.child:
            return run_child(given)
        if given.table:
            check_can_write(given.table)
        num_missed = measure_all(given) if given.model else 0
        if given.table:
            paths = given.json or [given.out / "results.json"]
            with atomic_write(given.table) as stream:
                stream.write(markdown(joined(map(read_models, paths))))
        return 1 if num_missed else 0
    except UserError as error:
        print(f"compact.py: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
