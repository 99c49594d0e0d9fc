"""A model to use: `bw.load(folder)` and what can be asked of it.

Texts are encoded, sorted by length and packed into batches of about as many tokens, so that none waits for a longer
one and no padding is computed. Results come back in the order of the texts.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.interop.huggingface import ModelFolder, read_folder, write_folder
from bertworks.interop.sentence_folders import Pooling, find_encoder, read_pooling, write_pooling
from bertworks.locate import find_model
from bertworks.nn.bert import Bert, Encoded
from bertworks.nn.layers import freeze
from bertworks.nn.packing import Tokens, pack
from bertworks.text.encoding import Encoding
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import MASK, UNK

Pool = Literal["cls", "mean", "max"]
POOLS = ("cls", "mean", "max")
_TOKENS_AT_ONCE = 2_048  # on a CPU more do not go faster, and their layers no longer fit its caches
_TOKENS_AT_ONCE_ON_DEVICE = 65_536
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Features(NamedTuple):
    """The hidden states of one text."""

    encoding: Encoding
    hidden: NDArray[np.float32]  # [layers, tokens, width]


class Model:
    """A BERT with its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what its ids mean.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
    """

    def __init__(self, folder: ModelFolder, tokenizer: Tokenizer, pooling: Pooling, device: torch.device) -> None:
        self.net: Bert = folder.net.eval()
        freeze(self.net)
        self.tokenizer = tokenizer
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self.pooling = pooling
        self.max_length = min(pooling.max_length or 1 << 30, self.net.config.max_position_embeddings)
        self._device = device
        self._flash = _can_flash(self.net, device)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder that transformers opens too."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            write_folder(temporary, self.net, labels=self.labels, about=self.about)
            self.tokenizer.save(temporary)
            if self.pooling != Pooling():
                write_pooling(temporary, self.pooling, self.net.config.hidden_size)

    def fill(
        self, text: str, top_k: int = 5, *, targets: Sequence[str] | None = None, truncate: bool = False
    ) -> list[list[dict[str, Any]]]:
        """Guess what stands at each [MASK] of a text.

        Args:
            text: with one or more [MASK]; each is guessed by itself.
            top_k: how many guesses to give for each.
            targets: only these words, each a piece of the vocabulary.
            truncate: cut a text that is too long instead of refusing it.

        Returns:
            for every mask a list of {"token", "id", "score"}, the likeliest first; scores are probabilities.
        """
        self._need("mlm", "fill masks")
        if top_k < 1:
            raise UserError(f"{top_k} guesses are not possible; ask for 1 or more")
        mask_id = self.tokenizer.id_of(MASK)
        ids = self._cut(self._ids_with_masks(text, mask_id), truncate)
        places = [place for place, id in enumerate(ids) if id == mask_id]
        num_masks = text.count(MASK)
        if not num_masks:
            raise UserError(f"no [MASK] to fill in {text[:60]!r}")
        if len(places) < num_masks:
            raise UserError(f"{num_masks - len(places)} of {num_masks} [MASK] lie in what was cut; shorten the text")
        allowed = list(dict.fromkeys(self._piece_id(target) for target in targets)) if targets else None
        # A model of one direction guesses the next piece it comes to, which is not at the token itself.
        ahead = {"both": 0, "left_to_right": -1, "right_to_left": 1}[self.net.config.direction]
        with torch.inference_mode():
            hidden_TD = self.net(self._pack([ids], None))
            logits_MV = self.mlm_logits(hidden_TD[[place + ahead for place in places]]).float()
            scores_MV = logits_MV.softmax(-1)[:, : len(self.tokenizer)]
        return [self._best(scores_V, top_k, allowed) for scores_V in scores_MV.cpu()]

    def _ids_with_masks(self, text: str, mask_id: int) -> list[int]:
        """Encode a text in which [MASK], and nothing else, is a special token."""
        encoded = [self.tokenizer.encode(part).ids for part in text.split(MASK)]
        ids = encoded[0][:1]
        for number, part in enumerate(encoded):
            ids += ([mask_id] if number else []) + part[1:-1]
        return ids + encoded[0][-1:]

    def _piece_id(self, target: str) -> int:
        pieces = self.tokenizer.tokenize(target)
        if len(pieces) != 1:
            raise UserError(f"the target {target[:40]!r} is {len(pieces)} pieces ({' '.join(pieces)[:60]}), not one")
        if pieces == [UNK]:
            raise UserError(f"the target {target[:40]!r} is not in the vocabulary")
        return self.tokenizer.id_of(pieces[0])

    def _best(self, scores_V: Tensor, top_k: int, allowed: list[int] | None) -> list[dict[str, Any]]:
        candidates = torch.tensor(allowed) if allowed else torch.arange(len(scores_V))
        scores, places = scores_V[candidates].topk(min(top_k, len(candidates)))
        ids = candidates[places].tolist()
        return [
            {"token": self.tokenizer.pieces[id], "id": id, "score": score}
            for id, score in zip(ids, scores.tolist(), strict=True)
        ]

    def mlm_logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the MLM head's scores for rows of the last layer."""
        return self.net.heads["mlm"](hidden_MD, self.net.embeddings.token.weight)  # type: ignore[no-any-return]

    def nsp(self, text: str, following: str, *, truncate: bool = False) -> float:
        """Return the probability that the second text follows the first, as next sentences were learnt."""
        self._need("nsp", "tell next sentences")
        encoding = self.encode([text], [following], truncate=truncate)[0]
        with torch.inference_mode():
            tokens = self._pack([encoding.ids], [encoding.segment_ids])
            logits_S2 = self.net.heads["nsp"](self.net.pooled(self.net(tokens), tokens.packing))
        return float(logits_S2.float().softmax(-1)[0, 0])

    def embed(
        self,
        texts: Sequence[str],
        *,
        layers: Sequence[int] | None = None,
        pooling: Pool | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
    ) -> NDArray[np.float32]:
        """Return one vector for each text.

        Args:
            texts: to embed.
            layers: whose outputs to use, 0 for the embeddings, -1 for the last; several are put side by side.
            pooling: cls, mean or max over the tokens, [CLS] and [SEP] included.
            normalize: scale each vector to length 1.
            truncate: cut texts that are too long instead of refusing them.

        What is not given is as the folder says, else the mean of the last layer, not normalised.
        """
        chosen = self.check_layers(layers if layers is not None else [-1])
        pool = pooling or self.pooling.mode
        if pool not in POOLS:
            raise UserError(f"pooling {str(pool)[:40]!r} is not known; choose {', '.join(POOLS)}")
        vectors = np.empty((len(texts), len(chosen) * self.net.config.hidden_size), np.float32)
        for rows, tokens, encoded in self._encoded(self.encode(texts, truncate=truncate), chosen):
            hidden_TD = torch.cat([encoded.all_hidden[layer] for layer in chosen], dim=-1)
            vectors[rows] = _pool(hidden_TD.float(), tokens, pool).cpu().numpy()
        if self.pooling.normalize if normalize is None else normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def features(
        self, texts: Sequence[str], *, layers: Sequence[int] | None = None, truncate: bool = False
    ) -> list[Features]:
        """Return the hidden states of every token of each text: of all layers, 0 the embeddings, or of some."""
        chosen = self.check_layers(layers if layers is not None else range(self.net.config.num_hidden_layers + 1))
        return self.features_of(self.encode(texts, truncate=truncate), chosen)

    def features_of(self, encodings: Sequence[Encoding], layers: Sequence[int]) -> list[Features]:
        """Return the hidden states of texts that `encode` gave; layers count from 0."""
        found: list[Any] = [None] * len(encodings)
        for rows, tokens, encoded in self._encoded(encodings, layers):
            hidden = torch.stack([encoded.all_hidden[layer] for layer in layers]).float().cpu().numpy()
            starts = tokens.packing.cumulative_lengths.tolist()
            for place, row in enumerate(rows):
                found[row] = Features(encodings[row], hidden[:, starts[place] : starts[place + 1]])
        return found

    def attention(
        self, text: str, pair: str | None = None, *, truncate: bool = False
    ) -> tuple[Encoding, NDArray[np.float32]]:
        """Return a text's encoding and its attention weights, [layers, heads, from token, to token]."""
        if not self.net.blocks:
            raise UserError("the model has no layers, so nothing attends in it")
        encoding = self.encode([text], None if pair is None else [pair], truncate=truncate)[0]
        with torch.inference_mode():
            tokens = self._pack([encoding.ids], [encoding.segment_ids])
            attentions = self.net.encode(tokens, attentions=True).attentions
        return encoding, torch.stack([layer[0] for layer in attentions]).cpu().numpy()

    def _encoded(
        self, encodings: Sequence[Encoding], layers: Iterable[int]
    ) -> Iterator[tuple[list[int], Tokens, Encoded]]:
        """Give batches of texts of similar length: their rows, tokens and hidden states."""
        last_only = set(layers) == {self.net.config.num_hidden_layers}
        for rows in self._batches([len(encoding.ids) for encoding in encodings]):
            tokens = self._pack([encodings[row].ids for row in rows], [encodings[row].segment_ids for row in rows])
            with torch.inference_mode():  # ended before the yield, or it would hold in the caller's code too
                if last_only:
                    last = self.net(tokens)
                    encoded = Encoded(last, [last] * (self.net.config.num_hidden_layers + 1), [])
                else:
                    encoded = self.net.encode(tokens, hidden=True)
            yield rows, tokens, encoded

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        most = _TOKENS_AT_ONCE if self._device.type == "cpu" else _TOKENS_AT_ONCE_ON_DEVICE
        rows: list[int] = []
        size = 0
        for row in sorted(range(len(lengths)), key=lengths.__getitem__):
            if rows and size + lengths[row] > most:
                yield rows
                rows, size = [], 0
            rows.append(row)
            size += lengths[row]
        if rows:
            yield rows

    def _pack(self, ids: Sequence[Sequence[int]], segment_ids: Sequence[Sequence[int]] | None) -> Tokens:
        return pack(ids, segment_ids, self._device, flash=self._flash)

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, truncate: bool = False
    ) -> Sequence[Encoding]:
        """Encode texts, or pairs of them; one that is longer than the model reads is cut or refused."""
        if pairs is not None and self.net.config.type_vocab_size < 2:
            raise UserError("the model reads single texts, not pairs: it knows one segment (type_vocab_size 1)")
        encodings = self.tokenizer.encode_batch(texts, pairs, self.max_length if truncate else None)
        for number, encoding in enumerate(encodings):
            if len(encoding.ids) > self.max_length:
                raise self._too_long(len(encoding.ids), f"text {number + 1} of {len(texts)}")
        return encodings

    def _cut(self, ids: list[int], truncate: bool) -> list[int]:
        if len(ids) <= self.max_length:
            return ids
        if not truncate:
            raise self._too_long(len(ids), "the text")
        return ids[: self.max_length - 1] + ids[-1:]

    def _too_long(self, length: int, what: str) -> UserError:
        return UserError(
            f"{what} has {length:,} tokens with [CLS] and [SEP], and the model reads {self.max_length:,}; "
            "shorten it, or have it cut with truncate (--truncate)"
        )

    def check_layers(self, layers: Iterable[int]) -> list[int]:
        """Return layers counted from 0, the embeddings; -1 is the last."""
        num_layers = self.net.config.num_hidden_layers
        chosen = [layer if layer >= 0 else num_layers + 1 + layer for layer in layers]
        if not chosen or not all(0 <= layer <= num_layers for layer in chosen):
            raise UserError(f"layers {list(layers)} are not in a model of {num_layers}; 0 to {num_layers}, or -1 back")
        return chosen

    def _need(self, head: str, what: str) -> None:
        if head not in self.net.heads:
            found = ", ".join(self.net.heads) or "none"
            raise UserError(f"the model cannot {what}: it has no {head} head (heads: {found})")


