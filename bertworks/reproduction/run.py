"""`bertworks reproduce TABLE`: what a table needs is planned, done, measured, and compared with the paper.

    OUT/text/wordpiece/    vocabulary and shards, made once
    OUT/models/bert-s0/    pre-trained models, by seed; tables share them
    OUT/results/           a small file for each measurement; what is there is not done again
    OUT/table5/            results.json, and made of it alone: table5.html, table.md, figures
    OUT/index.html         all tables of OUT

The folder `results` is all that a table is made of: with it elsewhere, no model has to be made again.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from bertworks.errors import CannotResume, CorruptFile, UserError
from bertworks.files import atomic_write, exclusive, make_folder, read_object, usable_path
from bertworks.planning.costs import find_gpu
from bertworks.reproduction.claims import MOST_SEEDS
from bertworks.reproduction.jobs import (
    CACHE,
    LOCKS,
    MODELS_FOLDER,
    RESULTS,
    WORK,
    Job,
    Stopped,
    check_same,
    clear_errors,
    is_done,
    read_error,
    read_result,
    work_off,
)
from bertworks.reproduction.page import write_pages
from bertworks.reproduction.plan import ALGORITHMS, TEXT_FOLDER, Plan, Setup, in_words, missing_columns
from bertworks.reproduction.results import results_of
from bertworks.reproduction.tables import (
    TABLES,
    TokensKind,
    find_scale,
    find_table,
)

RESULTS_FILE, START_FILE, INDEX_FILE = "results.json", "reproduce.json", "index.html"
SOURCE_FILE = "source.json"  # of prepared text: what it was made from
_POLL_S = 0.2
_PRETRAINED_AT_ONCE = 3  # models on a GPU, which one of them fills nearly; the other processes fine-tune or wait
# Where CUDA's Multi-Process Service runs, the small kernels of fine-tuning go before those of pre-training.
_YIELDING = {"CUDA_MPS_CLIENT_PRIORITY": "1"}


def check_start(setup: Setup) -> None:
    """Refuse a folder of other things, or with results or models of another scale or other settings."""
    out, path = usable_path(setup.out), setup.out / START_FILE
    if not os.path.exists(out):
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder: --out DIR")
    if not path.exists():
        ours = {RESULTS, MODELS_FOLDER, WORK, LOCKS, CACHE, INDEX_FILE, *TABLES}
        if any(out.glob(f"{TEXT_FOLDER}/*/{SOURCE_FILE}")):  # and not a corpus
            ours.add(TEXT_FOLDER)
        if names := sorted(one.name for one in out.iterdir() if one.name not in ours and not one.name.startswith(".")):
            raise UserError(f"{out} holds no tables, but {names[0]}; choose another --out")
        return
    if not any(out.glob(f"{RESULTS}/**/*.json")) and not any(out.glob(f"{MODELS_FOLDER}/*")):
        return  # nothing depends on how it was started before
    try:
        before = read_object(path)
    except CorruptFile as error:
        raise CorruptFile(f"{error}; remove it, and start with the same scale and settings as before") from error
    for key, value in _start(setup).items():
        if before.get(key) != value:
            raise CannotResume(
                f"{out} was started with {_option(key, before.get(key))}, and now has {_option(key, value)}; use the "
                "same to resume, or choose another --out"
            )


def _start(setup: Setup) -> dict[str, Any]:
    return {"scale": setup.scale.name, **setup.overrides}


def do(setup: Setup, plan: Plan, say: Callable[[str], None], *, quiet: bool) -> int:
    """Do a plan's jobs; returns the signal that ended it, or 0."""
    clear_errors(setup.out, plan.jobs)
    for kind in plan.kinds:
        say(f"text for {kind}")
        prepare_text(setup, kind, say, quiet=quiet)
    with atomic_write(setup.out / START_FILE) as stream:
        json.dump(_start(setup), stream, indent=1)
    to_do = [job for job in plan.jobs if not is_done(setup.out, job)]
    progress = _Progress(setup.out, to_do, min(setup.num_jobs, len(to_do)), say)
    if not to_do:
        return 0
    if setup.num_jobs == 1:
        try:
            work_off(setup.out, plan.jobs, setup.device, lambda job, _: progress.ended(job))
        except Stopped:
            return int(signal.SIGTERM)
        except KeyboardInterrupt:
            return int(signal.SIGINT)
        return 0
    return _side_by_side(setup, plan, progress, min(setup.num_jobs, len(to_do)))


