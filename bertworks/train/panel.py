"""A run's status as text: the panel, made for 100 columns and good for 60, and the line that a log file gets.

| wiki-run, 4x256, mlm+nsp, cuda                                           1:02:03
| ━━━━━━━━━━━━━━━━╸───────────   12,340 of 100,000 steps   12.3%   7:21:40 left
|
|            training   held out   7.259 ⠣⡀
| loss          3.214      3.301          ⢣⡀
| MLM           41.2%      39.8%           ⠑⣄
| NSP           91.2%      90.1%            ⠈⢢⡀
|  larger       50.3%      50.1%              ⠈⠢⡀
| speed     1,234,567 tokens/s                ⠈⠢⣀
| MFU           41.2%                            ⠙⠲⠤⣄⣀
| memory        23.40 GB           3.214             ⠉⠉⠙⠙⠒⠒⠲⠦⠤⠤⠤⠤⠤
| saved   step 12,000                    10                  12,340
"""

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from bertworks.errors import counted, printable
from bertworks.show.braille import braille_curve
from bertworks.train.run_facts import IN_PERCENT, KINDS
from bertworks.train.status import Status

_WIDEST = 110  # a bar and a curve that are wider tell no more
_TABLE_WIDTH = 30  # of labels and figures, to the left of the curve
_NARROWEST_CURVE = 19  # with its labels
_NARROWEST = 30  # below it lines are cut off
_SHORTEST_BAR = 6
_METRICS = {  # of tasks, and what they are called in the panel
    "accuracy": "accuracy", "matthews": "matthews", "f1": "F1", "f1_macro": "F1 macro", "pearson": "pearson",
    "spearman": "spearman", "exact_match": "EM",
}  # fmt: skip
_STEEP_SHARE = 0.05  # of a run, at its start, where the loss falls so steeply that the rest would look flat
_FEW_POINTS = 20  # of fewer none is left out


def line_of(status: Status) -> str:
    """Return what is known in a line of text."""
    parts = [_progress(status)]
    if "loss" in status.values:  # a model that is measured before it is trained has none yet
        parts = [f"{parts[0]}: {_figures(status, status.values)}"]
    if status.holdout:
        parts.append(f"held out: {_figures(status, status.holdout)}")
    if speed := status.tokens_per_second:
        parts.append(f"{speed:,.0f} tokens/s")
    if status.seconds_left is not None:
        parts.append(f"{clock(status.seconds_left)} left")
    return "; ".join(parts)


def _figures(status: Status, values: dict[str, float]) -> str:
    kinds = {kind: f"{kind}_accuracy" for kind in status.about.kinds}
    scores = [
        f"{_called(kind)} {_percent(values.get(name))}{_beside(kind, values)}"
        for kind, name in kinds.items()
        if name in values
    ]
    # Of a task's dev set its metrics are told instead, as what is counted in training is not always one of them.
    scores += [f"{name} {_metric(status, name)}" for name in _METRICS if name in values]
    return ", ".join([f"loss {_loss(values.get('loss'))}", *scores])


def _beside(kind: str, values: dict[str, float]) -> str:
    """Say what a constant answer would score: where texts are short most pairs are random ones."""
    share = values.get(f"{kind}_larger_class")
    return "" if share is None else f" (larger class {_percent(share)})"


def _metric(status: Status, name: str) -> str:
    whole = 100 if IN_PERCENT in status.about.kinds else 1
    value = status.holdout.get(name)
    return _percent(None if value is None else value / whole)


def _called(kind: str) -> str:
    """Return what people call the share of right predictions: by its kind in pre-training, where there may be two."""
    return KINDS.get(kind, "accuracy")


def panel_of(status: Status, columns: int) -> Text:
    """Return the panel for a terminal of so many columns."""
    width = max(min(columns - 2, _WIDEST), _NARROWEST)
    rows = [_head(status, width), _bar(status, width), Text()]
    table = _table(status)
    curve_width = width - _TABLE_WIDTH - 3
    if curve_width >= _NARROWEST_CURVE:
        table = _with_curve(table, _curve(status, curve_width, len(table)))
    lines = [Text(" ") + row for row in (*rows, *table)]
    for line in lines:
        line.truncate(columns - 1)  # the last column stays free: some terminals break the line there
    return Text("\n").join(lines)


def _head(status: Status, width: int) -> Text:
    elapsed = clock(status.elapsed_s)
    title = printable(status.about.title).replace("\n", " ")
    title = set_cell_size(title, min(cell_len(title), width - len(elapsed) - 2))
    gap = " " * (width - cell_len(title) - len(elapsed))
    return Text.assemble((title, "bold"), gap, (elapsed, "dim"))


