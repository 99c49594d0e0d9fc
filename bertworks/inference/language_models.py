"""A GPT-1 or an ELMo to use: what `bw.load` gives for their folders.

Both give hidden states, guess the next word and tell how likely they find a text. What only a BERT can do is refused in
words that say what they can.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.inference.guesses import best_guesses, check_top_k, perplexity_of
from bertworks.inference.language_readers import ElmoInUse, GptInUse, Text
from bertworks.interop.folder import save_tokenizer
from bertworks.interop.model_folder import ModelFolder
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.nn.hidden_states import (
    Compute,
    Features,
    Layers,
    Pool,
    check_layers,
    check_pool,
    check_texts_of,
    features_of,
    normalized,
    texts_of,
    vectors_of,
)
from bertworks.nn.layers import freeze
from bertworks.text.encoding import Encoding
from bertworks.text.gpt_bpe import GptTokenizer
from bertworks.text.words import WordTokenizer

POOLS = ("mean", "max", "last")
_METHODS = ("embed", "features", "next_words", "perplexity", "encode", "save")


class LanguageModel:
    """A GPT-1 or an ELMo with its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what its ids mean.
        labels: of its classes, if it was fine-tuned.
        about: what the folder says of where it comes from.
        num_layers: without the embeddings.
        width: of a layer; an ELMo's has both directions side by side.
        max_length: the most tokens that it reads.
    """

    def __init__(
        self,
        folder: ModelFolder[Gpt] | ModelFolder[Elmo],
        tokenizer: GptTokenizer | WordTokenizer,
        device: torch.device,
    ) -> None:
        self.net, self.tokenizer, self._device = folder.net.eval(), tokenizer, device
        freeze(self.net)
        self._opened = folder
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self._reader = _reader_of(self.net, tokenizer, device)
        self.num_layers, self.width = self._reader.num_layers, self._reader.width
        self.max_length = self._reader.max_length

    def __repr__(self) -> str:
        from bertworks.inference.model_report import summary_of

        return summary_of(self)

    def __getattr__(self, name: str) -> Any:
        from bertworks.inference.model import Model

        if name.startswith("_") or not hasattr(Model, name):
            raise AttributeError(f"a language model has no {name}")
        raise UserError(f"{self._reader.name} has no {name}, which is BERT's; it has {', '.join(_METHODS)}")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder; transformers opens that of a GPT-1."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            self._reader.write(temporary, self._opened)
            save_tokenizer(self.tokenizer, temporary)

    def encode(self, texts: Sequence[str], *, truncate: bool = False) -> list[Encoding]:
        """Encode texts; one that is longer than the model reads is cut or refused."""
        if isinstance(texts, str):
            raise UserError("encode takes a list of texts")
        encodings = [self.tokenizer.encode(text) for text in texts]
        for number, encoding in enumerate(encodings):
            if len(encoding) > self.max_length and not truncate:
                raise self._too_long(encoding, f"text {number + 1} of {len(texts)}")
        return [encoding.cut(self.max_length) for encoding in encodings]

    def _too_long(self, encoding: Encoding, what: str) -> UserError:
        return UserError(
            f"{what} has {len(encoding):,} tokens, and the model reads {self.max_length:,}; shorten it, or have it cut "
            "with truncate (--truncate)"
        )

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        layers: Layers | None = None,
        pooling: Pool | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
    ) -> NDArray[np.float32]:
        """Return one vector for each text; zeros for one without tokens.

        Args:
            texts: to embed; for one by itself the vector, [width], for a list [texts, width].
            layers: whose outputs to use, 0 for the embeddings, -1 for the last, or "all"; several are put side by side.
            pooling: mean (the default) or max over the tokens, or the last token.
            normalize: scale each vector to length 1.
            truncate: cut texts that are too long instead of refusing them.
        """
        is_one, texts = isinstance(texts, str), texts_of("embed", texts)
        chosen = self.check_layers(layers if layers is not None else [-1])
        check_pool(pool := pooling or "mean", POOLS)
        encodings = self.encode(texts, truncate=truncate)
        lengths, compute = [len(encoding) for encoding in encodings], self._compute(texts, encodings, chosen)
        vectors = vectors_of(lengths, len(chosen) * self.width, compute, [pool], self._device)
        vectors = normalized(vectors) if normalize else vectors
        return vectors[0] if is_one else vectors

    def features(self, texts: Sequence[str], *, layers: Layers | None = None, truncate: bool = False) -> list[Features]:
        """Return the hidden states of every token of each text: of all layers, 0 the embeddings, or of some."""
        check_texts_of("features", texts)
        chosen = self.check_layers(layers if layers is not None else "all")
        encodings = self.encode(texts, truncate=truncate)
        return features_of(encodings, self._compute(texts, encodings, chosen), self._device)

    def _compute(self, texts: Sequence[str], encodings: Sequence[Encoding], layers: Sequence[int]) -> Compute:
        both = [Text(*pair) for pair in zip(texts, encodings, strict=True)]
        return lambda numbers: self._reader.rows([both[number] for number in numbers], layers)

    def next_words(self, text: str, top_k: int = 5, *, truncate: bool = False) -> list[dict[str, Any]]:
        """Guess what comes after a text.

        Args:
            text: to go on from; of a GPT-1 at least a word.
            top_k: how many guesses to give.
            truncate: read the end of a text that is too long instead of refusing it.

        Returns:
            a list of {"token", "id", "score"}, the likeliest first; scores are probabilities. GPT-1 guesses a piece.
        """
        check_top_k(top_k)
        encoding = self.tokenizer.encode(text)
        if len(encoding) > self.max_length and not truncate:
            raise self._too_long(encoding, "the text")
        with torch.inference_mode():
            scores_V = self._reader.next_scores(Text(text, encoding))[: len(self.tokenizer)].cpu()
        return best_guesses(scores_V, self.tokenizer.pieces, top_k)

    def perplexity(self, texts: Sequence[str], *, truncate: bool = False) -> float:
        """Return among how many choices the model hesitates at each guess in all texts; an ELMo's, of both ways."""
        check_texts_of("perplexity", texts)
        encodings = self.encode(texts, truncate=truncate)
        both = [Text(*pair) for pair in zip(texts, encodings, strict=True)]
        lengths = [len(encoding) for encoding in encodings]
        return perplexity_of(
            lengths, lambda numbers: self._reader.sums([both[number] for number in numbers]), self._device
        )

    def check_layers(self, layers: Layers) -> list[int]:
        """Return layers counted from 0, the embeddings; -1 is the last, "all" is all of them."""
        return check_layers(layers, self.num_layers)


def _reader_of(net: Gpt | Elmo, tokenizer: GptTokenizer | WordTokenizer, device: torch.device) -> GptInUse | ElmoInUse:
    if isinstance(net, Gpt) and isinstance(tokenizer, GptTokenizer):
        return GptInUse(net, tokenizer, device)
    assert isinstance(net, Elmo), net
    assert isinstance(tokenizer, WordTokenizer), tokenizer
    return ElmoInUse(net, tokenizer, device)
