"""The course of the demo: a vocabulary, shards, a tiny BERT; then the shipped model, fine-tuning and attention.

Each stage prints what it does and the command that does the same, does it, and adds a section to the report. If the
package has no shipped model, the demo ends after the tiny BERT. Everything is computed on the CPU, and all seeds are
fixed. This file has the order of the stages, the output folder and the printing of lines.
"""

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import typer

from bertworks.errors import UserError, printable
from bertworks.files import LOCK_NAME, atomic_write, exclusive, make_folder, remove_leftovers, usable_path
from bertworks.models.folder import find_shipped
from bertworks.recipe import Recipe, load_recipe

# The files of the demo's folder. Other files in it are kept; a folder without the owner file is refused.
OWNER_FILE = ".bertworks-demo"
TOPICS, VOCABULARY, DATA, RUN = "topics.txt", "vocab.txt", "data", "run"
TRAIN, DEV, TUNED, REPORT = "train.tsv", "dev.tsv", "tuned", "report.html"
_OWNER_NOTE = "Made by `bertworks demo`. When it runs again, it replaces its own files here; other files are kept.\n"
_WIDTH = 100  # the longest line, in columns
_INDENT = "   "
_BAR_WIDTH = 12
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")


def run_demo(overrides: Sequence[str], *, out: str, quiet: bool = False) -> None:
    """Show the life of a BERT.

    Args:
        overrides: `section.key=value` over the recipe `demo`.
        out: the output folder; the files of an earlier demo are replaced.
        quiet: show no progress, only results.
    """
    from bertworks.demo import stages
    from bertworks.demo.page import write_demo_page
    from bertworks.report.logs import duration

    recipe, started = load_recipe("demo", overrides), time.monotonic()
    with demo_folder(out) as folder:
        show = Show(recipe, overrides, folder, quiet)
        say("The life of a BERT, in a few minutes on a CPU", bold=True)
        say(f"Everything is written to {folder}. In that folder you can run the commands below yourself.")
        tokenizer = stages.learn_vocabulary(show)
        stages.make_shards(show, tokenizer)
        stages.pretrain_tiny(show)
        if shipped := find_shipped(stages.SHIPPED):
            stages.ask_shipped(show, shipped)
            tuned = stages.finetune_shipped(show, shipped)
            stages.judge_sentences(show, tuned)
            stages.look_into(show, tuned)
        else:
            say()
            tell(
                f"No model {stages.SHIPPED!r} comes with this version, so the demo ends here. You can continue by hand "
                f"with your own BERT, or with the tiny one; {TRAIN} and {DEV} are in the folder:\n"
                f"$ bertworks finetune classify --model {RUN} --train {TRAIN} --dev {DEV} --out my-tuned"
            )
        path, seconds = folder / REPORT, time.monotonic() - started
        write_demo_page(path, show, seconds)
        say()
        say(f"{path} is the report, with charts: open it in a browser. {duration(seconds)} in all.", bold=True)


@contextmanager
def demo_folder(out: str | Path) -> Iterator[Path]:
    """Yield the demo's folder, locked for this process, after removing the files of an earlier demo."""
    folder, names = Path(out), set()
    try:
        names = {path.name for path in usable_path(folder).iterdir()} - {LOCK_NAME}
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"cannot write the demo into {folder}: {error.strerror}; choose another --out") from error
    if names and OWNER_FILE not in names:
        raise UserError(f"{folder} contains files that are not from a demo; choose another --out")
    make_folder(folder)
    with exclusive(folder):
        with atomic_write(folder / OWNER_FILE) as stream:
            stream.write(_OWNER_NOTE)
        remove_leftovers(folder)
        for name in (TOPICS, VOCABULARY, DATA, RUN, TRAIN, DEV, TUNED, REPORT):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for name in (TRAIN, DEV):
            with atomic_write(folder / name, "wb") as stream:
                stream.write(resources.files("bertworks").joinpath("demo_data", name).read_bytes())
        yield folder


@dataclass
class Stage:
    """A stage of the demo: its title, the commands that do the same and, once finished, its HTML in the report."""

    number: int
    title: str
    commands: Sequence[str]
    seconds: float = 0.0
    html: str = ""


@dataclass
class Show:
    """The state that the stages share.

    Attributes:
        recipe: the settings of text and pre-training.
        overrides: the changes to the recipe `demo` that gave these settings.
        folder: the folder for all files.
        quiet: whether no progress is shown.
        stages: the finished stages.
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
        """Print a stage's title and commands, run the block, and record its time."""
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
    """Exit as an interrupted command does if a signal has stopped training."""
    if signal:
        raise typer.Exit(128 + signal)


def say(text: str = "", **style: bool) -> None:
    """Print a text in the encoding of standard output, with colours if it is a terminal."""
    encoding = sys.stdout.encoding or "utf-8"
    text = printable(text).encode(encoding, "replace").decode(encoding)
    is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    typer.echo(typer.style(text, **style) if style and is_styled else text)


def tell(text: str, **style: bool) -> None:
    """Print text of a stage, indented; long lines are wrapped between words."""
    for line in text.split("\n"):
        indent = _INDENT + " " * (len(line) - len(line.lstrip()))
        broken = textwrap.fill(
            line.strip(), _WIDTH, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        say(broken, **style)


def bar(share: float) -> str:
    """Draw a share as a bar."""
    full = round(share * _BAR_WIDTH)
    return shade(1.0) * full + shade(0.25) * (_BAR_WIDTH - full)


def as_typed(command: str) -> str:
    """Return a command as typed in a shell, wrapped into several lines; quoted texts are not broken."""
    lines = ["$"]
    for word in _WORD.findall(command):
        if len(lines[-1]) + len(word) > _WIDTH - len(_INDENT) - len("  \\"):
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def percent(share: float) -> str:
    """Write a share in percent; a small one with a decimal."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def shade(share: float) -> str:
    """Return a character whose darkness is about this share."""
    shades = " ░▒▓█" if (sys.stdout.encoding or "").lower().startswith("utf") else " .:*#"
    return shades[round(min(share, 1.0) * (len(shades) - 1))]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: on a busy machine a step took 100 to 244 ms with two threads, and 26 ms with one."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
