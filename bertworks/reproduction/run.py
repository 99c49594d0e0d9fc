"""`bertworks reproduce TABLE`: what a table needs is planned, done, measured, and compared with the paper.

    OUT/text/wordpiece/    vocabulary and shards, made once
    OUT/models/bert-s0/    pre-trained models, by seed; tables share them
    OUT/results/           a small file for each measurement; what is there is not done again
    OUT/table5/            results.json, and made of it alone: table5.html, table.md, figures
    OUT/index.html         all tables of OUT

The folder `results` is all that a table is made of: with it elsewhere, no model has to be made again.
"""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import FrameType
from typing import Any, NamedTuple

from bertworks import __version__
from bertworks.errors import CannotResume, UserError, counted
from bertworks.files import atomic_write, make_folder, parse_json, sha256_of, usable_path
from bertworks.models.folder import find_encoder, find_model
from bertworks.planning.plan import plan as plan_pretraining
from bertworks.recipe import Recipe, load_recipe
from bertworks.reproduction.claims import counts_of, headline, judge, read_claims
from bertworks.reproduction.jobs import (
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
    read_sums,
    work_off,
)
from bertworks.reproduction.page import write_pages
from bertworks.reproduction.statistics import Cell, Form, form_of
from bertworks.reproduction.tables import (
    BLIMP,
    MODELS,
    RANDOM,
    SNAPSHOTS,
    TABLES,
    TEXT,
    Column,
    Row,
    Scale,
    Table,
    TokensKind,
    find_scale,
    find_table,
    pretraining_of,
)
from bertworks.tasks import find_task
from bertworks.tasks.task import DEV, TRAIN, open_dataset

RESULTS_FILE, START_FILE, TEXT_FOLDER = "results.json", "reproduce.json", "text"
_TRACKED = ("bert", "ltr")  # whose snapshots Figure 5 measures
_ALGORITHMS: dict[TokensKind, str] = {"wordpiece": "wordpiece", "gpt-bpe": "gpt-bpe", "words": "words"}
_HOLDOUT = {"tiny": 0.1}
_USUAL_HOLDOUT = 0.01
_HELD_OUT_TOKENS = 2_000_000
_MOST = 1_000  # seeds
_SAME = 1e-3  # points: two equal scores may be rounded differently
# For rough plans: bytes of a token of text, tokens of an example by its kind, and operations a second.
_BYTES_PER_TOKEN = 4.5
_TOKENS = {"classify": 40, "regress": 30, "choose": 140, "tag": 200, "answer": 180}
_RATES = {"cpu": 2e10, "cuda": 2e13}
_START_MINUTES = {"cpu": 0.02, "cuda": 0.15}
_SIDE_BY_SIDE = 4  # fine-tunings of small models that a GPU computes at once before each gets slower
GB = 1e9


class Plan(NamedTuple):
    """What a table needs.

    Attributes:
        table: the table.
        jobs: all of them, also those that are done.
        cells: the jobs of each row and column, by seeds.
        kinds: of tokens, of which text has to be prepared.
        missing: why a row has no measurement in a column, by (row, column); the column alone for all rows.
        about: what the results say of the start.
    """

    table: Table
    jobs: list[Job]
    cells: dict[tuple[str, str], dict[tuple[int, int], str]]
    kinds: list[TokensKind]
    missing: dict[tuple[str, str], str]
    about: dict[str, Any]


