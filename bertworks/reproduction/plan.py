"""What a table needs: its jobs in order, what decides each, what is left out, and about how long it takes."""

import hashlib
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bertworks.data.shards import MANIFEST
from bertworks.errors import UserError, counted
from bertworks.files import read_object, sha256_of, usable_path
from bertworks.finetuning.settings import settings_for
from bertworks.models.folder import CONFIG_FILE, find_encoder, find_model
from bertworks.planning.costs import MEASURED
from bertworks.planning.plan import plan as plan_pretraining
from bertworks.recipe import Recipe, load_recipe
from bertworks.reproduction.claims import read_claims
from bertworks.reproduction.jobs import (
    MODELS_FOLDER,
    RESULTS,
    WORK,
    Job,
    is_done,
    measured_splits,
    read_result,
    read_result_file,
)
from bertworks.reproduction.tables import (
    BLIMP,
    FEW,
    MODELS,
    RANDOM,
    SNAPSHOTS,
    TEXT,
    Column,
    Row,
    Scale,
    Table,
    TokensKind,
    pretraining_of,
)
from bertworks.tasks import find_task
from bertworks.tasks.task import DEV, TRAIN, Task, open_dataset

TEXT_FOLDER = "text"
_TRACKED = ("bert", "ltr")  # whose snapshots Figure 5 measures
_PAIR = {"base", "large"}  # of which one is not pre-trained where the other is given
ALGORITHMS: dict[TokensKind, str] = {"wordpiece": "wordpiece", "gpt-bpe": "gpt-bpe", "words": "words"}
_HOLDOUT = {"tiny": 0.1}
_USUAL_HOLDOUT = 0.01
_HELD_OUT_TOKENS = 2_000_000
# For rough plans: bytes of a token of text, tokens of an example by its kind, and operations a second.
_BYTES_PER_TOKEN = 4.5
_TOKENS = {"classify": 40, "regress": 30, "choose": 140, "tag": 250, "answer": 220}
_RATES = {"cpu": 2e10, "cuda": 1e14}
_START_MINUTES = {"cpu": 0.02, "cuda": 0.2}
_STEP_S = {"bert": 0.004, "gpt": 0.008, "features": 0.01, "elmo": 0.02}  # of fine-tuning on a GPU, by kind of model
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


