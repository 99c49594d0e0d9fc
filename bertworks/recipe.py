"""A recipe: all the settings of a run by section, shipped with the package under a name or lying under a path."""

import os
from collections.abc import Sequence

from bertworks.config import Settings, TokenizerSettings, VocabSettings, is_like, read_recipe
from bertworks.data.settings import DataSettings
from bertworks.errors import UserError
from bertworks.train.settings import ModelSettings, OptimSettings, TrainSettings

_FURTHER = "continue"  # the recipe that says nothing of a model's sizes


class Recipe(Settings):
    """Every section, with the paper's values where a recipe does not say otherwise."""

    tokenizer: TokenizerSettings = TokenizerSettings()
    vocab: VocabSettings = VocabSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    optim: OptimSettings = OptimSettings()
    train: TrainSettings = TrainSettings()

    def sequences_of(self, length: int) -> int:
        """Return how many whole sequences of one of a run's lengths a batch has room for."""
        data = self.data
        is_short = length == data.short_length and length < data.max_length
        return data.short_batch if is_short and data.short_batch else self.train.batch_size

    def batch_tokens(self, length: int) -> int:
        """Return how many tokens those sequences have."""
        return self.sequences_of(length) * length


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a shipped recipe by its name or one of your own by its path, with `section.key=value` overrides on top."""
    return read_recipe(Recipe, name_or_path, overrides)


def as_recipe(recipe: Recipe | str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe as it is, or the one of that name or path with overrides on top."""
    if not isinstance(recipe, Recipe):
        return load_recipe(os.fspath(recipe), overrides)
    if overrides:
        raise UserError("overrides are for a recipe that is given by its name or path; this one has all its settings")
    return recipe


def check_has_model(recipe: Recipe | str | os.PathLike[str]) -> None:
    """Refuse, where no model is given, the recipe that is for training one further, and those that are like it."""
    if not isinstance(recipe, Recipe) and is_like(os.fspath(recipe), _FURTHER):
        raise UserError(f"the recipe {_named(os.fspath(recipe))} trains a model further; say which with --from MODEL")


def check_has_sizes(recipe: str, settings: Recipe) -> None:
    """Refuse to count with such a recipe where nothing says how large the model is."""
    if is_like(recipe, _FURTHER) and "preset" not in settings.model.model_fields_set:
        raise UserError(
            f"the recipe {_named(recipe)} has the sizes of the model it is given; say them: model.preset=base"
        )


def _named(recipe: str) -> str:
    return recipe if recipe == _FURTHER else f"{recipe}, which is like {_FURTHER},"
