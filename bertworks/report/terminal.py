"""Progress of training: a panel that is redrawn on a terminal or in a notebook; elsewhere a line from time to time.

A view is called when there is news, every `log_every` steps, and draws in the training thread, so it must be cheap: it
redraws at most four times a second, and drawing takes at most half a percent of the time. It writes to standard error.
The panel is erased at the end, also when a run is interrupted; in a notebook the last one stays. It is designed for 100
columns and works with 60. Its curve is drawn with braille characters, each two dots wide and four dots high.

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

import importlib
import io
import math
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TextIO

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from bertworks.errors import counted, printable
from bertworks.processes import can_redraw, notebook_shell, notes
from bertworks.report.logs import IN_PERCENT, KINDS, Status

News = Literal["begin", "train", "evaluate", "save"]
_SHORTEST_S = 0.25  # least time between two drawings
_SHORTEST_IN_CELL_S = 1.0  # in a notebook, where each is a message to the browser
_CELL_WIDTH = 86
_CELL_STYLE = "white-space:pre;overflow-x:auto;line-height:1.25;font-family:Menlo,'DejaVu Sans Mono',monospace"
_IDLE_PER_DRAWING = 200  # the pause after a drawing, as a multiple of the time that it took
_LONGEST_S = 30.0  # longest time without a line if there is no terminal; in long runs a twentieth of the elapsed time
_ERASE_BELOW = "\r\x1b[J"
_WIDEST = 110  # wider bars and curves would show nothing more
_TABLE_WIDTH = 30  # of labels and figures, to the left of the curve
_NARROWEST_CURVE = 19  # with its labels
_NARROWEST = 30  # on narrower terminals lines are cut off
_SHORTEST_BAR = 6
_METRICS = {  # the metrics of tasks, with their names in the panel
    "accuracy": "accuracy", "matthews": "matthews", "f1": "F1", "f1_macro": "F1 macro", "pearson": "pearson",
    "spearman": "spearman", "exact_match": "EM",
}  # fmt: skip
_STEEP_SHARE = 0.05  # the steep start of the loss, left out of the scale, or the rest would look flat
_FEW_POINTS = 20  # with fewer points none is left out
_BLANK = 0x2800
# The bit of each dot, by its row and column in the character, as Unicode numbers them.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class View(Protocol):
    """A function that shows the progress of a run."""

    def __call__(self, news: News, status: Status) -> None:
        """Show the status, or nothing if it is too soon."""


def unseen(news: News, status: Status) -> None:
    """Show nothing."""


def print_note(text: str) -> None:
    """Print a line to standard error, in a notebook to standard output; training continues even if nobody reads it."""
    with suppress(BrokenPipeError):
        print(printable(text), file=notes(), flush=True)


@contextmanager
def training_view(view: View | None = None, *, quiet: bool = False) -> Iterator[View]:
    """Yield the given view, or one for standard error: a panel on a terminal, lines elsewhere, nothing if quiet.

    In a notebook the panel is a part of the cell's output.
    """
    if view is not None or quiet:
        yield view or unseen
        return
    if notebook_shell():
        in_cell = PanelInCell()
        try:
            yield in_cell
        finally:
            in_cell.close()
        return
    can_draw = can_redraw(sys.stderr)
    if can_draw:
        from rich.console import Console

        console = Console(stderr=True)
        can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    if not can_draw:
        yield Lines()
        return
    panel = Panel()
    try:
        yield panel
    finally:
        panel.close()


class Lines:
    """Writes a line for every evaluation, or checkpoint if there are no evaluations, and after a long pause."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, news: News, status: Status) -> None:
        """Write a line if one is due."""
        now, every = time.monotonic(), status.about.settings.eval_every
        is_not_evaluated = status.values and not status.holdout and status.step >= every
        is_evaluated_next = status.holdout and every and status.step % every == 0  # which has a line of its own
        is_due = (
            news == "train"
            and not is_evaluated_next
            and now - self._last >= max(_LONGEST_S, (now - self._started) / 20)
        )
        if news == "evaluate" or is_due or (news == "save" and is_not_evaluated):
            self._last = now
            print_note(line_of(status))


