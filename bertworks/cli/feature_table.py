"""`bertworks finetune TASK --features table7`: the six rows of the paper's Table 7."""

from signal import SIGINT
from typing import Any

import typer

from bertworks.cli.options import print_json, say
from bertworks.errors import UserError

TABLE7 = "table7"


def refuse_together(features: str | None, cache: str | None) -> None:
    """Refuse what many runs cannot have: each of them keeps the features of its own run folder."""
    if features == TABLE7 or cache is not None:
        raise UserError("--grid, --restarts and glue go with --features LAYERS, not with --features table7 or --cache")


def print_table7(task: str, options: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Train the rows and print them beside the paper's."""
    from bertworks.tuning.table7 import TABLE_FILE, as_markdown, table7

    rows = table7(task, **options)
    if as_json:
        print_json({"out": options["out"], "rows": [row.facts() for row in rows]})
    elif not quiet:
        say(as_markdown(task, rows))
    signal = max(row.outcome.signal for row in rows)
    if signal:
        say("stopped by a signal before all six rows; go on with --resume", err=True)
    elif not quiet and not as_json:
        say(f"written to {options['out']}/{TABLE_FILE}", err=True)
    if signal == SIGINT:
        raise typer.Exit(130)