class Setup:
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
        gpu: the GPU that a plan is for, where the work is not done here.
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
        gpu: str = "",
    ) -> None:
        self.scale, self.data, self.out, self.device, self.num_jobs, self.gpu = scale, data, out, device, jobs, gpu
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
        for key, source in models.items():
            _check_kind(key, source)
        self.models = dict(models)
        # All or none: a shipped model beside one that was pre-trained on fewer tokens would be no comparison.
        if not {"base", "large"} & self.models.keys() and all(map(_is_there, scale.shipped.values())):
            self.models |= scale.shipped
        self._digests: dict[Path, str] = {}
        self._weights: dict[str, dict[str, str]] = {}
        self._corpus: str | None = None
        self._minutes: dict[str, list[float]] = {}
        self._found_place = ""
        self._pretrained: dict[tuple[str, int], Job] = {}

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
        if not self._corpus:  # as far as what is there says which text it is from
            source = self.text_folder(kind) / "source.json"
            if source.exists():
                return str(read_object(source).get("digest"))
            names = (f"{key}-s0" for key, made in MODELS.items() if made.tokens == kind)
            results = filter(None, (read_result(self.out, name) for name in names))
            return next((str(one["config"]["text"]) for one in results), "")
        how = f"{kind} {self.vocabulary_size(kind)} {self.scale.min_count} {self.holdout}"
        return hashlib.sha256(f"{self._corpus} {how}".encode()).hexdigest()[:32]

    def text_folder(self, kind: TokensKind) -> Path:
        """Return where a kind of tokens has its vocabulary and shards."""
        return self.out / TEXT_FOLDER / kind

    def vocabulary_size(self, kind: TokensKind) -> int:
        """Return how many entries a kind of tokens has at this scale."""
        return self.scale.words if kind == "words" else self.scale.vocabulary

    @property
    def holdout(self) -> float:
        """The share of documents that are held out."""
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
        read = {TRAIN, DEV, *measured_splits(task.name)}
        paths = (path for split, found in dataset.found.items() if split in read for path in found.paths)
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
                if row.id == RANDOM and column.task in (BLIMP, TEXT):
                    continue  # nothing is trained there
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
        is_given = self.is_given(row)
        if row.id == RANDOM:
            yield from ((0, tuning) for tuning in range(min(2, self.seeds * self.tunings)))
            return
        is_tuned = column.task not in (BLIMP, TEXT)
        tunings = max(self.tunings, self.seeds) if is_given else self.tunings
        for seed in range(1 if is_given else self.seeds):
            for tuning in range(tunings if is_tuned else 1):
                yield seed, tuning

    def is_given(self, row: Row) -> bool:
        """Tell whether all models of a row are given, so that there are no seeds of pre-training."""
        return all(self.resolved(key) in self.models for key in (row.model, row.beside) if key)

    def _why_not(self, table: Table, row: Row, column: Column) -> str:
        """Return why a row cannot be measured in a column, "" if it can."""
        for key in filter(None, (row.model, row.beside)):
            name = self.resolved(key)
            if name in self.models:
                continue
            if (base := name.partition("@")[0]) in self.models:
                return f"a given model has no checkpoints on the way; pre-train it here, without --model {base}"
            if key in _PAIR and _PAIR & self.models.keys():
                return f"no model is given beside the other one: --model {key}=MODEL"
            if "@" in name:
                recipe, overrides = pretraining_of(base, self.scale, self.overrides["pretrain"])
                if (steps := load_recipe(recipe, overrides).train.max_steps) % 10:
                    return f"it is measured at tenths of the steps, and train.max_steps is {steps:,}, no multiple of 10"
            if table.name in ("table1", "table2", "table3", "table4") and name in ("gpt", "elmo"):
                return f"no model is given: --model {name}=MODEL; the table `systems` pre-trains one"
            tokens = MODELS[name.partition("@")[0]].tokens
            if not self.text_digest(tokens) and not (self.out / MODELS_FOLDER / f"{key}-s0").exists():
                return f"no text to pre-train {name} on: give --text CORPUS, or put it into {self.data / TEXT_FOLDER}"
        if column.task == TEXT and MODELS.get(row.model, MODELS["bert"]).tokens != "wordpiece":
            return "perplexity is compared among models of the same pieces alone"
        return ""

    def resolved(self, key: str) -> str:
        """Return the model that a row means: `base` and `large` are pre-trained ones where none is given or shipped."""
        if key in self.models:
            return key
        return {"base": "bert", "large": "size6"}.get(key, key)

    def _model(self, key: str, seed: int, jobs: dict[str, Job]) -> tuple[str, dict[str, Any], list[str]]:
        """Return where a model is, what identifies it, and the job that makes it, which is added to the jobs."""
        key = self.resolved(key)
        if key in self.models:
            if key not in self._weights:
                from bertworks.train.warm_start import checksums

                self._weights[key] = checksums(find_encoder(find_model(self.models[key])))
            return self.models[key], {"weights": self._weights[key]}, []
        name, _, share = key.partition("@")
        if (name, seed) not in self._pretrained:
            self._pretrained[name, seed] = self._pretraining(name, seed)
        job = jobs[f"{name}-s{seed}"] = self._pretrained[name, seed]
        path = self.out / MODELS_FOLDER / (f"{name}@{share}-s{seed}" if share else job.id)
        return str(path), {**job.config, **({"after": f"{share} %"} if share else {})}, [job.id]

    def _pretraining(self, name: str, seed: int) -> Job:
        """Return the job that makes a model."""
        recipe, overrides = pretraining_of(name, self.scale, [*self.overrides["pretrain"], f"train.seed={seed}"])
        job_id, inputs = f"{name}-s{seed}", dict[str, Any]()
        settings = load_recipe(recipe, overrides)
        if name in _TRACKED:
            tenth = max(1, settings.train.max_steps // 10)
            overrides += [f"train.save_every={tenth}", "train.keep=11"]
            inputs["snapshots"] = {str(percent): tenth * (percent // 10) for percent in SNAPSHOTS}
        tokens = MODELS[name].tokens
        inputs["data"] = str(self.text_folder(tokens) / "data")
        config = {"recipe": recipe, "overrides": overrides, "text": self.text_digest(tokens)}
        run = self.out / MODELS_FOLDER / job_id
        command = ["bertworks", "pretrain", recipe, "--data", inputs["data"], "--out", str(run), *overrides]
        return Job(
            id=job_id, kind="pretrain", config=config, inputs=inputs,
            commands=[*self._text_commands(tokens), shlex.join(command)],
            minutes=self._pretraining_minutes(settings, tokens),
        )  # fmt: skip

    def _measuring(
        self, row: Row, column: Column, seed: int, tuning: int, files: dict[str, str], jobs: dict[str, Job]
    ) -> Job:
        """Return the job of a cell and its seeds."""
        model, about, needs = self._model(row.model, seed, jobs)
        name = self.resolved(row.model)
        beside, config = None, dict[str, Any](model=about, files=files)
        if row.beside:
            beside, its, more = self._model(row.beside, seed, jobs)
            needs, config = [*needs, *more], {**config, "beside": its}
            name += f"+{self.resolved(row.beside)}"
        if column.task == BLIMP:
            command = ["bertworks", "evaluate", model, "--task", BLIMP, "--data", str(self.data)]
            return Job(
                id=f"{name}-s{seed}/{BLIMP}", kind="pairs", needs=needs, commands=[shlex.join(command)],
                config=config | {"max_pairs": self.scale.max_pairs}, inputs={"model": model, "data": str(self.data)},
                minutes=self._usual_minutes(f"{name}/{BLIMP}", 0.5),
            )  # fmt: skip
        if column.task == TEXT:
            data = str(self.text_folder("wordpiece") / "data")
            command = ["bertworks", "evaluate", model, "--data", data, "--max-tokens", str(_HELD_OUT_TOKENS)]
            return Job(
                id=f"{name}-s{seed}/{TEXT}", kind="text", needs=needs, commands=[shlex.join(command)],
                config=config | {"max_tokens": _HELD_OUT_TOKENS}, inputs={"model": model, "data": data},
                minutes=self._usual_minutes(f"{name}/{TEXT}", 0.2),
            )  # fmt: skip
        task = find_task(column.task)
        is_random = row.id == RANDOM
        variant = [one.removeprefix("task.").replace("=true", "").replace("features=", "")
                   for one in (*row.overrides, *column.overrides)]  # fmt: skip
        name = "+".join([name, *variant, *(["random"] if is_random else [])])
        is_read = any("task.features" in one for one in (*row.overrides, *column.overrides))
        kind = "features" if is_read else self._kind(row.model)
        amount = "few" if task.name in FEW else "many"
        by = [
            self.scale.finetune_by.get(key, ())
            for key in (kind, task.kind, amount, f"{kind} {amount}", f"{kind} {task.kind}")
        ]
        overrides = _settled(
            [*self.scale.finetune, *(one for some in by for one in some), *row.overrides, *column.overrides,
             *self.overrides["finetune"], f"train.seed={1_000 * seed + tuning}"]
        )  # fmt: skip
        settings_for(task, overrides)  # refuses what is wrong before hours of pre-training
        run = self.out / WORK / f"{name}-s{seed}" / f"{task.name}-t{tuning}"
        command = ["bertworks", "finetune", task.name, "--model", model, "--data", str(self.data), "--out", str(run)]
        command += ["--init", "random"] * is_random + (["--with", beside] if beside else []) + overrides
        config |= {"task": task.name, "overrides": overrides, "init": "random" if is_random else "model"}
        config |= {"max_dev": self.scale.max_dev} if self.scale.max_dev else {}
        return Job(
            id=f"{name}-s{seed}/{task.name}-t{tuning}", kind="finetune", needs=needs, config=config,
            inputs={"model": model, "beside": beside, "data": str(self.data)},
            commands=[shlex.join(command), *self._other_splits(task, run)],
            minutes=self._usual_minutes(f"{name}/{task.name}", self._tuning_minutes(task, kind, overrides)),
        )  # fmt: skip

    def _other_splits(self, task: Task, run: Path) -> Iterator[str]:
        """Yield the commands that measure what fine-tuning does not measure itself."""
        for split in sorted(measured_splits(task.name) - {DEV}):
            if split in open_dataset(task, self.data).found:
                yield shlex.join(["bertworks", "evaluate", str(run), "--data", str(self.data), "--split", split])

    def _kind(self, key: str) -> str:
        """Return the kind of a row's model: bert, gpt or elmo."""
        from bertworks.models.kinds import kind_of_model

        key = self.resolved(key)
        if key in self.models:
            name = kind_of_model(find_encoder(find_model(self.models[key]))).name
            return name if name in ("gpt", "elmo") else "bert"
        return {"words": "elmo", "gpt-bpe": "gpt"}.get(MODELS[key.partition("@")[0]].tokens, "bert")

    # How long it takes: roughly, until jobs of the same kind have been done here.

    @property
    def place(self) -> str:
        """Where it is computed: cpu or cuda."""
        if self.gpu:
            return "cuda"
        if not self._found_place:
            from bertworks.nn.layers import find_device

            self._found_place = find_device(self.device).type
        return self._found_place if self._found_place in _RATES else "cpu"

    def _usual_minutes(self, name: str, guessed: float) -> float:
        """Return the mean of what the same with other seeds took here, or the guess."""
        if not self._minutes:
            self._minutes[""] = []
            for path in sorted((self.out / RESULTS).glob("*/*.json")):
                found = read_result_file(path)
                task = path.stem.rpartition("-t")[0] or path.stem
                row = path.parent.name.rpartition("-s")[0]
                self._minutes.setdefault(f"{row}/{task}", []).append(found["minutes"])
        return fmean(self._minutes[name]) if self._minutes.get(name) else guessed

    def _pretraining_minutes(self, recipe: Recipe, tokens: TokensKind) -> float:
        planned = plan_pretraining(recipe, gpu=self.gpu or MEASURED, vocab_size=self.vocabulary_size(tokens))
        if self.place == "cuda" and planned["time"]["hours"] is not None:
            return 60 * float(planned["time"]["hours"]) + 1
        # LSTMs compute a step after the other, and use a fraction of a GPU.
        share = 0.1 if recipe.model.kind == "elmo" and self.place == "cuda" else 1.0
        return float(planned["flops"]) / (share * _RATES[self.place]) / 60 + _START_MINUTES[self.place]

    def _tuning_minutes(self, task: Task, kind: str, overrides: Sequence[str]) -> float:
        """Return about how long a fine-tuning takes: by operations, but a GPU's steps take milliseconds in any case."""
        values = dict(one.split("=", 1) for one in overrides)
        size = sum(path.stat().st_size for path in open_dataset(task, self.data).files(TRAIN).paths) / _BYTES_PER_TOKEN
        per_example = _TOKENS.get(task.kind, 40)
        count = min(size / per_example, int(values.get("task.max_examples", 0)) or math.inf)
        usual = 10 if kind in ("elmo", "features") else task.defaults.epochs
        epochs = int(values.get("train.epochs", usual))
        batch = int(values.get("train.batch_size", task.defaults.batch_size))
        seconds = 6 * _parameters_of(self.scale.size) * per_example * batch / _RATES[self.place]
        if self.place == "cuda":
            seconds = max(seconds, _STEP_S.get(kind, _STEP_S["bert"]) * (3 if task.kind == "answer" else 1))
        return count / batch * epochs * seconds / 60 + _START_MINUTES[self.place]

    # Text.

    def _text_commands(self, kind: TokensKind) -> list[str]:
        folder = self.text_folder(kind)
        corpus = [str(source) for source in self.text]
        vocab = ["bertworks", "vocab", *corpus, "--out", str(folder / "vocab"), "--size",
                 str(self.vocabulary_size(kind)), "--algorithm", ALGORITHMS[kind], "--cased", "--min-count",
                 str(self.scale.min_count)]  # fmt: skip
        prepare = ["bertworks", "prepare", *corpus, "--vocab", str(folder / "vocab"), "--cased", "--tokens", kind,
                   "--drop-headings", "--holdout", str(self.holdout), "--out", str(folder / "data")]  # fmt: skip
        return [shlex.join(vocab), shlex.join(prepare)]

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
                    f"{title:<14}{len(some):>5} to do of {len(all_jobs):<5}{in_words(sum(j.minutes for j in some)):>12}"
                    f"   {shown}"
                )
        total = sum(job.minutes for job in to_do)
        together = min(self.num_jobs, _SIDE_BY_SIDE if self.place == "cuda" else os.cpu_count() or 1)
        lines += ["", f"about {in_words(total)} of work, estimated; with --jobs {self.num_jobs} about "
                      f"{in_words(total / together)}; disk about {self._gigabytes(to_do):.2f} GB"]  # fmt: skip
        for kind in plan.kinds:
            if not (self.text_folder(kind) / "data" / MANIFEST).exists():
                lines.append(f"text is prepared first: {kind}, {self.vocabulary_size(kind):,} entries")
        for one in missing_columns(plan):
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


def _check_kind(key: str, source: str) -> None:
    """Refuse a model of another kind than a row is about."""
    from bertworks.models.kinds import find_kind, kind_of_model

    folder = find_encoder(find_model(source))
    found, expected = kind_of_model(folder), key if key in ("gpt", "elmo") else "bert"
    if found.name != expected:
        raise UserError(f"--model {key}={source}: that is {found.title}; the row takes {find_kind(expected).title}")
    is_left = bool(read_object(folder / CONFIG_FILE).get("is_decoder"))
    if expected == "bert" and is_left != (key == "ltr"):
        raise UserError(f"--model {key}={source}: that model {'reads' if is_left else 'does not read'} left to right")


def kinds_of(jobs: Any) -> set[TokensKind]:
    """Return the kinds of tokens of the models that jobs pre-train."""
    return {MODELS[job.id.rpartition("-")[0]].tokens for job in jobs if job.kind == "pretrain"}


def needs_of(plan: Plan, job_id: str) -> list[str]:
    """Return the jobs that make a job's models."""
    return next((job.needs for job in plan.jobs if job.id == job_id), [])


def _is_there(name: str) -> bool:
    try:
        find_model(name)
    except UserError:
        return False
    return True


def _settled(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the last value of each key alone."""
    return [f"{key}={value}" for key, value in dict(one.split("=", 1) for one in overrides).items()]


def _parameters_of(size: str) -> int:
    layers, width, *_ = map(int, size.split("x"))
    return 12 * layers * width * width


def in_words(minutes: float) -> str:
    """Write minutes as minutes, hours or days."""
    if minutes >= 48 * 60:
        return f"{minutes / 1440:,.1f} days"
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.1f} min"


def missing_columns(plan: Plan) -> list[dict[str, Any]]:
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