def _side_by_side(setup: Setup, plan: Plan, progress: "_Progress", count: int) -> int:
    path = make_folder(setup.out / WORK) / f"jobs-{plan.table.name}.json"
    with atomic_write(path) as stream:
        json.dump({"out": str(setup.out.absolute()), "jobs": [job.model_dump() for job in plan.jobs]}, stream)
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    pretraining = min(count, _PRETRAINED_AT_ONCE) if setup.place == "cuda" else count
    log = open(setup.out / WORK / "workers.log", "ab")  # noqa: SIM115 -- the processes hold it
    got: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        got.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    workers = [
        subprocess.Popen(  # noqa: S603 -- ourselves
            [sys.executable, "-m", "bertworks.reproduction.jobs", str(path), setup.device, role],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment | more, start_new_session=True,
        )
        for role, more in [("all", _YIELDING)] * pretraining + [("finetune", {})] * (count - pretraining)
    ]  # fmt: skip
    try:
        is_told = False
        while any(worker.poll() is None for worker in workers):
            is_alone = all(worker.poll() for worker in workers[:pretraining])  # nobody is left to pre-train
            if (got or is_alone) and not is_told:
                is_told = True
                for worker in workers:
                    worker.send_signal(signal.SIGTERM)  # runs save before they end
            progress.look()
            time.sleep(_POLL_S)
        progress.look()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
        log.close()
    if got:
        return got[0]
    codes = [worker.returncode for worker in workers]
    if any(codes) and any(not is_done(setup.out, job) and not read_error(setup.out, job.id) for job in plan.jobs):
        tail = (setup.out / WORK / "workers.log").read_text(encoding="utf-8", errors="replace").strip()[-400:]
        raise UserError(
            f"a worker ended with {next(code for code in codes if code)}; start the command again to resume. {tail}"
        )
    return 0


def prepare_text(setup: Setup, kind: TokensKind, say: Callable[[str], None], *, quiet: bool) -> None:
    """Make a vocabulary and shards, or take those that are there, or that another process is just making."""
    from bertworks.data.prepare import prepare
    from bertworks.data.shards import MANIFEST
    from bertworks.text.kinds import open_tokenizer
    from bertworks.text.learn import learn_vocabulary
    from bertworks.text.normalize import Rules

    folder, digest = make_folder(setup.text_folder(kind)), setup.text_digest(kind)
    source, vocabulary = folder / SOURCE_FILE, folder / "vocab"
    with ExitStack() as lock:
        for attempt in itertools.count():
            try:
                lock.enter_context(exclusive(folder))
                break
            except CannotResume:
                if not attempt:
                    say(f"another process prepares {folder}; waiting until it ends")
                time.sleep(_POLL_S)
        if source.exists() and read_object(source).get("digest") != digest:
            raise CannotResume(
                f"{folder} was made from another text, or for another scale; use the same, or another --out"
            )
        if source.exists() and (folder / "data" / MANIFEST).exists():  # which is written last
            return
        if not setup.text:
            raise UserError(f"no text to pre-train on: give --text CORPUS, or put it into {setup.data / TEXT_FOLDER}")
        with atomic_write(source) as stream:
            json.dump({"digest": digest}, stream)
        if not vocabulary.exists():
            learned = learn_vocabulary(
                setup.text, size=setup.vocabulary_size(kind), algorithm=ALGORITHMS[kind],  # type: ignore[arg-type]
                lowercase=False, min_count=setup.scale.min_count, quiet=quiet,
            )  # fmt: skip
            learned.save(folder / "vocab.part")  # that of GPT-1 is several files
            os.replace(folder / "vocab.part", vocabulary)
        tokenizer = open_tokenizer(vocabulary, Rules(False, False, True), kind)
        prepare(setup.text, tokenizer, folder / "data", holdout=setup.holdout, drop_headings=True, quiet=quiet)


class _Progress:
    """Reports jobs that have ended, with how many are left and about how long they take."""

    def __init__(self, out: Path, jobs: Sequence[Job], num_workers: int, say: Callable[[str], None]) -> None:
        self._out, self._left, self._say = out, {job.id: job for job in jobs}, say
        self._count, self._workers, self._started = len(jobs), max(1, num_workers), time.monotonic()
        self._done_minutes = 0.0

    def look(self) -> None:
        """Report what other processes have done."""
        for job in list(self._left.values()):
            if is_done(self._out, job) or read_error(self._out, job.id):
                self.ended(job)

    def ended(self, job: Job) -> None:
        """Report a job."""
        if job.id not in self._left:
            return
        del self._left[job.id]
        self._done_minutes += job.minutes
        if error := read_error(self._out, job.id):
            outcome = f"failed: {error}"
        else:
            result = read_result(self._out, job.id) or {}
            splits: list[dict[str, Any]] = list(result.get("splits", {}).values())
            scores = splits[0]["metrics"] if splits else {}
            score = next((f"{name} {value:.4f}, " for name, value in scores.items()), "")
            outcome = f"{score}{in_words(result.get('minutes', 0.0))}"
        elapsed = (time.monotonic() - self._started) / 60
        rest = sum(one.minutes for one in self._left.values()) * elapsed / max(self._done_minutes, 1e-9)
        left = f"; about {in_words(rest)} left" if self._left else ""
        self._say(f"{self._count - len(self._left)} of {self._count}, {job.id}: {outcome}{left}")