def _bar(status: Status, width: int) -> Text:
    left = "" if status.seconds_left is None else f"{clock(status.seconds_left)} left"
    told = ""
    for part in (_progress(status), f"{status.share:.1%}", left):
        if part and len(told) + 3 + len(part) <= width - _SHORTEST_BAR:
            told += "   " + part
    room = width - len(told)
    done = status.share * room
    bar = "━" * int(done) + ("╸" if done % 1 >= 0.5 else "")
    return Text.assemble((bar, "cyan"), ("─" * (room - len(bar)), "dim"), told)


def _progress(status: Status) -> str:
    """Say how far it is towards the limit that it will meet first."""
    limits, shares = status.about.settings, status.shares
    nearest = max(shares, key=lambda name: shares[name])
    if nearest == "tokens":
        return f"step {status.step:,}, {status.tokens:,} of {limits.max_tokens:,} tokens"
    if nearest == "minutes":
        return f"step {status.step:,}, {status.seconds / 60:,.1f} of {limits.max_minutes:,g} minutes"
    return f"{status.step:,} of {counted(limits.max_steps, 'step')}"


def _table(status: Status) -> list[Text]:
    rows = [Text(f"{'':<8}{'training':>11}{'held out':>11}", "dim")]
    rows.append(_row("loss", _loss(status.values.get("loss")), f"{_loss(status.holdout.get('loss')):>11}"))
    metrics = [name for name in _METRICS if name in status.about.metrics]
    for kind in status.about.kinds:
        if kind == "regress":  # where nothing is right or wrong
            continue
        held_out = _percent(status.holdout.get(f"{kind}_accuracy"))
        if kind not in KINDS:  # of a task's dev set there are its metrics, of which accuracy is one or not
            held_out = _metric(status, "accuracy") if "accuracy" in metrics else ""
        rows.append(_row(_called(kind), _percent(status.values.get(f"{kind}_accuracy")), f"{held_out:>11}"))
        if kind == "nsp":  # what a constant answer would score
            larger = [_percent(values.get("nsp_larger_class")) for values in (status.values, status.holdout)]
            rows.append(_row(" larger", larger[0], f"{larger[1]:>11}"))
    rows += [_row(_METRICS[name], "", f"{_metric(status, name):>11}") for name in metrics if name != "accuracy"]
    speed, mfu, memory = status.tokens_per_second, status.model_flops_utilisation, status.values.get("memory_bytes")
    rows.append(_row("speed", f"{speed:,.0f}" if speed else "–", " tokens/s"))
    if mfu is not None:
        rows.append(_row("MFU", _percent(mfu)))
    rows.append(_row("memory", f"{memory / 1e9:,.2f}" if memory else "–", " GB"))
    rows.append(_row("saved", "–" if status.saved_step is None else f"step {status.saved_step:,}"))
    return rows


def _row(label: str, first: str, second: str = "") -> Text:
    rest = _TABLE_WIDTH - 8 - max(len(first), 11)
    return Text.assemble((f"{label:<8}", "dim"), (f"{first:>11}", "bold"), f"{second:<{rest}}")


def _curve(status: Status, width: int, height: int) -> list[Text]:
    """Draw the loss over the run, its largest and smallest beside it and its first and last step below."""
    points = status.losses.points
    if len(points) < 2:
        return []
    top = _top(points)
    labels = [_loss(top), *[""] * (height - 3), _loss(min(y for _, y in points))]
    room = max(map(len, labels)) + 1
    drawn = braille_curve(points, width - room, height - 1, top)
    rows = []
    for label, row in zip(labels, drawn, strict=True):
        rows.append(Text.assemble((f"{label:>{room - 1}} ", "dim"), (row, "cyan")))
    first, last = f"{points[0][0]:,.0f}", f"{status.step:,}"
    return [*rows, Text(" " * room + first + last.rjust(width - room - len(first)), "dim")]


def _top(points: Sequence[tuple[float, float]]) -> float:
    if len(points) < _FEW_POINTS:
        return max(y for _, y in points)
    end = points[0][0] + _STEEP_SHARE * (points[-1][0] - points[0][0])
    return max(y for x, y in points if x >= end)


def _with_curve(table: list[Text], curve: list[Text]) -> list[Text]:
    beside = curve or [Text()] * len(table)
    return [Text.assemble(row, "   ", drawn) for row, drawn in zip(table, beside, strict=True)]


def _loss(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def clock(seconds: float) -> str:
    """Write a time as hours, minutes and seconds, and days where it is that long."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02}:{minute:02}" if days else f"{hour}:{minute:02}:{second:02}"
