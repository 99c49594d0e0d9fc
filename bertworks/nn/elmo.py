"""ELMo: two language models that read a text from either end, as features for other models.

T tokens (words), K characters of a word, D width of a word, V words.

Words are read by their characters. Over them two stacks of LSTMs run, one from the left, which guesses the next word,
one from the right, which guesses the one before; they share the character encoder and the softmax, and never see each
other. The second LSTM's output is added to its input. Cells are many and are projected down to the width of a word.

What ELMo gives is all its layers, each [from the left; from the right], for a task to weigh (`ScalarMix`).

Unlike the original: torch's LSTM cannot clip its cells and projections (at 3 there), so gradients alone are clipped;
and each sequence begins anew, where the original carried its state over from batch to batch of 20 words.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.baseline_config import ElmoConfig
from bertworks.nn.characters import CharacterEncoder, fill_characters
from bertworks.nn.dropout import Dropout
from bertworks.nn.lm import Sums, Targets, next_tokens, previous_tokens
from bertworks.nn.packing import Packing, Tokens
from bertworks.nn.recurrent import Steps, empty_lstm, fill_lstm, run_lstm, steps_of
from bertworks.nn.sampled import WordSoftmax


class Elmo(nn.Module):
    """The two language models.

    Args:
        config: the sizes.
        softmax: whether to have the matrix that words are guessed with; without it there are layers but no loss.
        characters_VK: of each word of the list, as 16-bit numbers, for texts that are given by ids; not a weight.
    """

    def __init__(self, config: ElmoConfig, *, softmax: bool = True, characters_VK: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.characters = CharacterEncoder(config)
        self.from_left = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.from_right = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.softmax = WordSoftmax(config.vocab_size, config.projection_size, config.num_negatives) if softmax else None
        self.dropouts = nn.ModuleList(Dropout(config.dropout, place) for place in range(2 * config.num_layers + 1))
        self.characters_VK: Tensor | None
        self.register_buffer("characters_VK", characters_VK, persistent=False)

    def forward(self, tokens: Tokens) -> list[Tensor]:
        """Return the layers of words given by their ids, [T, 2 * D] each."""
        assert self.characters_VK is not None, "this model has no list of words"
        words_TD = self.characters.words(tokens.token_ids, self.characters_VK)
        return self.layers(words_TD, tokens.packing, tokens.dropout_seed)

    def read(self, characters_TK: Tensor, packing: Packing) -> list[Tensor]:
        """Return the layers of any words, given by their characters, [T, 2 * D] each."""
        unique_UK, inverse_T = torch.unique(characters_TK.to(torch.int16), dim=0, return_inverse=True)
        return self.layers(F.embedding(inverse_T, self.characters(unique_UK)), packing)

    def layers(self, words_TD: Tensor, packing: Packing, seed: Tensor | None = None) -> list[Tensor]:
        """Return the words themselves, twice, and what the LSTMs make of them, layer by layer."""
        drops = list(self.dropouts)
        left = self._run(self.from_left, drops[:-1:2], words_TD, steps_of(packing), seed)
        right = self._run(self.from_right, drops[1:-1:2], words_TD, steps_of(packing, backwards=True), seed)
        both = [torch.cat(pair, 1) for pair in zip(left, right, strict=True)]
        return [torch.cat([words_TD, words_TD], 1), *both]

    def _run(
        self, lstms: nn.ModuleList, drops: list[nn.Module], x_TD: Tensor, steps: Steps, seed: Tensor | None
    ) -> list[Tensor]:
        outputs: list[Tensor] = []
        for lstm, drop in zip(lstms, drops, strict=True):
            x_TD = drop(x_TD, seed)
            out_TD = run_lstm(lstm, x_TD, steps)  # type: ignore[arg-type]
            x_TD = out_TD + x_TD if outputs else out_TD
            outputs.append(x_TD)
        return outputs

    def lm_sums(self, layers: Sequence[Tensor], tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the sums of guesses of both language models.

        Args:
            layers: what `forward` gave.
            tokens: the words, by their ids. In training their seed also chooses the words that a sampled softmax
                compares with; both directions share them.
            weights_T: 0 at words that fill up a batch.
        """
        assert self.softmax is not None, "this model has no softmax"
        rows_MD = self.dropouts[-1](torch.cat(layers[-1].chunk(2, 1)), tokens.dropout_seed)
        ends = zip(next_tokens(tokens, weights_T), previous_tokens(tokens, weights_T), strict=True)
        seed = None if tokens.dropout_seed is None else int(tokens.dropout_seed) % (1 << 32)
        return self.softmax(rows_MD, Targets(*(torch.cat(pair) for pair in ends)), seed)


def _projected_lstm(config: ElmoConfig) -> nn.LSTM:
    return empty_lstm(config.projection_size, config.cell_size, proj_size=config.projection_size)


@torch.no_grad()
def initialise_elmo(model: Elmo, seed: int) -> None:
    """Fill all weights from a seed, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    fill_characters(model.characters, generator)
    for lstm in [*model.from_left, *model.from_right]:
        fill_lstm(lstm, generator)
    if model.softmax is not None:
        values = torch.empty(model.softmax.weight.shape)
        model.softmax.weight.copy_(values.normal_(0.0, values.shape[1] ** -0.5, generator=generator))
        model.softmax.bias.zero_()
