"""The six feature-based rows of the paper's Table 7: a BiLSTM that tags on frozen layers of a BERT, on one cache.

Each row is a run folder of its own, so it can be opened, measured and resumed; further restarts have theirs beside it.
"""

import math
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bertworks.errors import UserError, counted
from bertworks.files import atomic_write
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.network import CACHE_FOLDER
from bertworks.finetuning.session import Finetuned
from bertworks.models.folder import CONFIG_FILE, read_json
from bertworks.nn.config import FEATURES, FeatureName, layers_of
from bertworks.report.logs import MODEL, RECIPE_FILE

TABLE7_FILE = "table7.md"
# Titles as in the paper; dev F1 of BERT base, the mean of five restarts.
_TABLE7: dict[FeatureName, tuple[str, float]] = {
    "embeddings": ("Embeddings", 91.0),
    "second-to-last": ("Second-to-Last Hidden", 95.6),
    "last": ("Last Hidden", 94.9),
    "sum-last-four": ("Weighted Sum Last Four Hidden", 95.9),
    "concat-last-four": ("Concat Last Four Hidden", 96.1),
    "sum-all": ("Weighted Sum All Layers", 95.5),
}


class Table7Row(NamedTuple):
    """One row of the table."""

    features: FeatureName
    outcome: Finetuned
    others: tuple[Finetuned, ...] = ()  # of further restarts

    def facts(self) -> dict[str, Any]:
        """Return its figures, scores in percent; of several restarts the mean score, and each."""
        title, paper = _TABLE7[self.features]
        outcomes = (self.outcome, *self.others)
        scores = [None if math.isnan(outcome.score) else round(100 * outcome.score, 2) for outcome in outcomes]
        mean = None if None in scores else round(fmean(100 * outcome.score for outcome in outcomes), 2)
        return {
            "features": self.features, "title": title, "paper": paper, self.outcome.metric: mean,
            "best_step": self.outcome.step, "minutes": round(sum(outcome.minutes for outcome in outcomes), 3),
        } | ({"restarts": scores} if self.others else {})  # fmt: skip


def table7(
    task: str,
    *,
    out: str | Path,
    overrides: Sequence[str] = (),
    cache: str | Path | None = None,
    restarts: int = 1,
    resume: bool = False,
    **options: Any,
) -> list[Table7Row]:
    """Train the six feature-based rows of the paper's Table 7 into folders of `out`, and write `table7.md` there.

    Of a model of four layers the last four are all, and that row is trained once.

    Args:
        task: a benchmark, or "tag" on your own files.
        out: the folder of the six runs and the table.
        overrides: settings for all rows.
        cache: where features are kept; in `out` without it.
        restarts: how many seeds a row's score is the mean of, from `train.seed` on.
        resume: a row that is finished is not trained again.
        options: as `finetune` takes them.

    Returns:
        the rows, in the order of the paper; fewer where a signal came.
    """
    folder = Path(out)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; continue it with --resume, or choose another --out")
    if restarts < 1:
        raise UserError(f"restarts {restarts} is too small; at least 1")
    train = partial(finetune, task, cache=cache or folder / CACHE_FOLDER, resume=resume, **options)
    found: dict[str, Table7Row] = {}
    # Those of four layers first: a model that has fewer is refused before anything is trained.
    for features in sorted(FEATURES, key=lambda name: not name.endswith("four")):
        if features == "sum-all":
            num_layers = read_json(folder / "sum-last-four" / MODEL / CONFIG_FILE)["num_hidden_layers"]
            if layers_of("sum-last-four", num_layers) == layers_of("sum-all", num_layers):
                found[features] = found["sum-last-four"]._replace(features=features)
                continue
        chosen = [*overrides, f"task.features={features}"]
        outcomes = [train(out=folder / features, overrides=chosen)]
        first = tomllib.loads((folder / features / RECIPE_FILE).read_text(encoding="utf-8"))["train"]["seed"]
        for seed in range(first + 1, first + restarts):
            if not outcomes[-1].signal:
                run = folder / f"{features}-seed{seed}"
                outcomes.append(train(out=run, overrides=[*chosen, f"train.seed={seed}"]))
        found[features] = Table7Row(features, outcomes[0], tuple(outcomes[1:]))
        if outcomes[-1].signal:
            break
    rows = [found[features] for features in FEATURES if features in found]
    if len(rows) == len(FEATURES):
        with atomic_write(folder / TABLE7_FILE) as stream:
            stream.write(table7_markdown(task, rows))
    return rows


def table7_markdown(task: str, rows: Sequence[Table7Row]) -> str:
    """Return the rows as a table."""
    lines = [
        f"The feature-based rows of the paper's Table 7 (CoNLL-2003, BERT base, dev F1 of 5 restarts), and {task} "
        f"({counted(1 + len(rows[0].others), 'restart')}):",
        "",
        "| features | paper | ours | best step | minutes |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        facts = row.facts()
        score = facts[row.outcome.metric]
        ours = "-" if score is None else f"{score:.1f}"
        lines.append(
            f"| {facts['title']} | {facts['paper']:.1f} | {ours} | {facts['best_step']:,} | {facts['minutes']:.1f} |"
        )
    return "\n".join(lines) + "\n"
