"""The six feature-based rows of the paper's Table 7, one run each on one cache, beside the paper's figures.

Each row is a run folder of its own, so it can be opened, measured and gone on with; the table is written when all six
are there. With `resume` a row that is finished is not trained again.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.network import CACHE_FOLDER as CACHE
from bertworks.finetuning.session import Finetuned
from bertworks.nn.config import FEATURES, FeatureName

TABLE_FILE = "table7.md"
# Titles as in the paper; dev F1 of BERT base, the mean of five restarts.
_PAPER: dict[FeatureName, tuple[str, float]] = {
    "embeddings": ("Embeddings", 91.0),
    "second-to-last": ("Second-to-Last Hidden", 95.6),
    "last": ("Last Hidden", 94.9),
    "sum-last-four": ("Weighted Sum Last Four Hidden", 95.9),
    "concat-last-four": ("Concat Last Four Hidden", 96.1),
    "sum-all": ("Weighted Sum All Layers", 95.5),
}


class Row(NamedTuple):
    """One row of the table."""

    features: FeatureName
    outcome: Finetuned

    def facts(self) -> dict[str, Any]:
        """Return what there is to say of it, scores in percent."""
        title, paper = _PAPER[self.features]
        score = None if math.isnan(self.outcome.score) else round(100 * self.outcome.score, 2)
        steps, minutes = self.outcome.step, round(self.outcome.minutes, 3)
        return {
            "features": self.features, "title": title, "paper": paper, self.outcome.metric: score, "best_step": steps,
            "minutes": minutes,
        }  # fmt: skip


def table7(
    task: str,
    *,
    out: str | Path,
    overrides: Sequence[str] = (),
    cache: str | Path | None = None,
    resume: bool = False,
    told: Callable[[Row], None] = lambda _: None,
    **options: Any,
) -> list[Row]:
    """Train the six rows into folders of `out`, and write `table7.md` there.

    Args:
        task: a benchmark, or "tag" on your own files.
        out: the folder of the six runs and the table.
        overrides: settings for all rows.
        cache: where features are kept; in `out` without it.
        resume: go on where it was stopped.
        told: is told each row when it is done.
        options: as `finetune` takes them.

    Returns:
        the rows, in the order of the paper; fewer where a signal came.
    """
    folder = Path(out)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; go on in it with --resume, or choose another --out")
    found = {}
    # Those of four layers first: a model that has fewer is refused before anything is trained.
    for features in sorted(FEATURES, key=lambda name: not name.endswith("four")):
        settings, run = [*overrides, f"task.features={features}"], folder / features
        outcome = finetune(task, out=run, overrides=settings, cache=cache or folder / CACHE, resume=resume, **options)
        found[features] = Row(features, outcome)
        told(found[features])
        if outcome.signal:
            break
    rows = [found[features] for features in FEATURES if features in found]
    if len(rows) == len(FEATURES):
        with atomic_write(folder / TABLE_FILE) as stream:
            stream.write(as_markdown(task, rows))
    return rows


def as_markdown(task: str, rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    lines = [
        f"The feature-based rows of the paper's Table 7 (CoNLL-2003, BERT base, dev F1 of 5 restarts), and {task}:",
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
