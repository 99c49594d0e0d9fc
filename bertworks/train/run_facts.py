"""What a run was, read from its folder: the recipe, the logs, the samples and the shapes of its newest model.

Nothing here opens weights or needs torch.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import UserError, counted
from bertworks.files import usable_path
from bertworks.interop.folder import CONFIG_FILE, WEIGHTS_FILE, read_json
from bertworks.interop.safetensors_format import read_header
from bertworks.recipe import Recipe, load_recipe
from bertworks.show.curves import value_label
from bertworks.train.log import METRICS_FILE, TIMING_FILE, read_log, training_seconds
from bertworks.train.run_folder import CHECKPOINTS, MODEL
from bertworks.train.samples import Samples, read_samples

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
