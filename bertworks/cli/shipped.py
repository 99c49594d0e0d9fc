"""What comes with the package: recipes, demo."""

import typer

from bertworks.cli.options import (
    JsonOption,
    OverridesArgument,
    QuietOption,
    print_json,
)


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with the package."""
    from bertworks.config import recipe_names, recipe_summary

    summaries = {name: recipe_summary(name) for name in recipe_names()}
    if as_json:
        print_json(summaries)
    else:
        for name, summary in summaries.items():
            typer.echo(f"{name:<16} {summary}")


def demo(
    overrides: OverridesArgument = None,
    quiet: QuietOption = False,
) -> None:
    """Show what there is, on this machine, with text that comes with Python."""
    from bertworks.demo import run_demo

    run_demo(overrides or [], quiet=quiet)
