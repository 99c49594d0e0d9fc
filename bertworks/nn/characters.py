"""Words as ELMo reads them: by their characters, so that no word is unknown.

U different words, K characters of a word, E width of a character, F filters in all, D width of a word, T tokens.

A word is 50 ids: a begin-of-word sign, its bytes + 1, an end-of-word sign, then padding, which is a sign like the
others. Filters of width 1, 2, ... slide over it, each keeps its largest answer, highway layers mix these, and a linear
map makes a word of them.

Two things that change nothing but the time: a word that occurs often in a batch is read once, and of the padding no
more is read than the widest filter can see.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.baseline_config import ElmoConfig
from bertworks.nn.layers import Embedding, Linear

NUM_CHARACTERS = 262
PADDING = 261  # behind a word's end

_CARRY_BIAS = -2.0
_FILTER_RANGE = 0.05


class Highway(nn.Module):
    """A layer that lets through what it does not change: g * relu(A x) + (1 - g) * x, g = sigmoid(B x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, width)
        self.change = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the width."""
        return torch.lerp(x, F.relu(self.change(x)), torch.sigmoid(self.gate(x)))


class CharacterEncoder(nn.Module):
    """From characters to words."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        total = sum(config.num_filters)
        self.embedding = Embedding(NUM_CHARACTERS, config.char_embedding_size)
        self.filters = nn.ModuleList(
            nn.Conv1d(config.char_embedding_size, count, width, device="meta").to_empty(
                device=torch.get_default_device()
            )
            for width, count in enumerate(config.num_filters, start=1)
        )
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.num_highway_layers))
        self.projection = Linear(total, config.projection_size)

    def forward(self, characters_TK: Tensor) -> Tensor:
        """Return [T, D]."""
        x_TEK = self.embedding(self._without_idle_padding(characters_TK).int()).transpose(1, 2)
        x_TF = torch.cat([F.relu(slide(x_TEK).amax(2)) for slide in self.filters], 1)
        for highway in self.highways:
            x_TF = highway(x_TF)
        return self.projection(x_TF)

    def words(self, word_ids_T: Tensor, characters_VK: Tensor) -> Tensor:
        """Return [T, D] for words of a list, whose characters are the rows of a table of 16-bit numbers."""
        unique_U, inverse_T = torch.unique(word_ids_T, return_inverse=True)
        # torch picks rows of signed numbers alone; the ids are small enough to be read as such without a copy.
        characters_UK = characters_VK.view(torch.int16).index_select(0, unique_U)
        return F.embedding(inverse_T, self(characters_UK))

    def _without_idle_padding(self, characters_TK: Tensor) -> Tensor:
        used = (characters_TK != PADDING).any(0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        return characters_TK[:, : longest + len(self.filters)]


@torch.no_grad()
def fill_characters(encoder: CharacterEncoder, generator: torch.Generator) -> None:
    """Fill the weights as ELMo's authors did; highways begin by letting nearly everything through."""
    for name, parameter in encoder.named_parameters():
        values = torch.zeros(parameter.shape)
        if name == "embedding.weight":
            values.uniform_(-1.0, 1.0, generator=generator)
        elif name.startswith("filters") and parameter.ndim > 1:
            values.uniform_(-_FILTER_RANGE, _FILTER_RANGE, generator=generator)
        elif parameter.ndim > 1:
            values.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        elif name.endswith("gate.bias"):
            values.fill_(_CARRY_BIAS)
        parameter.copy_(values)
