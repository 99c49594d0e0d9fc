"""The command `bertworks`. Each command is a thin wrapper; what it needs is imported when it runs.

Commands are added, and listed by `--help`, in the order of a model's life. A person's mistake ends in one or two lines
and exit code 2, an interruption in 130.
"""

import sys
from collections import Counter
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperOption

from bertworks import __version__
from bertworks.cli.checkpoints import convert
from bertworks.cli.data import inspect, prepare, texts
from bertworks.cli.finetuning import finetune
from bertworks.cli.models import answer, attend, embed, features, fill, nsp, tag
from bertworks.cli.shipped import demo, models, recipes, tasks
from bertworks.cli.text import tokenize, vocab
from bertworks.cli.training import plan, pretrain, report
from bertworks.cli.tuned import choose, classify, evaluate, predict
from bertworks.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="BERT, the whole works: from raw text to a vocabulary, a pre-trained model and fine-tuned ones.",
)


class _OptionsOnce(TyperCommand):
    """A command that refuses an option given twice, of which click would take the last without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option, count in Counter(self.make_parser(ctx).parse_args(list(args))[2]).items():
            if count > 1 and isinstance(option, TyperOption) and not option.is_flag and not option.multiple:
                raise UserError(f"{option.opts[0]} is given {count} times; give it once")
        return super().parse_args(ctx, args)


for _command in (
    vocab, texts, prepare, inspect, tokenize, plan, pretrain, report, finetune, evaluate, predict, convert, fill, nsp,
    classify, tag, answer, choose, embed, features, attend,
):  # fmt: skip
    app.command(cls=_OptionsOnce, no_args_is_help=True)(_command)
for _needs_nothing in (recipes, tasks, models, demo):
    app.command(cls=_OptionsOnce)(_needs_nothing)


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
    """Take options that stand before the command."""


def main() -> NoReturn:
    """Run the command; a person's mistake ends in a line and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
    except OSError as error:
        typer.echo(f"error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
    else:
        sys.exit(0)
    sys.exit(2)
