"""What a run writes down step by step: one JSON object a line, append-only.

`metrics.jsonl` holds values that the same training gives again (losses, accuracies, learning rates); what depends on
the machine's mood (seconds, tokens per second, memory) goes to `timing.jsonl`. A run that goes on from a checkpoint
drops the lines of later steps, which it is about to write again, and the half line that a kill may have left; so the
metrics of a killed run end up byte for byte those of a run that was never killed.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.files import atomic_write, parse_json, usable_path
from bertworks.models.folder import CONFIG_FILE, WEIGHTS_FILE, read_json
from bertworks.models.weights import read_header
from bertworks.recipe import Recipe, load_recipe
from bertworks.report.charts import value_label
from bertworks.report.samples import Samples, read_samples

CHECKPOINTS, MODEL = "checkpoints", "model"
METRICS_FILE, TIMING_FILE = "metrics.jsonl", "timing.jsonl"
_LARGEST_STEP, _LARGEST = 1 << 53, 1e100  # sums and squares of such numbers are numbers still
_LONGEST_LINE = 1 << 20
_log = logging.getLogger(__name__)


class StepLog:
    """Appends lines to a file, after dropping those of steps that are to be made again; `close` it in the end.

    Args:
        path: the file; made if it is not there.
        last_step: the step of the checkpoint that the run goes on from; None for a run from the start.
    """

    def __init__(self, path: Path, last_step: int | None) -> None:
        self.path = path
        truncate_to(path, -1 if last_step is None else last_step)
        with _refusals_named(path):
            self._stream: IO[bytes] = open(path, "ab")  # noqa: SIM115 -- it stays open as long as the run

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line that another process can read at once; a value that is not finite becomes null."""
        assert "step" not in values, "the step is said once"
        finite = {name: _or_null(value) for name, value in values.items()}
        with _refusals_named(self.path):
            self._stream.write(json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> None:
        """Have the lines on disk; to be called before a checkpoint is saved, which counts on them."""
        with _refusals_named(self.path):
            self._stream.flush()  # of lines that a full disk had no room for
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Write nothing more."""
        with _refusals_named(self.path):
            self._stream.close()


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _refusals_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def truncate_to(path: Path, step: int) -> None:
    """Keep the lines of steps up to one, as they are, and drop the others and what is no line of ours."""
    if not path.exists():
        return
    with atomic_write(path, "wb") as stream:
        stream.writelines(line for line, record in _lines(path) if record["step"] <= step)


def read_log(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a log, also of one that is being written; none if there is no file yet.

    A record has a step, and other numbers or None by their names; those without one of the `needed` are left out.
    """
    records = [record for _, record in _lines(path)] if path.exists() else []
    return [record for record in records if all(record.get(name) is not None for name in needed)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Give the whole lines of a log with what they say."""
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
                record = _parse(line, path, number)
                if record is not None:
                    yield line, record
                elif line.endswith(b"\n"):
                    _log.warning("%s:%d is not a line of a log; passed over", path, number)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any] | None:
    """Return what a line says; None if it is cut off or not of a log: a step, and names of numbers or null."""
    try:
        record = parse_json(line, str(path), line=number, strict=True)
    except CorruptFile:
        return None
    is_record = line.endswith(b"\n") and isinstance(record, dict) and type(record.get("step")) is int
    is_record = is_record and 0 <= record["step"] <= _LARGEST_STEP
    return record if is_record and all(map(_is_number_or_null, record.values())) else None


def _is_number_or_null(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= _LARGEST)


def training_seconds(timing: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of training that lines of timing tell of; in old ones each start began at 0."""
    seconds = [line["seconds"] for line in timing if isinstance(line.get("seconds"), int | float)]
    ends = [now for now, then in itertools.pairwise(seconds) if then < now]
    return float(sum(ends) + (seconds[-1] if seconds else 0.0))


# What a run was, read from its folder: the recipe, the logs, the samples and the shapes of its newest model.
#
# Nothing here opens weights or needs torch.


RECIPE_FILE = "recipe.toml"
KINDS = {"mlm": "MLM", "nsp": "NSP", "lm": "LM", "bilm": "biLM"}  # of predictions, and their names for people
IN_PERCENT = "answer"  # the kind of task whose metrics are percent already
_DIRECTIONS = {"ltr": "left to right", "rtl": "right to left"}

Line = Mapping[str, Any]


class Run(NamedTuple):
    """What a run folder holds."""

    name: str
    recipe: Recipe
    recipe_text: str
    training: Sequence[Line]
    holdout: Sequence[Line]
    timing: Sequence[Line]
    samples: Samples | None
    config: Mapping[str, Any] | None  # of the newest model
    num_parameters: int | None

    @property
    def kinds(self) -> list[str]:
        """The kinds of predictions that the logs tell of."""
        names = {name.removeprefix("holdout_") for line in (*self.training, *self.holdout) for name in line}
        return [kind for kind in KINDS if f"{kind}_accuracy" in names]


def read_run(folder: Path) -> Run:
    """Read what the report of a run folder needs."""
    if not (usable_path(folder) / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder} has no {RECIPE_FILE}: not a run folder; give the --out of `bertworks pretrain` or "
            "`finetune`, of a grid that of one of its runs: OUT/POINT/seed-N"
        )
    metrics = read_log(folder / METRICS_FILE)
    config, num_parameters = newest_model(folder)
    return Run(
        name=folder.absolute().name,
        recipe=load_recipe(str(folder / RECIPE_FILE)),
        recipe_text=(folder / RECIPE_FILE).read_text(encoding="utf-8"),
        training=training_lines(metrics),
        holdout=[line for line in metrics if any(name.startswith("holdout_") for name in line)],
        timing=read_log(folder / TIMING_FILE),
        samples=read_samples(folder),
        config=config,
        num_parameters=num_parameters,
    )


def training_lines(metrics: Sequence[Line]) -> list[Line]:
    """Return the lines of metrics that are of training, and not of an evaluation."""
    return [line for line in metrics if line.get("lr") is not None and line.get("tokens") is not None]


def newest_model(folder: Path) -> tuple[Mapping[str, Any] | None, int | None]:
    """Return the configuration and the number of parameters of the model, or of the last checkpoint."""
    checkpoints = sorted((folder / CHECKPOINTS).glob("step-*"), key=lambda path: (len(path.name), path.name))
    for model in (folder / MODEL, *reversed(checkpoints)):
        if (model / CONFIG_FILE).is_file() and (model / WEIGHTS_FILE).is_file():
            shapes = (entry.shape for entry in read_header(model / WEIGHTS_FILE).values())
            return read_json(model / CONFIG_FILE), sum(math.prod(shape) for shape in shapes)
    return None, None


def points_of(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    """Return a value of the logs by step, as far as it was finite."""
    return [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]


def median_speed(run: Run) -> float | None:
    """Return the tokens a second that half of the lines exceed; None if nothing was timed."""
    speeds = [speed for _, speed in points_of(run.timing, "tokens_per_second")]
    return statistics.median(speeds) if speeds else None


def facts_of(run: Run) -> dict[str, dict[str, str]]:
    """Return what was trained, on what and how, in words."""
    return {"Model": _model_facts(run), "Data": _data_facts(run), "Training": _training_facts(run)}


def _model_facts(run: Run) -> dict[str, str]:
    sizes, settings = run.config or {}, run.recipe.model
    facts = {"size": settings.preset, "objective": _objective(run.recipe.data.objective)}
    named = {
        "layers": sizes.get("num_hidden_layers", sizes.get("n_layer")),
        "width": sizes.get("hidden_size", sizes.get("n_embd")),
        "heads": sizes.get("num_attention_heads", sizes.get("n_head")),
        "vocabulary": sizes.get("vocab_size"),
        "longest text": sizes.get("max_position_embeddings", sizes.get("n_positions")),
        "parameters": run.num_parameters,
    }
    facts |= {name: f"{value:,}" for name, value in named.items() if isinstance(value, int)}
    return facts | {"activation, dropout": f"{settings.hidden_act}, {settings.dropout:g}"}


def _objective(name: str) -> str:
    return f"next words, {_DIRECTIONS[name]}" if name in _DIRECTIONS else name


def _data_facts(run: Run) -> dict[str, str]:
    data = run.recipe.data
    facts = {"longest sequence": f"{data.max_length:,}"}
    if data.objective.startswith("mlm"):
        facts["masked"] = f"{data.mask_rate:.0%}" + (", whole words" if data.whole_word else "")
    if run.samples is None:
        return facts
    counts = run.samples.counts
    for split, name in (("train", "for training"), ("holdout", "kept aside")):
        facts |= {f"{what} {name}": f"{count:,}" for what, count in counts.get(split, {}).items()}
    seen, there = (run.training[-1]["tokens"] if run.training else 0), counts.get("train", {}).get("tokens", 0)
    return {"folder": run.samples.data, **facts, "tokens seen for each there": f"{seen / max(there, 1):,.2f}"}


def _training_facts(run: Run) -> dict[str, str]:
    data, optim, train = run.recipe.data, run.recipe.optim, run.recipe.train
    tokens_of = dict.fromkeys(map(run.recipe.batch_tokens, data.lengths()))  # the same at both lengths, or not
    facts = {
        "optimizer": optim.name,
        "learning rate": f"{value_label(optim.lr)}, {optim.schedule}",
        "warm-up": counted(round(optim.warmup), "step") if optim.warmup >= 1 else f"{optim.warmup:.0%} of the run",
        "batch": " and ".join(f"{tokens:,}" for tokens in tokens_of) + " tokens",
        "seed": f"{train.seed}",
    }
    if run.timing:
        facts["time in training"] = duration(training_seconds(run.timing))
    if memory := max((line.get("memory_bytes") or 0 for line in run.timing), default=0):
        facts["most memory"] = f"{memory / 1e9:,.2f} GB"
    return facts


def duration(seconds: float) -> str:
    """Write a time for a person."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:,} h {rest // 60:02} min" if hours else f"{rest // 60} min {rest % 60:02} s"
