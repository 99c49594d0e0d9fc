"""Progress of training: a panel that is redrawn on a terminal, elsewhere a line now and then.

A view is called when there is something new, at `log_every` steps, and draws in the thread that trains, so it has to be
cheap: it redraws at most four times a second, and so seldom that drawing takes half a percent of the time at most. All
of it goes to the error stream; the panel is erased in the end, and also when a run is interrupted. The panel is made
for 100 columns and good for 60; its curve is drawn with the dots of braille characters, each two dots wide and four
high.

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
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TextIO

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from bertworks.errors import counted, printable
from bertworks.report.logs import IN_PERCENT, KINDS, Status

News = Literal["begin", "train", "evaluate", "save"]
_SHORTEST_S = 0.25  # between two drawings
_IDLE_PER_DRAWING = 200  # after a drawing nothing is drawn for so many times as long as it took
_LONGEST_S = 30.0  # without a line, where there is no terminal; later a twentieth of the time that has passed
_ERASE_BELOW = "\r\x1b[J"
_WIDEST = 110  # a bar and a curve that are wider say no more
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
_BLANK = 0x2800
# The bit of each dot, by its row and column in the character, as Unicode numbers them.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class View(Protocol):
    """Shows what is new in a run."""

    def __call__(self, news: News, status: Status) -> None:
        """Show it, or not: `status` is what is known now."""


def unseen(news: News, status: Status) -> None:
    """Show nothing."""


def print_note(text: str) -> None:
    """Print a line on the error stream; that nobody reads it is no reason to lose a step."""
    with suppress(BrokenPipeError):
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def training_view(view: View | None = None, *, quiet: bool = False) -> Iterator[View]:
    """Give a view for the error stream: a panel on a terminal, lines elsewhere, nothing if quiet; or the one given."""
    if view is not None or quiet:
        yield view or unseen
        return
    can_draw = sys.stderr.isatty()  # a notebook's streams are no terminals: it gets lines
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
    """Writes a line for every evaluation, or checkpoint where there is none, and after a long time without one."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, news: News, status: Status) -> None:
        """Write one if it is time for it."""
        now = time.monotonic()
        is_not_evaluated = status.values and not status.holdout and status.step >= status.about.settings.eval_every
        is_due = news == "train" and now - self._last >= max(_LONGEST_S, (now - self._started) / 20)
        if news == "evaluate" or is_due or (news == "save" and is_not_evaluated):
            self._last = now
            print_note(line_of(status))


class Panel:
    """Draws the panel and redraws it where it stands; begins with the first news, `close` erases it.

    The cursor waits on an empty row above the panel, and a drawing erases all below the cursor first. So what others
    write meanwhile (a library in C, another process, a person who presses Enter) moves the panel down and stays above
    it, without anybody counting its lines. What Python writes to its streams is put there without a trace of the panel.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = None  # the terminal, while the panel stands
        self._streams: tuple[TextIO, TextIO] | None = None  # of Python, as they were
        self._console: Any = None
        self._lock = threading.RLock()  # other threads may warn
        self._status: Status | None = None
        self._next = 0.0

    def __call__(self, news: News, status: Status) -> None:
        """Draw, unless it has been drawn just now."""
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
        assert self._stream, "the panel stands"
        self._stream.write(text)
        self._stream.flush()

    def write_above(self, stream: TextIO, text: str) -> None:
        """Write whole lines where the panel stands, and the panel below them."""
        with self._lock:
            if self._stream is None or self._status is None:  # it was erased meanwhile
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
    """Takes the place of one of Python's streams while a panel is on the terminal, and writes above the panel."""

    def __init__(self, panel: Panel, stream: TextIO) -> None:
        self.panel, self._stream, self._line = panel, stream, ""

    def write(self, text: str) -> int:
        """Write the lines that are whole; the rest waits for its end."""
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
        """Nothing waits here but a line that is not whole yet."""

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes would go past the panel; who looks for it, as click does, writes text then
            raise AttributeError(name)
        return getattr(self._stream, name)


def line_of(status: Status) -> str:
    """Return what is known in a line of text."""
    parts = [progress_text(status)]
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
    scores = [f"loss {_loss(values.get('loss'))}"]
    for kind in status.about.kinds:
        if f"{kind}_accuracy" in values:
            share = values.get(f"{kind}_larger_class")  # what a constant answer would score
            larger = "" if share is None else f" (larger class {_percent(share)})"
            scores.append(f"{KINDS.get(kind, 'accuracy')} {_percent(values.get(f'{kind}_accuracy'))}{larger}")
    # Of a task's dev set its metrics follow, as what is counted in training is not always one of them.
    return ", ".join([*scores, *(f"{name} {_metric(status, name)}" for name in _METRICS if name in values)])


def progress_text(status: Status) -> str:
    """Return how far a run is towards the limit that it will meet first."""
    limits, shares = status.about.settings, status.shares
    nearest = max(shares, key=lambda name: shares[name])
    if nearest == "tokens":
        return f"step {status.step:,}, {status.tokens:,} of {limits.max_tokens:,} tokens"
    if nearest == "minutes":
        return f"step {status.step:,}, {status.seconds / 60:,.1f} of {limits.max_minutes:,g} minutes"
    return f"{status.step:,} of {counted(limits.max_steps, 'step')}"


def panel_of(status: Status, columns: int) -> Text:
    """Return the panel for a terminal of so many columns."""
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
        line.truncate(columns - 1)  # the last column stays free: some terminals break the line there
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
        if kind == "regress":  # where nothing is right or wrong
            continue
        held_out = _percent(holdout.get(f"{kind}_accuracy"))
        if kind not in KINDS:  # of a task's dev set there are its metrics, of which accuracy is one or not
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
    """Draw the loss over the run, its largest and smallest beside it and its first and last step below."""
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
        width: of a row, in characters.
        height: the number of rows.
        top: the y of the upper edge, above which nothing is drawn; the largest there is if not given.
    """
    cells = [[_BLANK] * width for _ in range(height)]
    last_column, last_row = 2 * width - 1, 4 * height - 1
    bottom = min((y for _, y in points), default=0.0)
    top = max(bottom, max((y for _, y in points), default=0.0) if top is None else top)
    if top <= bottom:  # all of one height is drawn in the middle
        bottom, top = bottom - 1, bottom + 1
    previous: tuple[int, int] | None = None
    for x, y in points:
        # In dots, from the upper left corner; rows above it are negative, one height at most.
        column = round((x - points[0][0]) / ((points[-1][0] - points[0][0]) or 1) * last_column)
        row = round(max((top - y) / (top - bottom), -1) * last_row)
        from_column, from_row = previous or (column, row)
        count = max(abs(column - from_column), abs(row - from_row), 1)
        for part in range(count + 1):  # the dots between two points, both included, without a gap
            dot_x = from_column + round((column - from_column) * part / count)
            dot_y = from_row + round((row - from_row) * part / count)
            if dot_y >= 0:
                cells[dot_y // 4][dot_x // 2] |= _DOTS[dot_y % 4][dot_x % 2]
        previous = (column, row)
    # A space, for some fonts draw the dots that are not set as little circles.
    return ["".join(chr(cell) if cell > _BLANK else " " for cell in row) for row in cells]


def _metric(status: Status, name: str) -> str:
    value = status.holdout.get(name)
    return _percent(None if value is None else value / (100 if IN_PERCENT in status.about.kinds else 1))


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
