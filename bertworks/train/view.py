"""What a person sees of pre-training: a panel that is redrawn on a terminal, elsewhere a line for every evaluation.

A view is called when there is something new, at `log_every` steps, and draws in the thread that trains, so it has to be
cheap: it redraws at most four times a second, and so seldom that drawing takes half a percent of the time at most. All
of it goes to the error stream; the panel is erased in the end, and also when a run is interrupted.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from bertworks.train.status import Status

if TYPE_CHECKING:
    from rich.live import Live

News = Literal["begin", "train", "evaluate", "save"]
_SHORTEST_S = 0.25  # between two drawings
_IDLE_PER_DRAWING = 200  # so many times as long as a drawing took nothing is drawn after it


class View(Protocol):
    """Is told what is new in a run."""

    def __call__(self, news: News, status: Status) -> None:
        """Show it, or not: `status` is what is known now."""


def unseen(news: News, status: Status) -> None:
    """Show nothing."""


@contextmanager
def training_view(*, quiet: bool = False) -> Iterator[View]:
    """Give a view for the error stream: a panel on a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        yield unseen
    elif not _can_draw():
        yield Lines()
    else:
        panel = Panel()
        try:
            yield panel
        finally:
            panel.close()


def _can_draw() -> bool:
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    console = Console(stderr=True)
    return not console.is_dumb_terminal and console.encoding.startswith("utf")


class Lines:
    """Writes a line for every evaluation; where no documents are kept aside, for every checkpoint."""

    def __call__(self, news: News, status: Status) -> None:
        """Write one if it is time for it."""
        from bertworks.train.panel import line_of

        is_not_evaluated = not status.holdout and status.step >= status.about.settings.eval_every
        if news == "evaluate" or (news == "save" and is_not_evaluated):
            print(line_of(status), file=sys.stderr, flush=True)


class Panel:
    """Draws the panel and redraws it where it stands; begins with the first news, `close` erases it."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._next = 0.0

    def __call__(self, news: News, status: Status) -> None:
        """Draw, unless it has been drawn just now."""
        started = time.monotonic()
        if news in ("train", "save") and started < self._next:
            return
        self._draw(status)
        ended = time.monotonic()
        self._next = ended + max(_SHORTEST_S, _IDLE_PER_DRAWING * (ended - started))

    def _draw(self, status: Status) -> None:
        from rich.console import Console
        from rich.live import Live

        from bertworks.train.panel import panel_of

        if self._live is None:
            console = Console(stderr=True, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
            # A second interrupt ends the process at once, and then nobody would give the cursor back.
            console.show_cursor(True)
        self._live.update(panel_of(status, self._live.console.width), refresh=True)

    def close(self) -> None:
        """Erase the panel."""
        if self._live is not None:
            self._live.stop()
            self._live = None
