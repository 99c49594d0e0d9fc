"""What a recipe's network comes to without being built: its parameters by part, and its work by token.

A multiplication and an addition are two operations. A dense layer of m by n numbers takes 2 m n for a token forward and
twice that backward, once for the gradient of its input and once for that of its weights. Not counted are biases,
LayerNorms and the pooler (one row a sequence).
"""

from typing import NamedTuple

from bertworks.data.settings import OBJECTIVES
from bertworks.errors import UserError, counted
from bertworks.nn.config import ElmoConfig, elmo_preset, gpt_preset, preset
from bertworks.recipe import Recipe

FORWARD_AND_BACKWARD = 3
_NUM_CHARACTERS, _MAX_CHARACTERS = 262, 50  # that ELMo knows, and of a word
_NUM_GATES = 4


class Network(NamedTuple):
    """The numbers that memory and time are made of."""

    size: str  # in words
    parts: dict[str, int]  # parameters by part
    num_fixed: int  # parameters that are not trained: sinusoidal positions
    layers: int
    width: int
    heads: int
    dense_flops: float  # forward, of a token in all layers, without attention
    seen_share: float  # of its sequence that a token attends to: 1, about half from one side, or 0
    scored_share: float  # rows scored with the vocabulary for each token: the masked ones, or all
    score_flops: float  # forward, of such a row
    columns: int  # scores of such a row
    kept_numbers: float | None = None  # of a token for the backward pass, where that does not follow from the layers
    read_numbers: float = 0.0  # those of them that are of its characters, at most

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def num_trained(self) -> int:
        """Those that have a gradient and a state in the optimizer."""
        return self.num_parameters - self.num_fixed

    @property
    def is_recurrent(self) -> bool:
        """Whether it has LSTMs instead of attention."""
        return self.kept_numbers is not None

    @property
    def scores_all(self) -> bool:
        """Whether every token is scored: then in parts, whose scores are made again in the backward pass."""
        return self.scored_share == 1

    def attention_flops(self, length: int) -> float:
        """Return the operations, forward, of a token's attention in all layers: scores and weighted sums."""
        return self.layers * 4 * length * self.width * self.seen_share

    def flops(self, length: int) -> float:
        """Return the operations of a token in training."""
        forward = self.dense_flops + self.attention_flops(length) + self.scored_share * self.score_flops
        return FORWARD_AND_BACKWARD * forward


def network_of(recipe: Recipe, vocab_size: int) -> Network:
    """Return what a recipe's network comes to with a vocabulary of this size."""
    model, objective = recipe.model, recipe.data.objective
    if objective not in (objectives := OBJECTIVES[model.tokens]):
        possible = " or ".join(objectives)
        raise UserError(f"model.kind {model.kind} cannot learn data.objective {objective}; choose {possible}")
    if model.kind == "elmo":
        return elmo_network(elmo_preset(model.preset, vocab_size=vocab_size))
    if recipe.data.max_length > model.max_positions:
        raise UserError(f"data.max_length {recipe.data.max_length} is more than model.max_positions")
    if model.kind == "gpt":
        config = gpt_preset(model.preset, vocab_size=vocab_size, n_positions=model.max_positions).as_bert()
    else:
        positions = {"max_position_embeddings": model.max_positions, "positions": model.positions}
        config = preset(model.preset, vocab_size=vocab_size, **positions)
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    heads, vocab = config.num_attention_heads, config.vocab_size
    position_numbers = config.max_position_embeddings * width
    block = 4 * width * (width + 1) + width * inner + inner + inner * width + width + 4 * width
    parts = {"embeddings": vocab * width + position_numbers, "layers": layers * block}
    score_flops, is_masked, num_fixed, scored_share = 2 * width * vocab, objective.startswith("mlm"), 0, 1.0
    if model.kind == "bert":
        parts["embeddings"] += (config.type_vocab_size + 2) * width
        parts["mlm head"] = width * (width + 1) + 2 * width + vocab
        score_flops = 2 * width * (width + vocab)
        num_fixed = position_numbers if config.positions == "sinusoidal" else 0
    if objective == "mlm+nsp":
        parts |= {"pooler": width * (width + 1), "nsp head": 2 * (width + 1)}
    if is_masked:
        most = recipe.data.max_predictions
        scored_share = min(recipe.data.mask_rate, most / recipe.data.max_length if most else 1.0)
    return Network(
        size=f"{counted(layers, 'layer')} of width {width}, {counted(heads, 'head')}, {vocab:,} pieces",
        parts=parts,
        num_fixed=num_fixed,
        layers=layers,
        width=width,
        heads=heads,
        dense_flops=layers * 2 * (4 * width**2 + 2 * width * inner),
        seen_share=1.0 if is_masked else 0.5,
        scored_share=scored_share,
        score_flops=score_flops,
        columns=vocab,
    )


def elmo_network(config: ElmoConfig) -> Network:
    """Return the numbers of an ELMo: its characters, its LSTMs both ways, and its sampled softmax."""
    filters, cells, width = sum(config.num_filters), config.cell_size, config.projection_size
    looked_at = sum(long * count for long, count in enumerate(config.num_filters, start=1)) * config.char_embedding_size
    highways = config.num_highway_layers * 2 * filters**2
    num_lstms = 2 * config.num_layers
    lstm = _NUM_GATES * cells * 2 * width + cells * width
    parts = {
        "characters": _NUM_CHARACTERS * config.char_embedding_size
        + (looked_at + filters)
        + (highways + config.num_highway_layers * 2 * filters)
        + (filters + 1) * width,
        "lstms": num_lstms * (lstm + 2 * _NUM_GATES * cells),
        "softmax": config.vocab_size * (width + 1),
    }
    columns = min(config.num_negatives + 1, config.vocab_size)
    # At most: a word that occurs twice in a batch is read by its characters once.
    reading = _MAX_CHARACTERS * looked_at + highways + filters * width
    of_lstm = (_NUM_GATES + 2) * cells + width  # gates, cell, what it lets out, projected
    return Network(
        size=f"{counted(config.num_layers, 'layer')} of {cells} cells each way, width {width}, "
        f"{config.vocab_size:,} words",
        parts=parts,
        num_fixed=0,
        layers=config.num_layers,
        width=width,
        heads=0,
        dense_flops=2 * (reading + num_lstms * lstm),
        seen_share=0.0,
        scored_share=2.0,  # from the left and from the right
        score_flops=2 * width * columns,
        columns=columns,
        kept_numbers=num_lstms * of_lstm + filters * (_MAX_CHARACTERS + 4 * config.num_highway_layers),
        read_numbers=filters * (_MAX_CHARACTERS + 4 * config.num_highway_layers),
    )