class PanelInCell:
    """Shows the panel as a part of a notebook cell's output, and puts each new drawing in the place of the last."""

    def __init__(self) -> None:
        self._status: Status | None = None  # what is not drawn yet
        self._id = ""  # of the part of the output, once it is there
        self._last = -math.inf

    def __call__(self, news: News, status: Status) -> None:
        """Draw the panel, unless the last drawing was just before."""
        self._status = status
        if news not in ("train", "save") or time.monotonic() - self._last >= _SHORTEST_IN_CELL_S:
            self._draw(status)

    def _draw(self, status: Status) -> None:
        from rich.console import Console

        panel = panel_of(status, _CELL_WIDTH)
        console = Console(file=io.StringIO(), width=_CELL_WIDTH, record=True, color_system=None, force_jupyter=False)
        console.print(panel, no_wrap=True, overflow="crop")
        page = console.export_html(inline_styles=True, code_format=f'<pre style="{_CELL_STYLE}">{{code}}</pre>')
        self._show({"text/plain": panel.plain, "text/html": page})
        self._status, self._last = None, time.monotonic()

    def _show(self, forms: dict[str, str]) -> None:
        display: Any = importlib.import_module("IPython.display")  # which is there, or this would be no notebook
        is_there, self._id = bool(self._id), self._id or f"bertworks-{uuid.uuid4()}"
        display.publish_display_data(forms, transient={"display_id": self._id}, update=is_there)

    def close(self) -> None:
        """Draw the end."""
        if self._status is not None:
            self._draw(self._status)


class Panel:
    """Draws the panel at the first news and redraws it in place; `close` erases it.

    The cursor stays on an empty row above the panel, and every drawing first erases everything below the cursor. So
    other output (of a C library, of another process, or of a person who presses Enter) stays above the panel and moves
    it down, without counting lines. Output of Python's own streams is written above the panel without traces of it.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = None  # the terminal, while the panel is shown
        self._streams: tuple[TextIO, TextIO] | None = None  # Python's original streams
        self._console: Any = None
        self._lock = threading.RLock()  # other threads may warn
        self._status: Status | None = None
        self._next = 0.0

    def __call__(self, news: News, status: Status) -> None:
        """Draw the panel, unless the last drawing was just before."""
        started = time.monotonic()
        if news in ("train", "save") and started < self._next:
            return
        with self._lock:
            self._draw(status)
        ended = time.monotonic()
        self._next = ended + max(_SHORTEST_S, _IDLE_PER_DRAWING * (ended - started))

    def _draw(self, status: Status) -> None:
        from rich.console import Console

        if self._stream is None:
            self._stream, self._streams = sys.stderr, (sys.stdout, sys.stderr)
            sys.stderr = _Above(self, sys.stderr)
            self._console = Console(file=self._stream, highlight=False)
            if sys.stdout.isatty():
                sys.stdout = _Above(self, sys.stdout)
        self._status, console = status, self._console
        rows = panel_of(status, console.width).split()[: max(console.height - 2, 0)]
        with console.capture() as drawn:
            for row in rows:
                console.print(row, no_wrap=True, overflow="crop", crop=True)
        rows_up = f"\x1b[{len(rows) + 1}A"
        self._write(f"{_ERASE_BELOW}\n{drawn.get()}{rows_up}")

    def _write(self, text: str) -> None:
        assert self._stream, "the panel is shown"
        self._stream.write(text)
        self._stream.flush()

    def write_above(self, stream: TextIO, text: str) -> None:
        """Write whole lines above the panel."""
        with self._lock:
            if self._stream is None or self._status is None:  # it was erased in the meantime
                stream.write(text)
                return
            self._write(_ERASE_BELOW)
            stream.write(text)
            stream.flush()
            self._draw(self._status)

    def close(self) -> None:
        """Erase the panel."""
        if self._stream is None or self._streams is None:
            return
        for name, own in zip(("stdout", "stderr"), self._streams, strict=True):
            held = getattr(sys, name)
            if isinstance(held, _Above) and held.panel is self:
                setattr(sys, name, own)
                held.end()
        self._write(_ERASE_BELOW)
        self._stream = self._streams = self._status = None


class _Above:
    """Replaces one of Python's streams while a panel is shown, and writes above the panel."""

    def __init__(self, panel: Panel, stream: TextIO) -> None:
        self.panel, self._stream, self._line = panel, stream, ""

    def write(self, text: str) -> int:
        """Write complete lines; the rest waits for the end of its line."""
        lines, end, self._line = (self._line + text).rpartition("\n")
        if end:
            self.panel.write_above(self._stream, lines + end)
        return len(text)

    def end(self) -> None:
        """Write the rest."""
        if self._line:
            self.panel.write_above(self._stream, self._line + "\n")
            self._line = ""

    def flush(self) -> None:
        """Do nothing: only an incomplete line can be waiting."""

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would bypass the panel; without a buffer, click and others write text
            raise AttributeError(name)
        return getattr(self._stream, name)


