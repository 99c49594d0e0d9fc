"""How texts go through the networks of GPT-1 and ELMo: what `LanguageModel` asks of either.

GPT-1 reads pieces by their ids, as many as it has positions for. ELMo reads words by their characters, also those that
its list does not have, and texts of any length; the ids of its list are only what it guesses.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.interop.elmo_folder import write_elmo
from bertworks.interop.gpt_folder import write_gpt
from bertworks.interop.model_folder import ModelFolder
from bertworks.nn.attention import can_flash
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.nn.hidden_states import Rows
from bertworks.nn.lm import Sums
from bertworks.nn.packing import Packing, Tokens, pack, pack_lengths
from bertworks.nn.sampled import WordSoftmax
from bertworks.text.encoding import Encoding
from bertworks.text.gpt_bpe import GptTokenizer
from bertworks.text.words import WordTokenizer, character_ids

_NO_LIMIT = 1 << 30


class Text(NamedTuple):
    """A text, and what its tokenizer made of it."""

    text: str
    encoding: Encoding


class GptInUse:
    """Reads texts with a GPT-1."""

    name = "a GPT-1"

    def __init__(self, net: Gpt, tokenizer: GptTokenizer, device: torch.device) -> None:
        self.net, self.tokenizer, self._device = net, tokenizer, device
        config = net.config
        self.num_layers, self.width, self.max_length = config.n_layer, config.n_embd, config.n_positions
        self._flash = can_flash(config.n_embd // config.n_head, net.token.weight.dtype, device)

    def rows(self, texts: Sequence[Text], layers: Sequence[int]) -> Rows:
        """Return the layers asked for, 0 the embeddings."""
        tokens = self._pack(texts)
        if set(layers) == {self.num_layers}:
            return Rows(tokens.packing.cumulative_lengths, [self.net(tokens)] * len(layers))
        all_hidden = self.net.all_hidden(tokens)
        return Rows(tokens.packing.cumulative_lengths, [all_hidden[layer] for layer in layers])

    def sums(self, texts: Sequence[Text]) -> Sums:
        """Return the sums of all guesses in texts."""
        tokens = self._pack(texts)
        return self.net.lm_sums(self.net(tokens), tokens)

    def next_scores(self, text: Text) -> Tensor:
        """Return how likely each piece comes next, [V]; of a text that is too long the end is read."""
        ids = text.encoding.ids[-self.max_length :]
        if not ids:
            raise UserError("a GPT-1 has no sign for a text's beginning; give it at least a word to go on from")
        hidden_TD = self.net(pack([ids], None, self._device, flash=self._flash))
        return self.net.lm_logits(hidden_TD[-1:]).float().softmax(-1)[0]

    def write(self, folder: Path, opened: ModelFolder[Any]) -> None:
        """Write the network into a folder, with what else was in the one that it comes from."""
        write_gpt(folder, self.net, labels=opened.labels, about=opened.about)

    def _pack(self, texts: Sequence[Text]) -> Tokens:
        return pack([text.encoding.ids for text in texts], None, self._device, flash=self._flash)


class ElmoInUse:
    """Reads texts with an ELMo."""

    name = "an ELMo"
    max_length = _NO_LIMIT

    def __init__(self, net: Elmo, tokenizer: WordTokenizer, device: torch.device) -> None:
        self.net, self.tokenizer, self._device = net, tokenizer, device
        self.num_layers, self.width = net.config.num_layers, 2 * net.config.projection_size

    def rows(self, texts: Sequence[Text], layers: Sequence[int]) -> Rows:
        """Return the layers asked for, 0 the words themselves."""
        all_hidden, packing = self._read(texts)
        return Rows(packing.cumulative_lengths, [all_hidden[layer] for layer in layers])

    def sums(self, texts: Sequence[Text]) -> Sums:
        """Return the sums of all guesses in texts, of both directions."""
        self._need_softmax()
        tokens = pack([text.encoding.ids for text in texts], device=self._device)
        return self.net.lm_sums(self._read(texts)[0], tokens)

    def next_scores(self, text: Text) -> Tensor:
        """Return how likely each word of the list comes next, [V]."""
        softmax = self._need_softmax()
        characters_TK, packing = spelt([self.tokenizer.words(text.text)[:-1]], self._device)
        row_D = self.net.read(characters_TK, packing)[-1][-1, : self.net.config.projection_size]
        return (softmax.weight @ row_D + softmax.bias).softmax(-1)

    def write(self, folder: Path, opened: ModelFolder[Any]) -> None:
        """Write the network into a folder, with what else was in the one that it comes from."""
        write_elmo(folder, self.net, about=opened.about)

    def _need_softmax(self) -> WordSoftmax:
        if self.net.softmax is None:
            raise UserError("this ELMo gives layers and cannot guess: its folder has no softmax")
        return self.net.softmax

    def _read(self, texts: Sequence[Text]) -> tuple[list[Tensor], Packing]:
        characters_TK, packing = spelt([self.tokenizer.words(text.text) for text in texts], self._device)
        return self.net.read(characters_TK, packing), packing


def spelt(texts: Sequence[Sequence[str]], device: torch.device) -> tuple[Tensor, Packing]:
    """Return the characters of texts given as words (`<S>` and `</S>` included), and how they lie end to end."""
    table = character_ids([word for words in texts for word in words]).astype(np.int16)
    return torch.from_numpy(table).to(device), pack_lengths([len(words) for words in texts], device)
