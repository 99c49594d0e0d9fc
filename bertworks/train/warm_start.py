"""Training a model further: its weights, its sizes, its vocabulary and perhaps some new words.

A run begins with the model's fp32 weights instead of weights drawn from its seed. What pre-training needs and the model
lacks, such as a head for next sentences, is still drawn from the seed. The data must be made with the model's
vocabulary, or with one that has more words after the model's own. The embedding of a new word, and its bias in the
masked-word head, start as the mean of the pieces that the word was split into before. If the recipe asks for a model
several times as wide, the model is widened, and computes nearly the same at first (`widened`).

Such a run is measured and saved before its first step. From then on its checkpoints have all it needs, and the model
that it started from may be deleted.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertworks.data.shards import Dataset
from bertworks.errors import ConfigError, UserError, counted
from bertworks.files import sha256_of
from bertworks.models.config_json import Source, read_bert_config
from bertworks.models.folder import CONFIG_FILE, find_encoder, find_model, read_about, read_json, read_rates
from bertworks.models.kinds import BERT, DIRECTIONS, read_model
from bertworks.models.weights import WEIGHTS_FILE
from bertworks.nn.config import BertConfig, preset
from bertworks.recipe import ModelSettings, Recipe
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CONTINUATION, UNK, WordPiece
from bertworks.train.checkpoint import checkpoint_folders

_ROWS = ("embeddings.token.weight", "heads.mlm.bias")  # what has a row for every piece
_MLM_HEAD = "heads.mlm."
_TABLE, _TABLE_NORM = "embeddings.token.weight", "embeddings.norm.weight"
_TABLES = (_TABLE, "embeddings.position.weight", "embeddings.segment.weight")
_ADDED = (".attention_out.weight", ".down.weight")  # whose results are added to the residual stream


class Start(NamedTuple):
    """What a run starts from, or was started from.

    Attributes:
        config: the network's, with room for the data's vocabulary.
        about: what the run's models record of it: the model's name, its files' checksums, what is new.
        weights: by our names; empty where a checkpoint has them.
        rates: the learning rates recommended for fine-tuning; empty for a model that is widened.
    """

    config: BertConfig
    about: dict[str, Any]
    weights: dict[str, Tensor]
    rates: Mapping[str, Any] = {}

    @torch.no_grad()
    def fill(self, net: nn.Module) -> "Start":
        """Copy the weights into a network; returns the start, which then records what was drawn and what left out."""
        own = dict(net.named_parameters())
        for name in own.keys() & self.weights.keys():
            own[name].copy_(self.weights[name])
        drawn, left_out = (_parts(own.keys() - self.weights.keys()), _parts(self.weights.keys() - own.keys()))
        return self._replace(about=self.about | {"drawn": drawn, "left_out": left_out}, weights={})

    def sentence(self) -> str:
        """Describe in a line what a run starts from."""
        facts = [counted(self.about["new_words"], "new word")]
        if "widened_from" in self.about:
            facts.insert(0, f"widened from {self.about['widened_from']} to {_sizes(self.config)}")
        if self.about["drawn"]:
            facts.append(f"{', '.join(self.about['drawn'])} drawn from the seed")
        if self.about["left_out"]:
            facts.append(f"{', '.join(self.about['left_out'])} left out")
        return f"starting from {self.about['model']}: {'; '.join(facts)}"


def find_start(source: str | os.PathLike[str] | None, run: Path, dataset: Dataset) -> Start | None:
    """Return what a run starts from, or has started from if it has a checkpoint; None for a run from its seed."""
    folders = checkpoint_folders(run)
    if not folders:
        return None if source is None else open_start(source, dataset)
    begun = _begun(folders)
    if source is not None and begun is None:
        raise UserError(f"{run} was not started from a model; resume without --from, or choose another --out")
    if source is not None and begun is not None and _has_other_weights(source, begun):
        raise UserError(f"{run} was started from {begun.about.get('model')}, whose weights are not those of {source}")
    return begun


def _begun(folders: Sequence[Path]) -> Start | None:
    """Return the start that the newest readable checkpoint records; its weights are verified when they are needed."""
    for folder in folders:
        try:
            about = read_about(folder)
            start = (about.get("provenance") or {}).get("start")
            if start is None:
                return None
            config = read_bert_config(Source(folder / CONFIG_FILE, read_json(folder / CONFIG_FILE), about))
            return Start(config, start, {}, read_rates(about))
        except UserError:
            continue
    return None


def _has_other_weights(source: str | os.PathLike[str], begun: Start) -> bool:
    """Tell whether a model that is still there is not the one that a run started from."""
    try:
        return checksums(find_encoder(find_model(source))) != begun.about.get("weights")
    except UserError:
        return False  # the model was deleted; the run does not need it any more


def open_start(source: str | os.PathLike[str], dataset: Dataset) -> Start:
    """Open a model for a run on this data: a model folder, a run folder, or a name in the local cache."""
    folder = find_encoder(find_model(source))
    net, tokenizer = read_model(folder, BERT).net, Tokenizer.from_folder(folder)
    words = new_words(tokenizer, dataset, folder)
    if len(tokenizer) > net.config.vocab_size:
        raise UserError(f"{folder}: its vocabulary has {len(tokenizer):,} pieces, its model {net.config.vocab_size:,}")
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    split = list(map(splitter(tokenizer), words))
    for name in weights.keys() & set(_ROWS):
        weights[name] = _with_means(weights[name], len(tokenizer), split)
    about = {"model": os.fspath(source), "weights": checksums(folder), "new_words": len(words)}
    config = net.config.model_copy(update={"vocab_size": max(net.config.vocab_size, dataset.vocab_size)})
    return Start(config, about, weights, read_rates(read_about(folder)))


def checksums(folder: Path) -> dict[str, str]:
    """Return the sha256 of a folder's files of weights."""
    one = folder / WEIGHTS_FILE
    files = [one] if one.exists() else sorted(folder.glob("*.safetensors"))
    return {path.name: sha256_of(path) for path in files}