def line_of(status: Status) -> str:
    """Return the status as one line of text."""
    parts = [progress_text(status)]
    if "loss" in status.values:  # a model that is evaluated before training has no loss yet
        parts = [f"{parts[0]}: {_figures(status, status.values)}"]
    if status.holdout:
        parts.append(f"held out: {_figures(status, status.holdout)}")
    if speed := status.tokens_per_second:
        parts.append(f"{speed:,.0f} tokens/s")
    if status.seconds_left is not None:
        parts.append(f"{clock(status.seconds_left)} left")
    return "; ".join(parts)


def _figures(status: Status, values: dict[str, float]) -> str:
    scores = [f"loss {_loss(values.get('loss'))}"]
    for kind in status.about.kinds:
        if f"{kind}_accuracy" in values:
            share = values.get(f"{kind}_larger_class")  # what a constant answer would score
            larger = "" if share is None else f" (larger class {_percent(share)})"
            scores.append(f"{KINDS.get(kind, 'accuracy')} {_percent(values.get(f'{kind}_accuracy'))}{larger}")
    # The metrics of a task's dev set follow, because the accuracy in training is not always one of them.
    return ", ".join([*scores, *(f"{name} {_metric(status, name)}" for name in _METRICS if name in values)])


def progress_text(status: Status) -> str:
    """Return the progress towards the limit that the run will reach first."""
    limits, shares = status.about.settings, status.shares
    nearest = max(shares, key=lambda name: shares[name])
    if nearest == "tokens":
        return f"step {status.step:,}, {status.tokens:,} of {limits.max_tokens:,} tokens"
    if nearest == "minutes":
        return f"step {status.step:,}, {status.seconds / 60:,.1f} of {limits.max_minutes:,g} minutes"
    return f"{status.step:,} of {counted(limits.max_steps, 'step')}"


def panel_of(status: Status, columns: int) -> Text:
    """Return the panel for a terminal with this many columns."""
    width = max(min(columns - 2, _WIDEST), _NARROWEST)
    elapsed = clock(status.elapsed_s)
    title = printable(status.about.title).replace("\n", " ")
    title = set_cell_size(title, min(cell_len(title), width - len(elapsed) - 2))
    gap = " " * (width - cell_len(title) - len(elapsed))
    left, beside = "" if status.seconds_left is None else f"{clock(status.seconds_left)} left", ""
    for part in (progress_text(status), f"{status.share:.1%}", left):
        if part and len(beside) + 3 + len(part) <= width - _SHORTEST_BAR:
            beside += "   " + part
    room = width - len(beside)
    done = status.share * room
    bar = "━" * int(done) + ("╸" if done % 1 >= 0.5 else "")
    table = _table(status)
    curve_width = width - _TABLE_WIDTH - 3
    if curve_width >= _NARROWEST_CURVE:
        curve = _curve(status, curve_width, len(table)) or [Text()] * len(table)
        table = [Text.assemble(row, "   ", drawn) for row, drawn in zip(table, curve, strict=True)]
    rows = [
        Text.assemble((title, "bold"), gap, (elapsed, "dim")),
        Text.assemble((bar, "cyan"), ("─" * (room - len(bar)), "dim"), beside),
        Text(),
        *table,
    ]
    lines = [Text(" ") + row for row in rows]
    for line in lines:
        line.truncate(columns - 1)  # keep the last column free, because some terminals wrap the line there
    return Text("\n").join(lines)


