"""What a person should know of a recipe before a run, and of a run that ended before its schedule did."""

from collections.abc import Iterator, Sequence

from bertworks.errors import counted
from bertworks.recipe import Recipe
from bertworks.train.schedules import learning_rate

_MUCH_OF_A_RUN = 0.9
_OF_MASKS = ("mask_rate", "mask_share", "random_share", "whole_word", "max_predictions")
_OF_LIMITS = {"tokens": "train.max_tokens", "minutes": "train.max_minutes"}


def remarks(recipe: Recipe, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line for each setting that changes nothing, and for a schedule that will not come to its end."""
    given = {override.partition("=")[0].strip() for override in overrides}
    data, optim, train = recipe.data, recipe.optim, recipe.train
    if "mlm" not in data.objective:
        for key in _OF_MASKS:
            if f"data.{key}" in given:
                yield f"data.{key} changes nothing: objective {data.objective} has no masks"
    if "data.short_share" in given and data.short_length is None:
        yield "data.short_share changes nothing: data.short_length is not set"
    if not optim.clock and optim.warmup >= train.max_steps:
        yield (
            f"the warm-up of {counted(round(optim.warmup), 'step')} is as long as the run of {train.max_steps:,}, "
            f"so the learning rate never comes to {optim.lr:g}; a share of the run, such as optim.warmup=0.1, fits any "
            "length"
        )
    if train.max_tokens is not None:
        steps = -(-train.max_tokens // recipe.batch_tokens(data.lengths()[0]))
        yield from early_end(recipe, "tokens", steps)


def early_end(recipe: Recipe, reason: str, step: int) -> Iterator[str]:
    """Say that a limit ends a run after about so many steps, where rate and length go by more of them."""
    total, goes_by_steps = recipe.train.max_steps, not recipe.optim.clock and recipe.optim.schedule != "constant"
    if reason in _OF_LIMITS and goes_by_steps and step < _MUCH_OF_A_RUN * total:
        rate = learning_rate(recipe.optim, step, total)
        yield (
            f"{_OF_LIMITS[reason]} ends the run after some {counted(step, 'step')}, and the learning rate goes by "
            f"train.max_steps={total:,}: it is {rate:.2g} then; set train.max_steps={step}"
            + (", or optim.clock=true" if reason == "minutes" else "")
        )