def new_words(tokenizer: Tokenizer, dataset: Dataset, folder: Path) -> list[str]:
    """Return the words that the data's vocabulary adds to the model's; the error says how to prepare data that fits."""
    pieces, known = dataset.tokenizer.pieces, tokenizer.pieces
    how = (
        f"prepare it with `bertworks prepare CORPUS --vocab {folder}`, or with more words, which "
        f"`bertworks vocab CORPUS --extend {folder} --size N` adds"
    )
    if dataset.tokenizer.kind != "wordpiece":
        raise UserError(f"{dataset.folder} holds {dataset.tokenizer.kind} tokens, and the model reads pieces; {how}")
    if pieces[: len(known)] != known:
        differing = (id for id, (ours, theirs) in enumerate(zip(pieces, known, strict=False)) if ours != theirs)
        id = next(differing, len(pieces))
        found = repr(pieces[id])[:40] if id < len(pieces) else "missing"
        raise UserError(
            f"the vocabulary of {dataset.folder} is not the model's: id {id} is {found}, and should be "
            f"{known[id]!r:.40}; {how}"
        )
    if dataset.tokenizer.rules != tokenizer.rules:
        raise UserError(
            f"{dataset.folder} was made with {_said(dataset.tokenizer.rules)}, and the model reads "
            f"{_said(tokenizer.rules)}; {how}"
        )
    return pieces[len(known) :]


def _said(rules: Any) -> str:
    return ", ".join(f"{name}={str(value).lower()}" for name, value in rules._asdict().items())


