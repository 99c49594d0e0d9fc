"""The demo as it goes: what its stages share, and what they leave for the report."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from bertworks.demo.telling import as_typed, say, tell
from bertworks.recipe import Recipe


@dataclass
class Stage:
    """A part of the demo: what it is, how to do the same by hand, and, when it is over, what the report has of it."""

    number: int
    title: str
    commands: Sequence[str]
    seconds: float = 0.0
    html: str = ""


@dataclass
class Show:
    """What the stages share.

    Attributes:
        recipe: of the text, and of the pre-training.
        overrides: with which the recipe `demo` became it.
        folder: for all files.
        quiet: whether no progress is shown.
        stages: those that are over.
        tiles: figures for the top of the report, as HTML.
    """

    recipe: Recipe
    overrides: Sequence[str]
    folder: Path
    quiet: bool
    stages: list[Stage] = field(default_factory=list)
    tiles: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str, *commands: str) -> Iterator[Stage]:
        """Head a stage; what is told in the block is its result."""
        stage = Stage(len(self.stages) + 1, title, commands)
        say()
        say(f"{stage.number}  {title}", bold=True)
        for command in commands:
            tell(as_typed(command), dim=True)
        started = time.monotonic()
        yield stage
        stage.seconds = time.monotonic() - started
        tell(f"{stage.seconds:.1f} s", dim=True)
        self.stages.append(stage)


def end_if_signalled(signal: int) -> None:
    """End as an interrupted command does, where training has noticed a signal and stopped."""
    if signal:
        raise typer.Exit(128 + signal)
