"""What is pre-trained: a network with its objective, and how its weights become a model folder and come back.

BERT, GPT-1 and ELMo differ in their tokens, their objectives, their sizes and their files; all else is one trainer.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertworks.data.shards import Dataset
from bertworks.errors import ConfigError
from bertworks.models.kinds import to_ours, write_elmo, write_folder, write_gpt
from bertworks.models.names import from_openai
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, elmo_preset, gpt_preset, preset
from bertworks.nn.elmo import Elmo, initialise_elmo
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import initialise
from bertworks.recipe import ModelSettings, Recipe
from bertworks.train.objectives import OBJECTIVES, Objective

# By kind of model: the tokens it reads, and what it can learn from them.
_TOKENS = {"bert": "wordpiece", "gpt": "gpt-bpe", "elmo": "words"}
_OBJECTIVES = {"bert": ("mlm+nsp", "mlm", "ltr", "rtl"), "gpt": ("ltr",), "elmo": ("bilm",)}
_KINDS = {"mlm+nsp": ("mlm", "nsp"), "mlm": ("mlm",), "ltr": ("lm",), "rtl": ("lm",), "bilm": ("bilm",)}
DIRECTIONS = {"ltr": "left_to_right", "rtl": "right_to_left"}  # of objectives; the others read both ways


class Subject(NamedTuple):
    """A network, new and on the CPU, and all that is particular to it.

    Attributes:
        net: the network, its weights drawn from the recipe's seed.
        objective: gives the sums of each kind of prediction for a batch.
        kinds: of predictions, in the objective's order.
        write: writes a folder's configuration and weights, given what else is known about the model.
        from_file: gives a folder's weights their names in the network.
        is_plain: whether it is computed in float32, as it is written: cuDNN's LSTMs want their weights where they are,
            so neither copies in half precision nor torch.compile go with them. What is random is then hashed on a CPU
            too.
    """

    net: nn.Module
    objective: Objective
    kinds: tuple[str, ...]
    write: Callable[[Path, dict[str, Any]], None]
    from_file: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    is_plain: bool = False


def subject_of(recipe: Recipe, dataset: Dataset, config: BertConfig | None = None) -> Subject:
    """Return what a recipe wants to be trained on this data; `config` is that of a model to start from."""
    check_recipe(recipe, dataset)
    if recipe.model.kind == "bert":
        return _bert(recipe, config or _bert_config(recipe, dataset))
    return (_gpt if recipe.model.kind == "gpt" else _elmo)(recipe, dataset)


def check_recipe(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse, by name, all that does not go with the kind of model."""
    model, data, train = recipe.model, recipe.data, recipe.train
    tokens, problems = dataset.tokenizer.kind, []
    if tokens != _TOKENS[model.kind]:
        problems.append(
            f"it reads {_TOKENS[model.kind]} tokens, and {dataset.folder} has {tokens}; prepare data with --tokens "
            f"{_TOKENS[model.kind]}, or set model.kind={next(kind for kind in _TOKENS if _TOKENS[kind] == tokens)}"
        )
    if data.objective not in _OBJECTIVES[model.kind]:
        allowed = " or ".join(_OBJECTIVES[model.kind])
        problems.append(f"data.objective={data.objective}: it learns by {allowed}")
    if model.kind != "elmo" and data.max_length > model.max_positions:
        problems.append(f"data.max_length {data.max_length} is more than model.max_positions {model.max_positions}")
    if model.kind != "bert" and model.positions != "learned":
        problems.append(f"model.positions={model.positions}: only BERT has other positions than learned ones")
    if model.kind == "elmo" and model.hidden_act != ModelSettings().hidden_act:
        problems.append(f"model.hidden_act={model.hidden_act}: LSTMs have no choice of activation; leave it out")
    if model.kind == "elmo" and train.dtype == "bfloat16":
        problems.append("train.dtype=bfloat16: its LSTMs are trained in float32")
    if model.kind == "elmo" and train.compile:
        problems.append("train.compile=true: its LSTMs are cuDNN's, which torch.compile does not see into")
    if problems:
        raise ConfigError(f"model.kind={model.kind}", problems)


def _bert_config(recipe: Recipe, dataset: Dataset) -> BertConfig:
    model = recipe.model
    return preset(
        model.preset,
        vocab_size=dataset.vocab_size,
        hidden_act=model.hidden_act,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.dropout,
        max_position_embeddings=model.max_positions,
        positions=model.positions,
        direction=DIRECTIONS.get(recipe.data.objective, "both"),
    )


def _bert(recipe: Recipe, config: BertConfig) -> Subject:
    objective = recipe.data.objective
    kinds = _KINDS[objective]
    heads = {"mlm": 0, "nsp": 2} if "nsp" in kinds else {"mlm": 0}
    net = Bert(config, heads, pooler="nsp" in kinds)
    initialise(net, config.initializer_range, recipe.train.seed)
    return Subject(
        net=net,
        objective=OBJECTIVES[objective],
        kinds=kinds,
        write=lambda folder, about: write_folder(folder, net, about=about),
        from_file=partial(to_ours, list(net.state_dict())),
    )


def _gpt(recipe: Recipe, dataset: Dataset) -> Subject:
    model, objective = recipe.model, recipe.data.objective
    config = gpt_preset(
        model.preset,
        vocab_size=dataset.vocab_size,
        n_positions=model.max_positions,
        afn="relu" if model.hidden_act == "relu" else "gelu",
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
    )
    net = Gpt(config)
    initialise(net, config.initializer_range, recipe.train.seed, cut=False)
    return Subject(
        net=net,
        objective=OBJECTIVES[objective],
        kinds=_KINDS[objective],
        write=lambda folder, about: write_gpt(folder, net, about=about),
        from_file=from_openai,
    )


def _elmo(recipe: Recipe, dataset: Dataset) -> Subject:
    model, objective = recipe.model, recipe.data.objective
    config = elmo_preset(model.preset, vocab_size=dataset.vocab_size, dropout=model.dropout)
    net = Elmo(config, characters_VK=torch.tensor(dataset.characters()))
    initialise_elmo(net, recipe.train.seed)
    return Subject(
        net=net,
        objective=OBJECTIVES[objective],
        kinds=_KINDS[objective],
        write=lambda folder, about: write_elmo(folder, net, about=about),
        from_file=dict,
        is_plain=True,
    )