def splitter(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return a function that splits a piece of another vocabulary into the ids of this one's pieces."""
    ids = {piece: id for id, piece in enumerate(tokenizer.pieces) if piece}
    inside = {piece: id for piece, id in ids.items() if piece.startswith(CONTINUATION)}
    whole = WordPiece(ids)
    # A continuation piece is split as if words could begin with continuation pieces.
    part = WordPiece({UNK: ids[UNK]} | inside | {piece.removeprefix(CONTINUATION): id for piece, id in inside.items()})

    def split(word: str) -> list[int]:
        pieces = part if word.startswith(CONTINUATION) else whole
        return [id for id, _, _ in pieces.split(word.removeprefix(CONTINUATION))] or [ids[UNK]]

    return split


def _with_means(rows: Tensor, num_known: int, split: Sequence[Sequence[int]]) -> Tensor:
    """Return rows with one more for each new piece; padding rows at the end of the matrix are replaced first."""
    rows = rows.float()  # a mean in half precision would be rounded twice
    means = [rows[list(ids)].mean(0, keepdim=True) for ids in split]
    return torch.cat([rows[:num_known], *means, rows[num_known + len(split) :]])


def _parts(names: Iterable[str]) -> list[str]:
    """Return which parts of a network some parameters belong to."""
    return sorted({f"{name.split('.')[1]} head" if name.startswith("heads.") else name.split(".")[0] for name in names})


def settled(recipe: Recipe, start: Start) -> tuple[Recipe, Start]:
    """Return a recipe with the model's own sizes; contradictions in the recipe are reported together as one error.

    A run that has not started yet may widen the model. Dropout is not a size: a recipe may set another one.
    """
    settings = recipe.model
    if "preset" in settings.model_fields_set and settings.kind == "bert" and start.weights and can_widen(start.config):
        wanted = preset(settings.preset)
        factor = wanted.hidden_size // start.config.hidden_size
        if factor > 1 and _sizes(wanted) == _sizes(wider(start.config, factor)):
            about = start.about | {"widened_from": _sizes(start.config)}
            weights = widened(start.weights, factor, recipe.train.seed)
            start = Start(wider(start.config, factor), about, weights)
    config = start.config
    own = {
        "kind": "bert",
        "preset": _sizes(config),
        "hidden_act": config.hidden_act,
        "max_positions": config.max_position_embeddings,
        "positions": config.positions,
        "segments": config.segments,
    }
    wide = [_sizes(wider(config, factor)) for factor in (2, 3)] if start.weights and can_widen(config) else []
    if problems := _contradictions(settings, own, wide) + _impossible(recipe, config):
        raise ConfigError("the recipe and the model that it starts from", problems)
    if "dropout" in settings.model_fields_set and settings.dropout != config.hidden_dropout_prob:
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        config = config.model_copy(update=dict.fromkeys(names, settings.dropout))
    model = settings.model_copy(update=own | {"dropout": config.hidden_dropout_prob})
    return recipe.model_copy(update={"model": model}), start._replace(config=config)


def _contradictions(settings: ModelSettings, own: Mapping[str, Any], wide: Sequence[str]) -> list[str]:
    """Return a line for each setting that contradicts the model; `wide` are sizes that it could be widened to."""
    if settings.kind != own["kind"]:  # whose sizes have other names
        return [f"model.kind: {settings.kind} is not the model's {own['kind']}; choose another recipe"]
    problems = []
    for name in sorted(settings.model_fields_set & own.keys()):
        value = getattr(settings, name)
        if value != own[name] and not (name == "preset" and _sizes(preset(value)) == own[name]):
            problem = (
                f"model.{name}: {value} is not the model's {own[name]}; leave it out, or set model.{name}={own[name]}"
            )
            if name == "preset" and wide:
                problem += f"; to widen it, {', '.join(wide)}, ..."
            problems.append(problem)
    return problems


def _sizes(config: BertConfig) -> str:
    return f"{config.num_hidden_layers}x{config.hidden_size}x{config.num_attention_heads}"


def _impossible(recipe: Recipe, config: BertConfig) -> list[str]:
    """Return a line for each setting that the model cannot be trained with."""
    data, problems = recipe.data, []
    if DIRECTIONS.get(data.objective, "both") != config.direction:
        problems.append(f"data.objective: {data.objective} is not for a model whose direction is {config.direction}")
    if data.max_length > config.max_position_embeddings:
        problems.append(f"data.max_length: {data.max_length} is more than the model's {config.max_position_embeddings}")
    if data.objective == "mlm+nsp" and config.type_vocab_size < 2:
        problems.append("data.objective: mlm+nsp needs two segments, and the model has one; choose mlm")
    return problems


def can_widen(config: BertConfig) -> bool:
    """Tell whether a model can be widened: sinusoidal positions differ at every width, and are not learnt."""
    return config.positions == "learned"


def wider(config: BertConfig, factor: int) -> BertConfig:
    """Return the sizes of a network that is `factor` times as wide."""
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    return config.model_copy(update={name: factor * getattr(config, name) for name in names})


def widened(
    weights: Mapping[str, Tensor],
    factor: int,
    seed: int,
    *,
    columns: float = 0.25,
    rows: float = 0.5,
    table: float = 0.5,
) -> dict[str, Tensor]:
    """Return the weights, by our names, in float32, of a network that much wider which computes nearly the same.

    With a factor of k every number of the narrow network occurs k times in the wide one: embeddings are repeated, a
    layer has each of its rows k times, and as each of its inputs comes k times too, a column is divided among its
    copies. Heads keep their width and become k times as many. LayerNorm does not notice, for repeated numbers have the
    same mean and variance. The masked-word head compares with embeddings that are k times as long, so its own norm is
    divided by k. So far the wide network computes the same, exactly.

    But copies that are treated alike learn alike forever, and the wide network would be a narrow one. So noise is
    added that sums up to 0 over the copies, in three places. Of the columns: what a layer gives is still the same, what
    its copies learn from the gradients is not. That alone is not enough: `small` from `mini` had, after 1.7 billion
    tokens, two halves of its table of pieces that were alike to 0.99 (docs/log.md). So the copies of a piece's
    embedding differ from the start, and those of the rows whose results are added to the embeddings. What reads them
    divides evenly but for the noise of its columns, so it sees little of that: a masked piece costs `mini` 2.69 nats
    then, and 2.59 without.

    Args:
        weights: of the narrow network.
        factor: how many times as wide it becomes.
        seed: of the noise, whose size is given as a share of what it is added to:
        columns: of the parts that a column is divided into.
        rows: of the rows of the layers whose results are added to the stream.
        table: of the embeddings of pieces.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        """Return noise of size 1 whose sum over the copies, of which the last but one number of the shape is, is 0."""
        noise = torch.randn(*shape, generator=generator)
        return (noise - noise.mean(-2, keepdim=True)) * math.sqrt(factor / (factor - 1))

    def size(weight: Tensor) -> Tensor:
        return weight.square().mean().sqrt()

    def divided(weight: Tensor) -> Tensor:
        """Divide the columns of a matrix unevenly among so many copies of its inputs."""
        noise = columns * size(weight) * draw(len(weight), factor, weight.shape[1])
        return ((weight[:, None] + noise) / factor).flatten(1)

    full = {name: weight.detach().float() for name, weight in weights.items()}
    wide = {}
    for name, weight in full.items():
        if name == f"{_MLM_HEAD}bias":  # one for each piece, and pieces are no more than before
            wide[name] = weight.clone()
        elif name.startswith("embeddings.") and weight.ndim == 2:
            copies = weight[:, None].expand(-1, factor, -1)
            if table and name == _TABLE:
                copies = copies + table * size(weight) * draw(len(weight), factor, weight.shape[1])
            wide[name] = copies.flatten(1)
        elif name.startswith("heads.") and ".out." in name:
            wide[name] = divided(weight) if weight.ndim == 2 else weight.clone()
        elif name.startswith(f"{_MLM_HEAD}norm."):
            wide[name] = weight.repeat(factor) / factor
        else:  # queries, keys and values are parts of one matrix, and the rows of each are repeated by themselves
            parts = weight.chunk(3 if ".qkv." in name else 1)
            repeated = torch.cat([part for part in parts for _ in range(factor)])
            wide[name] = divided(repeated) if weight.ndim > 1 else repeated
            if name.endswith(_ADDED):
                noise = draw(wide[name].shape[1], factor, len(weight)).permute(1, 2, 0).reshape(wide[name].shape)
                wide[name] = wide[name] + rows * size(wide[name]) * noise
    # The norm sees the table's noise as variance, and would make all the rest smaller.
    variance = sum(full[name].var(-1).mean() for name in _TABLES)
    wide[_TABLE_NORM] *= (1 + (table * size(full[_TABLE])) ** 2 / variance).sqrt()
    return wide