def _option(key: str, value: Any) -> str:
    if key == "scale":
        return f"--scale {value}"
    return f"{key} settings {' '.join(value) if value else 'as usual'}"


def reproduce(
    table: str,
    *,
    scale: str = "tiny",
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    text: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    models: Mapping[str, str] | None = None,
    seeds: int | None = None,
    tunings: int | None = None,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    device: str = "auto",
    dry_run: bool = False,
    gpu: str = "",
    confirm: Callable[[str], bool] | None = None,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure a table of the paper at a scale, and judge the paper's claims about it.

    Args:
        table: table1 to table8, figure5, systems, transformer, blimp, or all.
        scale: tiny (two CPU cores), mini, small (one GPU) or base (the paper's).
        data: the folder with the benchmarks' files, and the text to pre-train on in `text`.
        out: where all is written; the same folder for all tables, which share models. What is there is not done again.
        text: the corpus, if it is elsewhere.
        models: models to use, by the rows' names, such as {"base": "bert-base-uncased"}.
        seeds: of pre-training.
        tunings: seeds of fine-tuning for each pre-trained model.
        overrides: `pretrain.section.key=value` and `finetune.section.key=value`.
        jobs: how many processes work side by side.
        device: where to compute.
        dry_run: only plan.
        gpu: the GPU to plan for, by the names of `bertworks plan`; by default for this machine.
        confirm: is called with the plan, and says whether to go on; without it, it goes on.
        quiet: report nothing.
        say: is called with remarks and progress, instead of writing them to the error stream.

    Returns:
        what results.json holds, or with `dry_run` the plan; of `all` tables by name. `signal` is there if one ended it.

    Example:
        >>> results = bw.reproduce("table5", scale="mini", data="DATA", out="OUT")
    """
    say = say or ((lambda _text: None) if quiet else _say)
    if not all(1 <= number <= MOST_SEEDS for number in (jobs, seeds, tunings) if number is not None):
        raise UserError(f"jobs {jobs}, seeds {seeds}, tunings {tunings}: each must be 1 to {MOST_SEEDS:,}")
    if gpu:
        find_gpu(gpu)
        if not dry_run:
            raise UserError(f"--gpu {gpu} is to plan for another machine; give --dry-run too")
    chosen = list(TABLES.values()) if table == "all" else [find_table(table)]
    folder = usable_path(data)
    if not folder.is_dir():
        raise UserError(f"{data} is not a folder; give the one with the benchmarks' files: --data DIR")
    listed = [text] if isinstance(text, str | os.PathLike) else list(text)
    work = Setup(
        find_scale(scale), Path(data), Path(out), listed, models or {}, seeds, tunings, overrides, device, jobs, gpu
    )
    check_start(work)
    everything: dict[str, Any] = {}
    for one in chosen:
        try:
            plan = work.plan(one)
        except UserError as error:
            if table != "all" or isinstance(error, CannotResume | CorruptFile):
                raise
            say(str(error))
            continue
        check_same(work.out, plan.jobs)
        if dry_run:
            everything[one.name] = {
                "plan": work.plan_text(plan),
                "jobs": {job.id: round(job.minutes, 3) for job in plan.jobs if not is_done(work.out, job)},
                "missing": missing_columns(plan),
            }
            continue
        if confirm is not None and not confirm(work.plan_text(plan)):
            raise UserError("nothing was done; answer yes, or give --yes")
        ended = do(work, plan, say, quiet=quiet)
        if ended:
            return everything | {"signal": ended, "out": str(work.out)}
        everything[one.name] = write_results(work.out, results_of(work, plan))
    return everything if table == "all" else everything[chosen[0].name]


def write_results(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Write the results of a table, its page, and the page of all tables."""
    folder = make_folder(out / results["table"])
    with atomic_write(folder / RESULTS_FILE) as stream:
        json.dump(results, stream, ensure_ascii=False, indent=1, allow_nan=False)
        stream.write("\n")
    write_pages(out)
    return results


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