class Reproduction:
    """One start of the command: its arguments, checked, and what they lead to.

    Args:
        scale: how large.
        data: the folder with benchmarks and text.
        out: the folder to write.
        text: the corpus; DATA/text without it.
        models: given ones, by the names of `MODELS`, base and large.
        seeds, tunings: of pre-training, and of fine-tuning for each; those of the scale without.
        overrides: `pretrain.section.key=value` and `finetune.section.key=value`.
        device: where to compute.
        jobs: how many processes work side by side.
    """

    def __init__(
        self,
        scale: Scale,
        data: Path,
        out: Path,
        text: Sequence[str | os.PathLike[str]],
        models: Mapping[str, str],
        seeds: int | None,
        tunings: int | None,
        overrides: Sequence[str],
        device: str,
        jobs: int,
    ) -> None:
        self.scale, self.data, self.out, self.device, self.num_jobs = scale, data, out, device, jobs
        self.seeds, self.tunings = seeds or scale.seeds, tunings or scale.tunings
        self.text = list(text) or ([data / TEXT_FOLDER] if (data / TEXT_FOLDER).exists() else [])
        self.overrides: dict[str, list[str]] = {"pretrain": [], "finetune": []}
        for override in overrides:
            stage, dot, rest = override.partition(".")
            if not dot or stage not in self.overrides or "=" not in rest:
                raise UserError(
                    f"{override[:60]!r} is not a setting here; write pretrain.SECTION.KEY=VALUE or "
                    "finetune.SECTION.KEY=VALUE, such as finetune.train.epochs=2"
                )
            self.overrides[stage].append(rest)
        known = [*MODELS, "base", "large"]
        for key in models:
            if key not in known:
                raise UserError(f"--model {key[:40]}=... names no model of a table; they are: {', '.join(known)}")
        for source in models.values():
            find_model(source)
        self.models = dict(models)
        for key, name in scale.shipped.items():
            if key not in self.models and _is_there(name):
                self.models[key] = name
        self._digests: dict[Path, str] = {}
        self._weights: dict[str, dict[str, str]] = {}
        self._corpus: str | None = None
        self._minutes: dict[str, list[float]] = {}

    def command(self, table: str, *more: str) -> str:
        """Return the command of this start, with other options appended."""
        words = ["bertworks", "reproduce", table, "--scale", self.scale.name, "--data", str(self.data),
                 "--out", str(self.out)]  # fmt: skip
        for source in self.text if self.text != [self.data / TEXT_FOLDER] else []:
            words += ["--text", str(source)]
        for key, source in self.models.items():
            if self.scale.shipped.get(key) != source:
                words += ["--model", f"{key}={source}"]
        words += [f"{stage}.{one}" for stage, some in self.overrides.items() for one in some]
        return shlex.join([*words, *more])

    # What there is.

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = sha256_of(path)
        return self._digests[path]

    def text_digest(self, kind: TokensKind) -> str:
        """Return a checksum of the corpus and of how it becomes tokens; "" where there is none."""
        if self._corpus is None:
            self._corpus = ""
            if self.text:
                from bertworks.text.corpus import Corpus

                found = hashlib.sha256()
                for path in Corpus(self.text).files:
                    found.update(self._digest(Path(path)).encode())
                self._corpus = found.hexdigest()
        if not self._corpus:
            try:
                return str(parse_json((self._text_folder(kind) / "source.json").read_bytes(), "source.json")["digest"])
            except FileNotFoundError:
                return ""
        how = f"{kind} {self._vocabulary_size(kind)} {self.scale.min_count} {self._holdout}"
        return hashlib.sha256(f"{self._corpus} {how}".encode()).hexdigest()[:32]

    def _text_folder(self, kind: TokensKind) -> Path:
        return self.out / TEXT_FOLDER / kind

    def _vocabulary_size(self, kind: TokensKind) -> int:
        return self.scale.words if kind == "words" else self.scale.vocabulary

    @property
    def _holdout(self) -> float:
        return _HOLDOUT.get(self.scale.name, _USUAL_HOLDOUT)

    def task_files(self, column: Column) -> tuple[dict[str, str], str]:
        """Return the checksums of a column's files; or none, and why they cannot be had."""
        if column.task == TEXT:
            return {}, ""
        if column.task == BLIMP:
            from bertworks.inference.minimal_pairs import pair_files

            try:
                return {path.name: self._digest(path) for path in pair_files(self.data)}, ""
            except UserError as error:
                return {}, str(error)
        task = find_task(column.task)
        try:
            dataset = open_dataset(task, self.data)
            for split in (TRAIN, DEV, column.split):
                dataset.files(split)
        except UserError as error:
            return {}, " ".join(str(error).split())
        paths = (path for split, found in dataset.found.items() if split != "test" for path in found.paths)
        return {str(path.relative_to(usable_path(self.data))): self._digest(path) for path in paths}, ""

    # Planning.

    def plan(self, table: Table) -> Plan:
        """Return all jobs of a table, and why some cells cannot be measured."""
        jobs: dict[str, Job] = {}
        cells: dict[tuple[str, str], dict[tuple[int, int], str]] = {}
        missing: dict[tuple[str, str], str] = {}
        checksums: dict[str, dict[str, str]] = {}
        for column in table.columns:
            files, why = self.task_files(column)
            if why:
                missing["", column.id] = why
            elif files:
                checksums[column.task] = files
        columns = [column for column in table.columns if ("", column.id) not in missing]
        rows = [row for row in table.rows if row.model]
        reference = next(row for row in rows if row.id == table.reference)
        has_tuned = any(column.task not in (BLIMP, TEXT) for column in columns)
        for row in [*rows, *([Row(RANDOM, "random start", reference.model)] if has_tuned else [])]:
            for column in columns:
                if row.columns and column.id not in row.columns:
                    continue
                why = self._why_not(table, row, column)
                if why:
                    missing[row.id, column.id] = why
                    continue
                cells[row.id, column.id] = {}
                for seed, tuning in self._seeds(row, column):
                    job = self._measuring(row, column, seed, tuning, checksums.get(column.task, {}), jobs)
                    jobs[job.id] = job
                    cells[row.id, column.id][seed, tuning] = job.id
        if not cells:
            rows_first = sorted(missing, key=lambda place: not place[0])
            reasons = "; ".join(dict.fromkeys(missing[place] for place in rows_first))
            raise UserError(f"{table.title}: there is nothing to measure. {reasons[:900]}")
        # A model is needed only while something that it makes is not there.
        open_jobs = [job for job in jobs.values() if job.kind != "pretrain" and not is_done(self.out, job)]
        needed = {need for job in open_jobs for need in job.needs}
        kept = [job for job in jobs.values() if job.kind != "pretrain" or job.id in needed]
        ordered = sorted(kept, key=lambda job: (job.kind != "pretrain", -job.minutes if job.kind == "pretrain" else 0))
        models = (job for job in ordered if job.kind == "pretrain")
        of_text = {"wordpiece" for job in open_jobs if job.kind == "text"}
        kinds = {MODELS[job.id.rpartition("-")[0]].tokens for job in models if not is_done(self.out, job)} | of_text
        about = {
            "files": checksums, "text": {kind: self.text_digest(kind) for kind in sorted(kinds_of(jobs.values()))},
            "pretrained": sorted(job.id for job in jobs.values() if job.kind == "pretrain"),
        }  # fmt: skip
        return Plan(table, ordered, cells, sorted(kinds), missing, about)  # type: ignore[arg-type]

    def _seeds(self, row: Row, column: Column) -> Iterator[tuple[int, int]]:
        """Yield the seeds of a cell: of pre-training (0 for a given model), and of fine-tuning."""
        is_given = row.model.partition("@")[0] in self.models
        if row.id == RANDOM:
            yield from ((0, tuning) for tuning in range(min(2, self.seeds * self.tunings)))
            return
        is_tuned = column.task not in (BLIMP, TEXT)
        tunings = max(self.tunings, self.seeds) if is_given else self.tunings
        for seed in range(1 if is_given else self.seeds):
            for tuning in range(tunings if is_tuned else 1):
                yield seed, tuning

    def _why_not(self, table: Table, row: Row, column: Column) -> str:
        """Return why a row cannot be measured in a column, "" if it can."""
        for key in filter(None, (row.model, row.beside)):
            name = self._resolved(key)
            if name in self.models:
                continue
            if table.name in ("table1", "table2", "table3", "table4") and name in ("gpt", "elmo"):
                return f"no model is given: --model {name}=MODEL; the table `systems` pre-trains one"
            tokens = MODELS[name.partition("@")[0]].tokens
            if not self.text_digest(tokens) and not (self.out / MODELS_FOLDER / f"{key}-s0").exists():
                return f"no text to pre-train {name} on: give --text CORPUS, or put it into {self.data / TEXT_FOLDER}"
        if column.task == TEXT and MODELS.get(row.model, MODELS["bert"]).tokens != "wordpiece":
            return "perplexity is compared among models of the same pieces alone"
        return ""

    def _resolved(self, key: str) -> str:
        """Return the model that a row means: `base` and `large` are pre-trained ones where none is given or shipped."""
        if key in self.models:
            return key
        return {"base": "bert", "large": "size6"}.get(key, key)

    def _model(self, key: str, seed: int, jobs: dict[str, Job]) -> tuple[str, dict[str, Any], list[str]]:
        """Return where a model is, what identifies it, and the job that makes it, which is added to the jobs."""
        key = self._resolved(key)
        if key in self.models:
            if key not in self._weights:
                from bertworks.train.warm_start import checksums

                self._weights[key] = checksums(find_encoder(find_model(self.models[key])))
            return self.models[key], {"weights": self._weights[key]}, []
        name, _, share = key.partition("@")
        recipe, overrides = pretraining_of(name, self.scale, [*self.overrides["pretrain"], f"train.seed={seed}"])
        job_id, steps, inputs = f"{name}-s{seed}", load_recipe(recipe, overrides).train.max_steps, dict[str, Any]()
        if name in _TRACKED:
            overrides += [f"train.save_every={max(1, steps // 10)}", "train.keep=11"]
            inputs["snapshots"] = {str(percent): max(1, steps // 10) * (percent // 10) for percent in SNAPSHOTS}
        tokens = MODELS[name].tokens
        inputs["data"] = str(self._text_folder(tokens) / "data")
        config = {"recipe": recipe, "overrides": overrides, "text": self.text_digest(tokens)}
        run = self.out / MODELS_FOLDER / job_id
        command = ["bertworks", "pretrain", recipe, "--data", inputs["data"], "--out", str(run), *overrides]
        commands = [*self._text_commands(tokens), shlex.join(command)]
        jobs[job_id] = Job(
            id=job_id, kind="pretrain", config=config, inputs=inputs, commands=commands,
            minutes=self._pretraining_minutes(load_recipe(recipe, overrides), tokens),
        )  # fmt: skip
        path = self.out / MODELS_FOLDER / (f"{name}@{share}-s{seed}" if share else job_id)
        return str(path), {**config, **({"after": f"{share} %"} if share else {})}, [job_id]

    def _measuring(
        self, row: Row, column: Column, seed: int, tuning: int, files: dict[str, str], jobs: dict[str, Job]
    ) -> Job:
        """Return the job of a cell and its seeds."""
        model, about, needs = self._model(row.model, seed, jobs)
        name = self._resolved(row.model)
        beside, config = None, dict[str, Any](model=about, files=files)
        if row.beside:
            beside, its, more = self._model(row.beside, seed, jobs)
            needs, config = [*needs, *more], {**config, "beside": its}
            name += f"+{self._resolved(row.beside)}"
        if column.task == BLIMP:
            command = ["bertworks", "evaluate", model, "--task", BLIMP, "--data", str(self.data)]
            return Job(
                id=f"{name}-s{seed}/{BLIMP}", kind="pairs", needs=needs, commands=[shlex.join(command)],
                config=config | {"max_pairs": self.scale.max_pairs}, inputs={"model": model, "data": str(self.data)},
                minutes=self._usual_minutes(BLIMP, 0.5),
            )  # fmt: skip
        if column.task == TEXT:
            data = str(self._text_folder("wordpiece") / "data")
            command = ["bertworks", "evaluate", model, "--data", data, "--max-tokens", str(_HELD_OUT_TOKENS)]
            return Job(
                id=f"{name}-s{seed}/{TEXT}", kind="text", needs=needs, commands=[shlex.join(command)],
                config=config | {"max_tokens": _HELD_OUT_TOKENS}, inputs={"model": model, "data": data},
                minutes=self._usual_minutes(TEXT, 0.2),
            )  # fmt: skip
        task = find_task(column.task)
        is_random = row.id == RANDOM
        variant = [one.removeprefix("task.").replace("=true", "").replace("features=", "")
                   for one in (*row.overrides, *column.overrides)]  # fmt: skip
        name = "+".join([name, *variant, *(["random"] if is_random else [])])
        kind = self._kind(row.model)
        by = self.scale.finetune_by
        features = "features" if any("task.features" in one for one in (*row.overrides, *column.overrides)) else ""
        own = by.get(kind, ()) if not features else by.get("features", ())
        overrides = _settled(
            [*self.scale.finetune, *own, *by.get(task.kind, ()), *row.overrides, *column.overrides,
             *self.overrides["finetune"], f"train.seed={1_000 * seed + tuning}"]
        )  # fmt: skip
        run = self.out / WORK / f"{name}-s{seed}" / f"{task.name}-t{tuning}"
        command = ["bertworks", "finetune", task.name, "--model", model, "--data", str(self.data), "--out", str(run)]
        command += ["--init", "random"] * is_random + (["--with", beside] if beside else []) + overrides
        config |= {"task": task.name, "overrides": overrides, "init": "random" if is_random else "model"}
        return Job(
            id=f"{name}-s{seed}/{task.name}-t{tuning}", kind="finetune", needs=needs, config=config,
            inputs={"model": model, "beside": beside, "data": str(self.data)}, commands=[shlex.join(command)],
            minutes=self._usual_minutes(task.name, self._tuning_minutes(task.name, task.kind, overrides)),
        )  # fmt: skip

    def _kind(self, key: str) -> str:
        """Return the kind of a row's model: bert, gpt or elmo."""
        from bertworks.models.kinds import kind_of_model

        key = self._resolved(key)
        if key in self.models:
            name = kind_of_model(find_encoder(find_model(self.models[key]))).name
            return name if name in ("gpt", "elmo") else "bert"
        return {"words": "elmo", "gpt-bpe": "gpt"}.get(MODELS[key.partition("@")[0]].tokens, "bert")

    # How long it takes: roughly, until jobs of the same kind have been done here.

    @property
    def _place(self) -> str:
        if not hasattr(self, "_found_place"):
            from bertworks.nn.layers import find_device

            self._found_place = find_device(self.device).type
        return self._found_place if self._found_place in _RATES else "cpu"

    def _usual_minutes(self, name: str, guessed: float) -> float:
        """Return the mean of what jobs of a task took here, or the guess."""
        if not self._minutes:
            self._minutes[""] = []
            for path in sorted((self.out / RESULTS).glob("*/*.json")):
                found = parse_json(path.read_bytes(), str(path))
                task = path.stem.rpartition("-t")[0] or path.stem
                self._minutes.setdefault(task, []).append(float(found.get("minutes", 0.0)))
        return fmean(self._minutes[name]) if self._minutes.get(name) else guessed

    def _pretraining_minutes(self, recipe: Recipe, tokens: TokensKind) -> float:
        if self._place == "cuda":
            planned = plan_pretraining(recipe, vocab_size=self._vocabulary_size(tokens))
            if planned["time"]["hours"] is not None:
                return 60 * float(planned["time"]["hours"]) + 1
        planned = plan_pretraining(recipe, vocab_size=self._vocabulary_size(tokens))
        # LSTMs compute a step after the other, and use a fraction of a GPU.
        share = 0.25 if recipe.model.kind == "elmo" and self._place == "cuda" else 1.0
        return float(planned["flops"]) / (share * _RATES[self._place]) / 60 + _START_MINUTES[self._place]

    def _tuning_minutes(self, name: str, kind: str, overrides: Sequence[str]) -> float:
        values = dict(one.split("=", 1) for one in overrides)
        dataset = open_dataset(find_task(name), self.data)
        size = sum(path.stat().st_size for path in dataset.files(TRAIN).paths) / _BYTES_PER_TOKEN
        cap = int(values.get("task.max_examples", 0)) or 10**9
        tokens = min(size, cap * _TOKENS.get(kind, 40)) * int(values.get("train.epochs", 3))
        parameters = _parameters_of(self.scale.size)
        return 6 * parameters * tokens / _RATES[self._place] / 60 + _START_MINUTES[self._place]

    # Text.

    def _text_commands(self, kind: TokensKind) -> list[str]:
        folder = self._text_folder(kind)
        corpus = [str(source) for source in self.text]
        vocab = ["bertworks", "vocab", *corpus, "--out", str(folder / "vocab"), "--size",
                 str(self._vocabulary_size(kind)), "--algorithm", _ALGORITHMS[kind], "--cased", "--min-count",
                 str(self.scale.min_count)]  # fmt: skip
        prepare = ["bertworks", "prepare", *corpus, "--vocab", str(folder / "vocab"), "--cased", "--tokens", kind,
                   "--drop-headings", "--holdout", str(self._holdout), "--out", str(folder / "data")]  # fmt: skip
        return [shlex.join(vocab), shlex.join(prepare)]

    def prepare_text(self, kind: TokensKind, *, quiet: bool) -> None:
        """Make a vocabulary and shards, or take those that are there."""
        from bertworks.data.prepare import prepare
        from bertworks.text.kinds import open_tokenizer
        from bertworks.text.learn import learn_vocabulary
        from bertworks.text.normalize import Rules

        folder, digest = make_folder(self._text_folder(kind)), self.text_digest(kind)
        source = folder / "source.json"
        if source.exists():
            if parse_json(source.read_bytes(), str(source))["digest"] != digest:
                raise CannotResume(
                    f"{folder} was made from another text, or for another scale; use the same, or another --out"
                )
            if (folder / "data" / "manifest.json").exists() and (folder / "done").exists():
                return
        if not self.text:
            raise UserError(f"no text to pre-train on: give --text CORPUS, or put it into {self.data / TEXT_FOLDER}")
        with atomic_write(source) as stream:
            json.dump({"digest": digest}, stream)
        if not (folder / "vocab").exists():
            learned = learn_vocabulary(
                self.text, size=self._vocabulary_size(kind), algorithm=_ALGORITHMS[kind],  # type: ignore[arg-type]
                lowercase=False, min_count=self.scale.min_count, quiet=quiet,
            )  # fmt: skip
            learned.save(folder / "vocab")
        tokenizer = open_tokenizer(folder / "vocab", Rules(False, False, True), kind)
        prepare(self.text, tokenizer, folder / "data", holdout=self._holdout, drop_headings=True, quiet=quiet)
        (folder / "done").touch()

    # Doing it.

    def check_start(self) -> None:
        """Refuse a folder of another scale, and record this start."""
        make_folder(self.out, "folder of the tables")
        path = self.out / START_FILE
        start = {"scale": self.scale.name, **self.overrides}
        if path.exists():
            before = parse_json(path.read_bytes(), str(path))
            for key, value in start.items():
                if before.get(key) != value:
                    raise CannotResume(
                        f"{self.out} was started with {_option(key, before.get(key))}, and now has "
                        f"{_option(key, value)}; use the same to resume, or choose another --out"
                    )
        elif names := [one.name for one in self.out.iterdir() if not one.name.startswith(".")]:
            raise UserError(f"{self.out} holds no tables, but {names[0]}; choose another --out")
        with atomic_write(path) as stream:
            json.dump(start, stream, indent=1)

    def do(self, plan: Plan, say: Callable[[str], None], *, quiet: bool) -> int:
        """Do a plan's jobs; returns the signal that ended it, or 0."""
        clear_errors(self.out, plan.jobs)
        for kind in plan.kinds:
            say(f"text for {kind}")
            self.prepare_text(kind, quiet=quiet)
        to_do = [job for job in plan.jobs if not is_done(self.out, job)]
        progress = _Progress(self.out, to_do, min(self.num_jobs, len(to_do)), say)
        if not to_do:
            return 0
        if self.num_jobs == 1:
            try:
                work_off(self.out, plan.jobs, self.device, lambda job, _: progress.ended(job))
            except Stopped:
                return int(signal.SIGTERM)
            except KeyboardInterrupt:
                return int(signal.SIGINT)
            return 0
        return self._side_by_side(plan, progress, min(self.num_jobs, len(to_do)))

    def _side_by_side(self, plan: Plan, progress: "_Progress", count: int) -> int:
        path = make_folder(self.out / WORK) / f"jobs-{plan.table.name}.json"
        with atomic_write(path) as stream:
            json.dump({"out": str(self.out.absolute()), "jobs": [job.model_dump() for job in plan.jobs]}, stream)
        threads = str(max(1, (os.cpu_count() or 1) // count))
        environment = {"OMP_NUM_THREADS": threads, **os.environ}
        log = open(self.out / WORK / "workers.log", "ab")  # noqa: SIM115 -- the processes hold it
        got: list[int] = []

        def note(number: int, _: FrameType | None) -> None:
            got.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        workers = [
            subprocess.Popen(  # noqa: S603 -- ourselves
                [sys.executable, "-m", "bertworks.reproduction.jobs", str(path), self.device],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )
            for _ in range(count)
        ]  # fmt: skip
        try:
            is_told = False
            while any(worker.poll() is None for worker in workers):
                if got and not is_told:
                    is_told = True
                    for worker in workers:
                        worker.send_signal(signal.SIGTERM)  # runs save before they end
                progress.look()
                time.sleep(0.2)
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
        if any(codes) and any(not is_done(self.out, job) and not read_error(self.out, job.id) for job in plan.jobs):
            tail = (self.out / WORK / "workers.log").read_text(encoding="utf-8", errors="replace").strip()[-400:]
            raise UserError(
                f"a worker ended with {next(code for code in codes if code)}; start the command again to resume. {tail}"
            )
        return 0

    # Results.

    def results(self, plan: Plan) -> dict[str, Any]:
        """Return what `results.json` holds, from the results of all jobs."""
        table, judged = plan.table, list[dict[str, Any]]()
        found: dict[str, dict[str, Any]] = {}
        for job in plan.jobs:
            if (result := read_result(self.out, job.id)) is not None:
                found[job.id] = result
        for name in plan.about["pretrained"]:
            if name not in found and (result := read_result(self.out, name)) is not None:
                found[name] = result
        forms = {column.id: _form(column) for column in table.columns}
        cells: dict[tuple[str, str], Cell] = {}
        missing = dict(plan.missing)
        for (row, column), by_seed in plan.cells.items():
            own = next(one for one in table.columns if one.id == column)
            runs = {
                seeds: read_sums(self.out, job_id)[f"{own.split}/{own.metric}"]
                for seeds, job_id in by_seed.items()
                if job_id in found
            }
            if runs:
                its = next((one for one in table.rows if one.id == row), Row(row, "", row))
                model = self._resolved(its.model).partition("@")[0]
                cells[row, column] = Cell(runs, f"{model}+{its.beside}" if its.beside else model)
            else:
                error = next(filter(None, (self._error_of(plan, one) for one in by_seed.values())), "not done")
                missing[row, column] = error

        def why_missing(row: str, column: str) -> str:
            known = missing.get((row, column)) or missing.get(("", column))
            return known or "the paper has it, and nothing here measures it"

        for claim in read_claims():
            if claim.table == table.name:
                for column in claim.sizes:
                    lower = next(one for one in table.columns if one.id == column).lower_is_better
                    one = judge(claim, column, cells, forms[column], why_missing=why_missing, lower_is_better=lower)
                    judged.append(one | self._to_decide(one, plan, found))
        counts = counts_of(judged)
        rows = [self._row(plan, row, cells, forms, found, why_missing) for row in table.rows]
        extra = [row for row in (RANDOM,) if any(its == row for its, _ in cells)]
        rows += [self._row(plan, Row(row, "random start", "-"), cells, forms, found, why_missing) for row in extra]
        used = [found[job_id] for job_id in dict.fromkeys(_used(plan)) if job_id in found]
        failed = [{"job": job.id, "error": error} for job in plan.jobs if (error := read_error(self.out, job.id))]
        minutes = sum(one["minutes"] for one in used)
        return {
            "table": table.name, "title": table.title, "about": table.about, "published": table.published,
            "reference": table.reference, "scale": self.scale.name, "scale_about": self.scale.about,
            "command": self.command(table.name, "--seeds", str(self.seeds), "--tunings", str(self.tunings)),
            "headline": headline(counts), "counts": counts,
            "columns": [
                {"id": one.id, "title": one.title, "task": one.task, "metric": one.metric, "split": one.split,
                 "lower_is_better": one.lower_is_better} for one in table.columns
            ],
            "rows": rows, "gates": self._gates(plan, cells, forms, found), "claims": judged,
            "missing": self._missing_columns(plan), "failed": failed,
            "provenance": {
                "version": __version__, "scale": self.scale.name, "seeds": self.seeds, "tunings": self.tunings,
                "minutes": round(minutes, 2), "devices": sorted({one.get("device", "") for one in used} - {""}),
                "files": plan.about["files"], "text": plan.about["text"],
                "overrides": {stage: some for stage, some in self.overrides.items() if some},
                "tokens": sorted({one["tokens"] for one in used if "tokens" in one}),
                "models": {key: source for key, source in sorted(self.models.items())
                           if any(self._resolved(row.model) == key for row in table.rows if row.model)},
            },
        }  # fmt: skip

    def _error_of(self, plan: Plan, job_id: str) -> str:
        needs = next((job.needs for job in plan.jobs if job.id == job_id), [])
        return next(filter(None, (read_error(self.out, one) for one in (job_id, *needs))), "")

    def _row(
        self,
        plan: Plan,
        row: Row,
        cells: Mapping[tuple[str, str], Cell],
        forms: Mapping[str, Form],
        found: Mapping[str, dict[str, Any]],
        why_missing: Callable[[str, str], str],
    ) -> dict[str, Any]:
        """Return what the results say of a row."""
        paper, ours, missing = dict[str, float](), dict[str, Any](), dict[str, str]()
        commands: list[str] = []
        minutes, parameters, models = 0.0, None, dict[str, None]()
        for column in plan.table.columns:
            published = plan.table.paper_of(row.id, column.id) if row.id != RANDOM else None
            if published is not None:
                paper[column.id] = published
            if (row.id, column.id) not in cells:
                if row.model:
                    missing[column.id] = why_missing(row.id, column.id)
                continue
            jobs = plan.cells[row.id, column.id]
            scores = cells[row.id, column.id].scores(forms[column.id])
            by_seed = [fmean(value for (its, _), value in scores.items() if its == seed)
                       for seed in cells[row.id, column.id].seeds]  # fmt: skip
            spread = by_seed if len(by_seed) > 1 else list(scores.values())
            results = [found[jobs[seeds]] for seeds in scores]
            ours[column.id] = {
                "mean": round(fmean(scores.values()), 4),
                "std": round(stdev(spread), 4) if len(spread) > 1 else None,
                "of": "pre-training" if len(by_seed) > 1 else "fine-tuning",
                "runs": {f"{seed}.{tuning}": round(score, 4) for (seed, tuning), score in scores.items()},
                "examples": results[0]["splits"][column.split]["examples"],
            }
            minutes += sum(result["minutes"] for result in results)
            for job_id in jobs.values():
                models |= dict.fromkeys(_needs(plan, job_id))
            commands += [command for result in results[:1] for command in result["commands"]]
            parameters = max([results[0].get("parameters", 0), parameters or 0]) or None
        made = [found[name] for name in models if name in found]
        minutes += sum(one["minutes"] for one in made)
        commands = [command for one in made[:2] for command in one["commands"]] + commands
        return {
            "id": row.id, "title": row.title, "paper": paper, "ours": ours, "missing": missing,
            "commands": list(dict.fromkeys(commands)), "minutes": round(minutes, 2), "parameters": parameters,
            "encoder_parameters": made[0].get("parameters") if made else None,
        }  # fmt: skip

    def _gates(
        self,
        plan: Plan,
        cells: Mapping[tuple[str, str], Cell],
        forms: Mapping[str, Form],
        found: Mapping[str, dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return for each column whether every row beats a constant answer, and a random start."""
        gates = []
        for column in plan.table.columns:
            means = {row: fmean(cell.scores(forms[column.id]).values())
                     for (row, its), cell in cells.items() if its == column.id}  # fmt: skip
            rows = [row for row in means if row != RANDOM]
            if not rows:
                continue
            job_id = next(one for one in plan.cells[rows[0], column.id].values() if one in found)
            constant = found[job_id]["splits"][column.split]["majority"].get(column.metric)
            for name, limit in (("constant answer", constant), ("random start", means.get(RANDOM))):
                if limit is not None:
                    below = [row for row in rows if means[row] <= limit + _SAME]
                    gates.append({"column": column.id, "gate": name, "limit": round(limit, 4), "below": below})
        return gates

    def _missing_columns(self, plan: Plan) -> list[dict[str, Any]]:
        """Return what could not be measured for lack of files: why, in which rows, and how many claims it concerns."""
        claims = [claim for claim in read_claims() if claim.table == plan.table.name]
        grouped: dict[str, list[tuple[str, str]]] = {}
        for (row, column), why in plan.missing.items():
            grouped.setdefault(why, []).append((row, column))
        found = []
        for why, places in grouped.items():
            columns = list(dict.fromkeys(column for _, column in places))
            rows = list(dict.fromkeys(row for row, _ in places if row))
            lost = [
                f"{claim.says} ({column})"
                for claim in claims
                for column in claim.sizes
                if any(column == its and row in ("", claim.row, claim.against) for row, its in places)
            ]
            found.append({"why": why, "columns": columns, "rows": rows or ["all"], "claims": lost})
        return found

    def _to_decide(self, judged: Mapping[str, Any], plan: Plan, found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return how many minutes more seeds would take, and the command."""
        needed = judged.get("seeds_needed")
        if not needed:
            return {}
        tuning_minutes, models = 0.0, dict[str, float]()
        for row in (judged["row"], judged["against"]):
            jobs = plan.cells[row, judged["column"]]
            tuning_minutes += fmean(found[job_id]["minutes"] for job_id in jobs.values() if job_id in found)
            for job_id in jobs.values():
                for name in _needs(plan, job_id):
                    models[name.rpartition("-")[0]] = found[name]["minutes"] if name in found else 0.0
        if models:  # a single seed of pre-training says nothing of its noise, however often it is fine-tuned
            needed = 3 if self.seeds == 1 else needed
            more, seeds, tunings = needed - self.seeds, needed, self.tunings
            minutes = more * (sum(models.values()) + self.tunings * tuning_minutes)
        else:
            more, seeds, tunings = needed - judged.get("num_seeds", 1), self.seeds, needed
            minutes = more * tuning_minutes
        return {
            "more_seeds": max(1, more),
            "more_minutes": round(minutes, 4),
            "command": self.command(plan.table.name, "--seeds", str(seeds), "--tunings", str(tunings), "--yes"),
        }

    def plan_text(self, plan: Plan) -> str:
        """Return a plan in words: what runs, minutes, gigabytes, what is left out."""
        to_do = [job for job in plan.jobs if not is_done(self.out, job)]
        lines = [f"{plan.table.title}, scale {self.scale.name}: {self.scale.about}", ""]
        titles = {"pretrain": "pre-train", "finetune": "fine-tune", "pairs": "minimal pairs", "text": "perplexity"}
        for kind, title in titles.items():
            all_jobs, some = ([job for job in jobs if job.kind == kind] for jobs in (plan.jobs, to_do))
            if all_jobs:
                names = list(dict.fromkeys(job.id.split("/")[0].rpartition("-s")[0] for job in all_jobs))
                shown = ", ".join(names[:8]) + ", ..." * (len(names) > 8)
                lines.append(
                    f"{title:<14}{len(some):>5} to do of {len(all_jobs):<5}{_minutes(sum(j.minutes for j in some)):>12}"
                    f"   {shown}"
                )
        total = sum(job.minutes for job in to_do)
        together = min(self.num_jobs, _SIDE_BY_SIDE if self._place == "cuda" else os.cpu_count() or 1)
        lines += ["", f"about {_minutes(total)} of work, estimated; with --jobs {self.num_jobs} about "
                      f"{_minutes(total / together)}; disk about {self._gigabytes(to_do):.2f} GB"]  # fmt: skip
        for kind in plan.kinds:
            if not (self._text_folder(kind) / "done").exists():
                lines.append(f"text is prepared first: {kind}, {self._vocabulary_size(kind):,} entries")
        for one in self._missing_columns(plan):
            rows = f"; rows left out: {', '.join(one['rows'])}" if one["rows"] != ["all"] else ""
            lost = f"; {counted(len(one['claims']), 'claim')} not testable" if one["claims"] else ""
            lines.append(f"left out: {', '.join(one['columns'])}{rows}{lost}. {one['why']}")
        return "\n".join(lines)

    def _gigabytes(self, to_do: Sequence[Job]) -> float:
        """Return about how much disk is taken: models, the checkpoints of those at work, shards."""
        size = 4 * (_parameters_of(self.scale.size) + self.scale.vocabulary * int(self.scale.size.split("x")[1]))
        models = sum(1 + len(job.inputs.get("snapshots", {})) for job in to_do if job.kind == "pretrain")
        at_work = min(self.num_jobs, len(to_do)) * 3 * 3
        corpus = 0
        if self.text and any(job.kind == "pretrain" for job in to_do):
            from bertworks.text.corpus import Corpus

            corpus = 2 * (Corpus(self.text).total_bytes or 0)
        return (size * (models + at_work) + corpus) / GB


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
            outcome = f"{score}{_minutes(result.get('minutes', 0.0))}"
        elapsed = (time.monotonic() - self._started) / 60
        rest = sum(one.minutes for one in self._left.values()) * elapsed / max(self._done_minutes, 1e-9)
        left = f"; about {_minutes(rest)} left" if self._left else ""
        self._say(f"{self._count - len(self._left)} of {self._count}, {job.id}: {outcome}{left}")


def kinds_of(jobs: Any) -> set[TokensKind]:
    """Return the kinds of tokens of the models that jobs pre-train."""
    return {MODELS[job.id.rpartition("-")[0]].tokens for job in jobs if job.kind == "pretrain"}


def _used(plan: Plan) -> Iterator[str]:
    for by_seed in plan.cells.values():
        for job_id in by_seed.values():
            yield job_id
            yield from _needs(plan, job_id)


def _needs(plan: Plan, job_id: str) -> list[str]:
    return next((job.needs for job in plan.jobs if job.id == job_id), [])


def _form(column: Column) -> Form:
    if column.task == TEXT:
        return "perplexity"
    return "mean" if column.task == BLIMP else form_of(find_task(column.task), column.metric)


def _is_there(name: str) -> bool:
    try:
        find_model(name)
    except UserError:
        return False
    return True


def _settled(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the last value of each key alone."""
    return [f"{key}={value}" for key, value in dict(one.split("=", 1) for one in overrides).items()]


def _option(key: str, value: Any) -> str:
    if key == "scale":
        return f"--scale {value}"
    return f"{key} settings {' '.join(value) if value else 'as usual'}"


def _parameters_of(size: str) -> int:
    layers, width, *_ = map(int, size.split("x"))
    return 12 * layers * width * width


def _minutes(minutes: float) -> str:
    if minutes >= 48 * 60:
        return f"{minutes / 1440:,.1f} days"
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} min"


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
        confirm: is called with the plan, and says whether to go on; without it, it goes on.
        quiet: report nothing.
        say: is called with remarks and progress, instead of writing them to the error stream.

    Returns:
        what results.json holds, or with `dry_run` the plan; of `all` tables by name. `signal` is there if one ended it.
    """
    say = say or ((lambda _text: None) if quiet else _say)
    if not 1 <= jobs <= _MOST or any(value is not None and not 1 <= value <= _MOST for value in (seeds, tunings)):
        raise UserError(f"jobs {jobs}, seeds {seeds}, tunings {tunings}: each must be 1 to {_MOST:,}")
    chosen = list(TABLES.values()) if table == "all" else [find_table(table)]
    folder = usable_path(data)
    if not folder.is_dir():
        raise UserError(f"{data} is not a folder; give the one with the benchmarks' files: --data DIR")
    listed = [text] if isinstance(text, str | os.PathLike) else list(text)
    work = Reproduction(
        find_scale(scale), Path(data), Path(out), listed, models or {}, seeds, tunings, overrides, device, jobs
    )
    if not dry_run:
        work.check_start()
    everything: dict[str, Any] = {}
    for one in chosen:
        try:
            plan = work.plan(one)
        except UserError as error:
            if table != "all" or isinstance(error, CannotResume):
                raise
            say(str(error))
            continue
        check_same(work.out, plan.jobs)
        if dry_run:
            everything[one.name] = {
                "plan": work.plan_text(plan),
                "jobs": [job.id for job in plan.jobs if not is_done(work.out, job)],
                "minutes": round(sum(job.minutes for job in plan.jobs if not is_done(work.out, job)), 2),
                "missing": work._missing_columns(plan),
            }
            continue
        if confirm is not None and not confirm(work.plan_text(plan)):
            raise UserError("nothing was done; answer yes, or give --yes")
        ended = work.do(plan, say, quiet=quiet)
        if ended:
            return everything | {"signal": ended, "out": str(work.out)}
        everything[one.name] = write_results(work.out, work.results(plan))
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
