"""The command `bertworks`. Each command is a thin wrapper; what it needs is imported when it runs.

Commands are added, and listed by `--help`, in the order of a model's life. A user's mistake gives one or two lines and
exit code 2; an interruption gives exit code 130.
"""

import itertools
import os
import re
import select
import signal
import stat
import sys
import threading
from collections import Counter
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from bertworks import __version__
from bertworks.cli.convert import convert, export
from bertworks.cli.finetune import finetune, glue, search
from bertworks.cli.info import demo, models, recipes, settings, tasks
from bertworks.cli.options import say
from bertworks.cli.pretrain import plan, pretrain, report
from bertworks.cli.reproduce import reproduce
from bertworks.cli.serve import serve
from bertworks.cli.text import inspect, prepare, texts, tokenize, vocab
from bertworks.cli.use import answer, attend, choose, classify, embed, evaluate, features, fill, nsp, predict, tag
from bertworks.errors import UserError, printable, shortened, shown
from bertworks.files import refusal_text

_MAX_USAGE_LINE = 300
# What the library says of wrong values, and what we say of a setting that is wrong in the same way.
_OURS = {
    r"Input should be a valid integer, .*": "it is not a whole number",
    r"Input should be a valid number, .*": "it is not a number",
    r"Input should be ": "it must be ",
    r"\. Did you mean (.*)\?$": r" (did you mean \1?)",
    r"Possible options: (.*)\)$": r"did you mean one of \1?)",
    r"^Got unexpected extra argument(?:s|\(s\))? \((.*)\)": r"too many arguments: \1",
}
_UsageError: Any = typer.BadParameter.__base__  # typer does not export this class

_FIRST_STEPS = """First steps:
  bertworks demo                              the life of a BERT, in three minutes
  bertworks fill mini "The [MASK] is cold."   a model that comes with the package
  bertworks finetune --help                   all options of a command"""


class _Group(TyperGroup):
    """The command with all its commands, which its help lists in groups, each with its whole description."""

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the commands in their groups."""
        commands: Any = self.commands  # a TyperCommand has a panel
        width = max(map(len, commands))
        for title, group in itertools.groupby(commands.values(), key=lambda command: command.rich_help_panel):
            rows = [(f"{command.name:<{width}}", " ".join(command.help.split("\n\n")[0].split())) for command in group]
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, _: Any, formatter: Any) -> None:
        """Write the first steps as they are, one a line."""
        formatter.write(f"\n{_FIRST_STEPS}\n")


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="BERT, the whole works: from raw text to a vocabulary, a pre-trained model and fine-tuned ones.",
)


class _ReaderIsGone(Exception):  # noqa: N818 -- a way to end, not an error
    """The reader of standard output has closed it."""


class _Command(TyperCommand):
    """A command that refuses an option given twice; click would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for number, argument in enumerate(args, 1):
            if "\0" in argument:
                raise UserError(f"argument {number}, {shown(argument)}, has a NUL character, which is not allowed")
        for option, count in Counter(self.make_parser(ctx).parse_args(list(args))[2]).items():
            if count > 1 and isinstance(option, TyperOption) and not option.is_flag and not option.multiple:
                raise UserError(f"{option.opts[0]} is given {count} times; give it once")
        return super().parse_args(ctx, args)

    def format_epilog(self, _: Any, formatter: Any) -> None:
        """Write the examples as they are."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if not _is_unread():
                raise UserError(f"lost the connection to a child process: {error.strerror}") from error
            raise _ReaderIsGone from error  # click itself would exit with 1


_GROUPS = {
    "Text and data": (vocab, texts, prepare, inspect, tokenize),
    "Pre-training": (plan, pretrain, report),
    "Fine-tuning": (finetune, search, glue, evaluate, predict),
    "Models in and out": (convert, export),
    "A model in use": (fill, nsp, classify, tag, answer, choose, embed, features, attend, serve),
    "The paper": (reproduce,),
    "What there is": (recipes, tasks, models, settings, demo),
}
_NEEDS_NOTHING = _GROUPS["What there is"]

# Examples at the end of a command's help; a line starts with a command.
_EPILOGS = {
    pretrain: """Settings are key=value; `bertworks settings pretrain` lists all of them:
  bertworks pretrain tiny-cpu --data DATA --out RUN train.max_minutes=10 optim.lr=2e-4
  bertworks settings pretrain tiny-cpu""",
    finetune: """Settings are key=value; `bertworks settings finetune TASK` lists all of them:
  bertworks finetune classify --model mini --train my.csv --out RUN train.epochs=5 optim.lr=1e-4
  bertworks settings finetune classify""",
    search: """A setting may have several values, which are tried one by one:
  bertworks search classify --model mini --train my.csv --out RUNS optim.lr=1e-4,3e-4 train.epochs=3
  bertworks settings finetune classify""",
    prepare: """A corpus is text to pre-train on; the vocabulary is a file, or that of a model:
  bertworks prepare corpus/ --vocab vocab.txt --out DATA --holdout 0.01
  bertworks prepare corpus/ --vocab mini --out DATA --holdout 0.01""",
    serve: """Then open http://localhost:8000 in a browser, or ask from a program:
  bertworks serve mini mini-ko
  curl localhost:8000/v1/fill -H 'Content-Type: application/json' -d '{"model": "mini", "input": "A [MASK]."}'""",
}

for _title, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(
            cls=_Command,
            no_args_is_help=_command not in _NEEDS_NOTHING,
            rich_help_panel=_title,
            epilog=_EPILOGS.get(_command),
        )(_command)


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(f"bertworks {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Parse the options before the command."""


