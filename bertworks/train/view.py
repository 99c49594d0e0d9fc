"""What a person sees of training: a panel that is redrawn on a terminal, elsewhere a line now and then.

A view is called when there is something new, at `log_every` steps, and draws in the thread that trains, so it has to be
cheap: it redraws at most four times a second, and so seldom that drawing takes half a percent of the time at most. All
of it goes to the error stream; the panel is erased in the end, and also when a run is interrupted.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TextIO

from bertworks.errors import printable
from bertworks.train.status import Status

News = Literal["begin", "train", "evaluate", "save"]
_SHORTEST_S = 0.25  # between two drawings
_IDLE_PER_DRAWING = 200  # so many times as long as a drawing took nothing is drawn after it
_LONGEST_S = 30.0  # without a line, where there is no terminal; later a twentieth of the time that has passed
_LATER = 1 / 20
_ERASE_BELOW = "\r\x1b[J"


class View(Protocol):
    """Is told what is new in a run."""

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
    elif not _can_draw():
        yield Lines()
    else:
        panel = Panel()
        try:
            yield panel
        finally:
            panel.close()


def _can_draw() -> bool:
    # A notebook's streams are no terminals: it gets lines.
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    console = Console(stderr=True)
    return not console.is_dumb_terminal and console.encoding.startswith("utf")


class Lines:
    """Writes a line for every evaluation, or checkpoint where there is none, and after a long time without one."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def __call__(self, news: News, status: Status) -> None:
        """Write one if it is time for it."""
        from bertworks.train.panel import line_of

        now = time.monotonic()
        is_not_evaluated = status.values and not status.holdout and status.step >= status.about.settings.eval_every
        is_due = news == "train" and now - self._last >= max(_LONGEST_S, _LATER * (now - self._started))
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

        from bertworks.train.panel import panel_of

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
    """Stands for one of Python's streams while a panel is on the terminal: what is written comes above the panel."""

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