def _table(status: Status) -> list[Text]:
    """Return the rows with the figures of training and of held-out documents or a dev set."""
    rows = [Text(f"{'':<8}{'training':>11}{'held out':>11}", "dim")]

    def add(label: str, first: str, second: str = "") -> None:
        rest = _TABLE_WIDTH - 8 - max(len(first), 11)
        rows.append(Text.assemble((f"{label:<8}", "dim"), (f"{first:>11}", "bold"), f"{second:<{rest}}"))

    values, holdout = status.values, status.holdout
    add("loss", _loss(values.get("loss")), f"{_loss(holdout.get('loss')):>11}")
    metrics = [name for name in _METRICS if name in status.about.metrics]
    for kind in status.about.kinds:
        if kind == "regress":  # regression has no accuracy
            continue
        held_out = _percent(holdout.get(f"{kind}_accuracy"))
        if kind not in KINDS:  # for the dev set of a task, accuracy is shown only if it is one of its metrics
            held_out = _metric(status, "accuracy") if "accuracy" in metrics else ""
        add(KINDS.get(kind, "accuracy"), _percent(values.get(f"{kind}_accuracy")), f"{held_out:>11}")
        if kind == "nsp":  # what a constant answer would score
            larger = [_percent(found.get("nsp_larger_class")) for found in (values, holdout)]
            add(" larger", larger[0], f"{larger[1]:>11}")
    for name in metrics:
        if name != "accuracy":
            add(_METRICS[name], "", f"{_metric(status, name):>11}")
    speed, mfu, memory = status.tokens_per_second, status.model_flops_utilisation, values.get("memory_bytes")
    add("speed", f"{speed:,.0f}" if speed else "–", " tokens/s")
    if mfu is not None:
        add("MFU", _percent(mfu))
    add("memory", f"{memory / 1e9:,.2f}" if memory else "–", " GB")
    add("saved", "–" if status.saved_step is None else f"step {status.saved_step:,}")
    return rows


def _curve(status: Status, width: int, height: int) -> list[Text]:
    """Draw the loss over the run, with its range at the side and the first and last step below."""
    points = status.losses.points
    if len(points) < 2:
        return []
    steep_end = points[0][0] + _STEEP_SHARE * (points[-1][0] - points[0][0])
    top = max(y for x, y in points if len(points) < _FEW_POINTS or x >= steep_end)
    labels = [_loss(top), *[""] * (height - 3), _loss(min(y for _, y in points))]
    room = max(map(len, labels)) + 1
    rows = [
        Text.assemble((f"{label:>{room - 1}} ", "dim"), (row, "cyan"))
        for label, row in zip(labels, braille_curve(points, width - room, height - 1, top), strict=True)
    ]
    first, last = f"{points[0][0]:,.0f}", f"{status.step:,}"
    return [*rows, Text(" " * room + first + last.rjust(width - room - len(first)), "dim")]


def braille_curve(
    points: Sequence[tuple[float, float]], width: int, height: int, top: float | None = None
) -> list[str]:
    """Draw a line through points in rows of characters.

    Args:
        points: (x, y) in ascending order of x; the first is drawn at the left edge and the last at the right.
        width: the width in characters.
        height: the number of rows.
        top: the y of the upper edge, above which nothing is drawn; the largest y if not given.
    """
    cells = [[_BLANK] * width for _ in range(height)]
    last_column, last_row = 2 * width - 1, 4 * height - 1
    bottom = min((y for _, y in points), default=0.0)
    top = max(bottom, max((y for _, y in points), default=0.0) if top is None else top)
    if top <= bottom:  # a constant curve is drawn in the middle
        bottom, top = bottom - 1, bottom + 1
    previous: tuple[int, int] | None = None
    for x, y in points:
        # In dots from the upper left corner; points above the edge have negative rows, at most one height.
        column = round((x - points[0][0]) / ((points[-1][0] - points[0][0]) or 1) * last_column)
        row = round(max((top - y) / (top - bottom), -1) * last_row)
        from_column, from_row = previous or (column, row)
        count = max(abs(column - from_column), abs(row - from_row), 1)
        for part in range(count + 1):  # all dots from one point to the next, without gaps
            dot_x = from_column + round((column - from_column) * part / count)
            dot_y = from_row + round((row - from_row) * part / count)
            if dot_y >= 0:
                cells[dot_y // 4][dot_x // 2] |= _DOTS[dot_y % 4][dot_x % 2]
        previous = (column, row)
    # Use a space for an empty cell, because some fonts draw dots that are not set as small circles.
    return ["".join(chr(cell) if cell > _BLANK else " " for cell in row) for row in cells]


def _metric(status: Status, name: str) -> str:
    value = status.holdout.get(name)
    return _percent(None if value is None else value / (100 if IN_PERCENT in status.about.kinds else 1))


def _loss(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def clock(seconds: float) -> str:
    """Write a time as hours, minutes and seconds, with days if needed."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02}:{minute:02}" if days else f"{hour}:{minute:02}:{second:02}"