def load(source: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32") -> Model:
    """Open a model: a folder in Hugging Face's form, a run folder, or a name in the local Hugging Face cache."""
    place = find_device(device)
    if dtype not in DTYPES:
        raise UserError(f"no number type is called {str(dtype)[:40]!r}; choose {', '.join(DTYPES)}")
    root = find_model(source)
    folder = find_encoder(root)
    opened, tokenizer, pooling = read_folder(folder), Tokenizer.from_folder(folder), read_pooling(root)
    if len(tokenizer) > opened.net.config.vocab_size:
        raise UserError(
            f"{folder}: its vocabulary has {len(tokenizer):,} pieces and its model {opened.net.config.vocab_size:,}"
        )
    opened.net.to(place, DTYPES[dtype])
    return Model(opened, tokenizer, pooling, place)


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # refused by `meta` too, a device without memory
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"the device {name[:40]!r} is not there; choose auto or cpu") from error
    return device


def _can_flash(net: Bert, device: torch.device) -> bool:
    """Tell whether the GPU has flash attention for a model: half precision, heads of a width that its kernel takes."""
    if device.type != "cuda" or net.embeddings.token.weight.dtype == torch.float32:
        return False
    width = net.config.head_width
    return width % 8 == 0 and width <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)


def _pool(hidden_TD: Tensor, tokens: Tokens, pool: Pool) -> Tensor:
    """Reduce the rows of each sequence to one."""
    starts = tokens.packing.cumulative_lengths
    if pool == "cls":
        return hidden_TD.index_select(0, starts[:-1])
    lengths = starts.diff()
    return torch.segment_reduce(hidden_TD, pool, lengths=lengths.long(), axis=0)
