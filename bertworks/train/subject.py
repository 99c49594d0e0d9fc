"""What is pre-trained: a network with its objective, and how its weights become a model folder and come back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.interop.huggingface import to_ours, write_folder
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, preset
from bertworks.nn.layers import initialise
from bertworks.recipe import Recipe
from bertworks.train.objectives import OBJECTIVES, Sums

DIRECTIONS = {"ltr": "left_to_right", "rtl": "right_to_left"}  # of objectives; the others read both ways


class Subject(NamedTuple):
    """A network, new and on the CPU, and all that is particular to it.

    Attributes:
        net: the network, its weights drawn from the recipe's seed.
        objective: gives the sums of each kind of prediction for a batch.
        kinds: of predictions, in the objective's order.
        write: writes a folder's configuration and weights, given what else is known about the model.
        from_file: gives a folder's weights their names in the network.
    """

    net: nn.Module
    objective: Callable[[Any, Any], dict[str, Sums]]
    kinds: tuple[str, ...]
    write: Callable[[Path, dict[str, Any]], None]
    from_file: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def subject_of(recipe: Recipe, dataset: Dataset, config: BertConfig | None = None) -> Subject:
    """Return what a recipe wants to be trained on this data; `config` is that of a model to start from."""
    objective = recipe.data.objective
    if recipe.model.kind != "bert" or objective not in OBJECTIVES:
        raise UserError(f"model.kind {recipe.model.kind} with data.objective {objective} cannot be trained yet")
    kinds = _KINDS[objective]
    heads = {"mlm": 0, "nsp": 2} if "nsp" in kinds else {"mlm": 0}
    net = Bert(config or _bert_config(recipe, dataset), heads, pooler="nsp" in kinds)
    initialise(net, net.config.initializer_range, recipe.train.seed)
    return Subject(
        net=net,
        objective=OBJECTIVES[objective],
        kinds=kinds,
        write=lambda folder, about: write_folder(folder, net, about=about),
        from_file=lambda weights: to_ours(net.state_dict(), weights),
    )


_KINDS = {"mlm+nsp": ("mlm", "nsp"), "mlm": ("mlm",), "ltr": ("lm",), "rtl": ("lm",)}


def _bert_config(recipe: Recipe, dataset: Dataset) -> BertConfig:
    settings = recipe.model
    if recipe.data.max_length > settings.max_positions:
        raise UserError(f"data.max_length {recipe.data.max_length} is more than model.max_positions")
    return preset(
        settings.preset,
        vocab_size=dataset.vocab_size,
        hidden_act=settings.hidden_act,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        max_position_embeddings=settings.max_positions,
        positions=settings.positions,
        direction=DIRECTIONS.get(recipe.data.objective, "both"),
    )
