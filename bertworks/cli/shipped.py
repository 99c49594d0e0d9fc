"""What comes with the package: recipes, demo."""

import re

import typer

from bertworks.cli.options import JsonOption, OverridesArgument, QuietOption, print_json

# Where recipes are from, in the order in which they are listed.
ORIGINS = (
    "The paper",
    "Google's compact models",
    "The paper's Table 5: tasks to pre-train with",
    "The paper's Table 6: sizes, beside base and large",
    "The paper's Table 8: what becomes of masked pieces (mask-MASK-SAME-RANDOM)",
    "What the paper compares BERT with",
    "Small ones for a CPU",
)


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with the package."""
    from bertworks.config import recipe_names, recipe_origin, recipe_summary

    summaries = {name: recipe_summary(name) for name in recipe_names()}
    if as_json:
        print_json(summaries)
        return
    for origin in ORIGINS:
        typer.echo(origin)
        for name in sorted(summaries, key=_by_numbers):
            if recipe_origin(name) == origin:
                typer.echo(f"  {name:<15} {summaries[name]}")


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Order names by the numbers in them: 6x768 is before 12x1024."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def demo(
    overrides: OverridesArgument = None,
    quiet: QuietOption = False,
) -> None:
    """Show what there is, on this machine, with text that comes with Python."""
    from bertworks.demo import run_demo

    run_demo(overrides or [], quiet=quiet)
