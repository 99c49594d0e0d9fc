"""What is pre-trained: a network with its objective, and how its weights become a model folder and come back.

BERT, GPT-1 and ELMo differ in their tokens, their objectives, their sizes and their files; all else is one trainer.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from bertworks.data.shards import Dataset
from bertworks.models.kinds import build_model, find_kind, write_model
from bertworks.nn.config import BertConfig
from bertworks.recipe import Recipe
from bertworks.train.objectives import OBJECTIVES, Objective


class Subject(NamedTuple):
    """A network, new and on the CPU, and all that is particular to it.

    Attributes:
        net: the network, its weights drawn from the recipe's seed.
        objective: gives the sums of each kind of prediction for a batch.
        kinds: of predictions, in the objective's order.
        write: writes a folder's configuration and weights, given what else is known about the model.
        from_file: gives a folder's weights their names in the network.
        is_plain: whether it is computed in float32, see `ModelKind`; what is random is then hashed on a CPU too.
    """

    net: nn.Module
    objective: Objective
    kinds: tuple[str, ...]
    write: Callable[[Path, dict[str, Any]], None]
    from_file: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    is_plain: bool = False


def subject_of(recipe: Recipe, dataset: Dataset, config: BertConfig | None = None) -> Subject:
    """Return what a recipe wants to be trained on this data; `config` is that of a model to start from."""
    kind, net = find_kind(recipe.model.kind), build_model(recipe, dataset, config)
    return Subject(
        net=net,
        objective=OBJECTIVES[recipe.data.objective],
        kinds=kind.objectives[recipe.data.objective],
        write=lambda folder, about: write_model(folder, net, about=about),
        from_file=partial(kind.from_file, list(net.state_dict())),
        is_plain=kind.is_plain,
    )