def main() -> NoReturn:
    """Run the command; a user's mistake gives one or two lines and exit code 2."""
    reader_is_gone, is_ending = _end_without_reader()
    code = 2
    try:
        try:
            code = app(standalone_mode=False) or 0
            sys.stdout.flush()
        except UserError as error:
            say(f"error: {error}", err=True)
        except _UsageError as error:
            say(f"error: {_usage_text(error)}", err=True)
        except typer.Abort:
            code = 130
        except _ReaderIsGone:
            reader_is_gone.set()
        except OSError as error:
            what, reason = error.filename2 or error.filename, error.strerror or str(error)
            if isinstance(what, str):
                reason = refusal_text(error, os.path.dirname(os.path.abspath(what)))
            say(f"error: {what or 'a file or a stream could not be read or written'}: {reason}", err=True)
        is_ending.acquire()  # for good: a write may notice that the reader is gone before the watch does
    except KeyboardInterrupt:  # the watch was first, and its signal has come after the command
        code = 130
    if reader_is_gone.is_set():
        # Discard what is still to be flushed at exit; otherwise Python would print an error about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def _usage_text(error: Any) -> str:
    """Return what is wrong with options and arguments in the style of other errors: what it is, and where to look."""
    message = error.format_message().removesuffix(".")
    for theirs, ours in _OURS.items():
        message = re.sub(theirs, ours, message)
    message = "\n".join(shortened(printable(line), _MAX_USAGE_LINE) for line in message.split("\n"))
    command = f" {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else ""
    return f"{message[:1].lower()}{message[1:]}; see `bertworks{command} --help`"


def _is_unread(timeout_ms: int | None = 0) -> bool:
    """Tell whether standard output was closed by its reader; waits up to the timeout, without one forever."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # poll always reports that the other end was closed
    return bool(poll.poll(timeout_ms))


def _end_without_reader() -> tuple[threading.Event, threading.Lock]:
    """End the command as Ctrl-C does when the reader of its output is gone, as after `| head -1`; training saves first.

    The next write would fail anyway, but in long work it may be minutes away. Returns an event that is set then, and a
    lock: while the command holds it, no signal is sent.
    """
    is_gone, is_ending = threading.Event(), threading.Lock()
    try:
        is_watched = sys.platform == "linux" and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # closed, or none of the system's
        return is_gone, is_ending

    def watch() -> None:
        _is_unread(None)
        with is_ending:
            is_gone.set()
            is_ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)  # as in a shell's background
            os.kill(os.getpid(), signal.SIGTERM if is_ignored else signal.SIGINT)

    if is_watched:
        threading.Thread(target=watch, daemon=True).start()
    return is_gone, is_ending
