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
from bertworks.nn.lm import Targets, next_tokens, previous_tokens
from bertworks.nn.packing import Packing, Tokens
from bertworks.nn.recurrent import Steps, empty_lstm, fill_lstm, run_lstm, steps_of
from bertworks.nn.sampled import WordSoftmax


class Elmo(nn.Module):
    """The two language models; without `softmax` it gives layers but has no loss."""

    def __init__(self, config: ElmoConfig, *, softmax: bool = True) -> None:
        super().__init__()
        self.config = config
        self.characters = CharacterEncoder(config)
        self.from_left = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.from_right = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.softmax = WordSoftmax(config.vocab_size, config.projection_size, config.num_negatives) if softmax else None

    def forward(self, tokens: Tokens, characters_VK: Tensor) -> list[Tensor]:
        """Return the layers of words given by their ids, [T, 2 * D] each; `characters_VK` is the word list's table."""
        return self.layers(self.characters.words(tokens.token_ids, characters_VK), tokens.packing)

    def read(self, characters_TK: Tensor, packing: Packing) -> list[Tensor]:
        """Return the layers of any words, given by their characters, [T, 2 * D] each."""
        return self.layers(self.characters(characters_TK), packing)

    def layers(self, words_TD: Tensor, packing: Packing) -> list[Tensor]:
        """Return the words themselves, twice, and what the LSTMs make of them, layer by layer."""
        left = self._run(self.from_left, words_TD, steps_of(packing))
        right = self._run(self.from_right, words_TD, steps_of(packing, backwards=True))
        both = [torch.cat(pair, 1) for pair in zip(left, right, strict=True)]
        return [torch.cat([words_TD, words_TD], 1), *both]

    def _run(self, lstms: nn.ModuleList, x_TD: Tensor, steps: Steps) -> list[Tensor]:
        outputs: list[Tensor] = []
        for lstm in lstms:
            x_TD = F.dropout(x_TD, self.config.dropout, self.training)
            out_TD = run_lstm(lstm, x_TD, steps)  # type: ignore[arg-type]
            x_TD = out_TD + x_TD if outputs else out_TD
            outputs.append(x_TD)
        return outputs

    def lm_loss(
        self, layers: Sequence[Tensor], tokens: Tokens, seed: int | None = None, weights_T: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss of both language models and the number of their guesses.

        Args:
            layers: what `forward` gave.
            tokens: the words, by their ids.
            seed: chooses the words that a sampled softmax compares with; both directions share them.
            weights_T: 0 at words that fill up a batch.
        """
        assert self.softmax is not None, "this model has no softmax"
        rows = torch.cat(layers[-1].chunk(2, 1))
        rows = F.dropout(rows, self.config.dropout, self.training)
        ends = zip(next_tokens(tokens, weights_T), previous_tokens(tokens, weights_T), strict=True)
        return self.softmax(rows, Targets(*(torch.cat(pair) for pair in ends)), seed)


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
