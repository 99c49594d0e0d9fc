"""A BERT to use: what can be asked of it. `bw.load(folder)` gives it, see `loading.py`."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.inference.heads import (
    Predictor,
    Text,
    Units,
    answer_questions,
    best_guesses,
    check_top_k,
    choose_endings,
    classify_texts,
    fill_masks,
    perplexity_of,
    stated_cut,
    stated_threshold,
    tag_texts,
    task_of,
)
from bertworks.models.find import find_model
from bertworks.models.folder import save_tokenizer
from bertworks.models.kinds import ModelFolder, kind_of_network, read_model, write_model
from bertworks.models.sentence_transformers import (
    Layer,
    Pooling,
    check_widths,
    find_encoder,
    read_pooling,
    write_pooling,
)
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert
from bertworks.nn.compound import Compound
from bertworks.nn.device import check_tiles, find_device
from bertworks.nn.elmo import Elmo, ElmoTasks
from bertworks.nn.gpt import Gpt
from bertworks.nn.hidden_states import (
    Compute,
    Features,
    Layers,
    Pool,
    Rows,
    batches,
    check_layers,
    check_pool,
    check_texts_of,
    features_of,
    in_pairs,
    normalized,
    texts_of,
    vectors_of,
)
from bertworks.nn.layers import freeze
from bertworks.nn.lm import Sums, WordSoftmax
from bertworks.nn.packing import Packing, Tokens, pack, pack_lengths
from bertworks.tasks.examples import Cut
from bertworks.tasks.heads import Laying
from bertworks.tasks.windows import ORIGINAL_CUT
from bertworks.text.elmo_words import SpeltTokenizer, WordTokenizer, character_ids
from bertworks.text.gpt import GptInputs, GptTokenizer
from bertworks.text.tokenizer import Encoding, Tokenizer, check_texts
from bertworks.text.vocabulary import MASK

Guesses = list[dict[str, Any]]  # {"token", "id", "score"} at a mask, the likeliest first
POOLS = ("cls", "mean", "max", "last", "mean_sqrt_len_tokens", "weightedmean")


class Model:
    """A BERT with its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what its ids mean.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
        num_layers: without the embeddings.
        width: of a layer.
    """

    def __init__(self, folder: ModelFolder[Bert], tokenizer: Tokenizer, pooling: Pooling, device: torch.device) -> None:
        self.net: Bert = folder.net.eval()
        freeze(self.net)
        self.tokenizer = tokenizer
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self.pooling = pooling
        config = self.net.config
        self.num_layers, self.width = config.num_hidden_layers, config.hidden_size
        check_widths(pooling, self.width, "the folder of the model")
        self.max_length = min(pooling.max_length or 1 << 30, config.max_position_embeddings)
        self._device = device
        self._flash = can_flash(config.head_width, self.net.embeddings.token.weight.dtype, device)

    def __repr__(self) -> str:
        from bertworks.inference.describe import summary_of

        return summary_of(self)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder that transformers opens too, but for a tagger on frozen layers."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            write_model(temporary, self.net, labels=self.labels, about=self.about)
            save_tokenizer(self.tokenizer, temporary)
            if self.pooling.is_stated:
                write_pooling(temporary, self.pooling, self.width)

    @overload
    def fill(  # type: ignore[overload-overlap]
        self, text: str, top_k: int = 5, *, targets: Sequence[str] | str | None = None, truncate: bool = False
    ) -> list[Guesses]: ...
    @overload
    def fill(
        self,
        text: Sequence[str],
        top_k: int = 5,
        *,
        targets: Sequence[str] | str | None = None,
        truncate: bool = False,
    ) -> list[list[Guesses]]: ...
    def fill(
        self,
        text: str | Sequence[str],
        top_k: int = 5,
        *,
        targets: Sequence[str] | str | None = None,
        truncate: bool = False,
    ) -> list[Guesses] | list[list[Guesses]]:
        """Guess what stands at each [MASK] of a text, or of several.

        Args:
            text: one, or a list; each with one or more [MASK], which are guessed by themselves; what follows one
                without a space ends its word.
            top_k: how many guesses to give for each.
            targets: only these words, or this one, each a piece of the vocabulary.
            truncate: cut a text that is too long instead of refusing it.

        Returns:
            for every mask a list of {"token", "id", "score"}, the likeliest first; scores are probabilities. For a list
            of texts a list of these.

        Example:
            >>> model.fill("The [MASK] of the river is cold.", top_k=1)
            [[{"token": "temperature", "id": 4320, "score": 0.095}]]
        """
        self._need("mlm", "fill masks")
        found = fill_masks(self, texts_of("fill", text), top_k, targets, truncate=truncate)
        return found[0] if isinstance(text, str) else found

    def mlm_logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the MLM head's scores for rows of the last layer."""
        return self.net.heads["mlm"](hidden_MD, self.net.embeddings.token.weight)  # type: ignore[no-any-return]

    @overload
    def nsp(self, text: str, following: str, *, truncate: bool = False) -> float: ...
    @overload
    def nsp(
        self, text: str | Sequence[str], following: str | Sequence[str], *, truncate: bool = False
    ) -> float | list[float]: ...
    def nsp(
        self, text: str | Sequence[str], following: str | Sequence[str], *, truncate: bool = False
    ) -> float | list[float]:
        """Return the probability that the second text follows the first, as next sentences were learnt.

        Either may be a list, with a text for each of the other, or one for all; then a list is returned.

        Example:
            >>> model.nsp("He went to the shop.", ["He bought milk.", "Penguins are birds."])
            [0.99, 0.02]
        """
        self._need("nsp", "tell next sentences")
        texts_of("nsp", text), texts_of("nsp", following)
        encodings = self.encode(*in_pairs("nsp", text, following), truncate=truncate)
        found = np.empty(len(encodings))
        for numbers in batches([len(encoding) for encoding in encodings], self._device):
            some = [encodings[number] for number in numbers]
            with torch.inference_mode():
                tokens = self.pack([encoding.ids for encoding in some], [encoding.segment_ids for encoding in some])
                logits_S2 = self.net.heads["nsp"](self.net.pooled(self.net(tokens), tokens.packing))
                found[numbers] = logits_S2.float().softmax(-1)[:, 0].cpu()
        return float(found[0]) if isinstance(text, str) and isinstance(following, str) else found.tolist()

    def tag(self, texts: str | Sequence[Text], *, units: Units | None = None) -> list[Any]:
        """Find the entities of texts of any length.

        Args:
            texts: one text, or several; each as it is or as a list of words.
            units: what is tagged in a text as it is, word or character; else what the model learnt, or words.

        Returns:
            for each text (for one, at once) a list of {"type", "text", "start", "end", "score"}.

        Example:
            >>> model.tag("Kim lives in Seoul.")
            [{"type": "PER", "text": "Kim", "start": 0, "end": 3, "score": 0.99}, ...]
        """
        self._need("tag", "tag")
        labels = self.labels or [
            f"LABEL_{number}" for number in range(len(self.net.get_parameter("heads.tag.out.bias")))
        ]
        found = tag_texts(
            self.net, self.tokenizer, texts, labels, cut=self._cut_of(self.max_length), laying=self._laying(),
            units=units or self.about.get("units", "word"),
        )  # fmt: skip
        entities = [tagged.entities(labels) for tagged in found]
        return entities[0] if isinstance(texts, str) else entities

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        threshold: float | None = None,
    ) -> list[Any]:
        """Look for the answer to a question in a text of any length, or for those to several.

        Args:
            question: what is asked; one, or a list.
            context: where to look; one, for all questions, or a list with one for each.
            top_k: how many answers to give.
            threshold: see `answer_questions`; else what was chosen in training, where the model learnt to see that
                there is no answer.

        Returns:
            a list of {"text", "start", "end", "score"}, the best first; the text is "" where there is no answer. Where
            questions or contexts are a list, a list of these.

        Example:
            >>> model.answer("Where does Kim live?", "Kim lives in Seoul.")
            [{"text": "Seoul", "start": 13, "end": 18, "score": 0.97}]
        """
        self._need("span", "answer questions")
        texts_of("answer", question, "question")
        found = answer_questions(
            self.net, self.tokenizer, *in_pairs("answer", question, context), top_k=top_k,
            cut=self._cut_of(ORIGINAL_CUT.max_length), laying=self._laying(),
            threshold=stated_threshold(self.about) if threshold is None else threshold,
        )  # fmt: skip
        return found[0] if isinstance(question, str) and isinstance(context, str) else found

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        layers: Layers | None = None,
        pooling: Pool | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        truncate: bool = False,
    ) -> NDArray[np.float32]:
        """Return one vector for each text.

        Args:
            texts: to embed; for one by itself the vector, [width], for a list [texts, width].
            layers: whose outputs to use, 0 for the embeddings, -1 for the last, or "all"; several are put side by side.
            pooling: cls, mean, max, last, mean_sqrt_len_tokens or weightedmean of the tokens, [CLS] and [SEP] included.
            normalize: scale each vector to length 1.
            prompt: the name of one of the folder's prompts, which is put before each text; "" for none.
            truncate: cut texts that are too long instead of refusing them.

        What is not given is as the folder says, else the mean of the last layer, not normalised. The layers that a
        folder has after its pooling, and its truncate_dim, are for its own pooling of the last layer alone.

        Example:
            >>> model.embed(["a fine film", "a dull one"]).shape
            (2, 256)
        """
        is_one, texts = isinstance(texts, str), texts_of("embed", texts)
        stated = self.pooling
        is_own = layers is None and pooling is None
        chosen = self.check_layers(layers if layers is not None else [-1])
        pools = stated.modes if pooling is None else (pooling,)
        for pool in pools:
            check_pool(pool, POOLS)
        before, skip = stated.text_of(prompt), 0
        if before:
            check_texts(texts, None)
            texts = [before + text for text in texts]
            if not stated.include_prompt:
                skip = len(self.tokenizer.encode(before)) - 1
        encodings = self.encode(texts, truncate=truncate)
        lengths, compute = [len(encoding) for encoding in encodings], self._compute(encodings, chosen)
        vectors = vectors_of(lengths, len(chosen) * self.width, compute, pools, self._device, skip)
        for step in stated.steps:
            if isinstance(step, Layer):
                vectors = step(vectors) if is_own else vectors
            elif normalize is not False:
                vectors = normalized(vectors)
        vectors = vectors[:, : stated.truncate_dim] if is_own else vectors
        vectors = normalized(vectors) if normalize else vectors
        return vectors[0] if is_one else vectors

    def features(self, texts: Sequence[str], *, layers: Layers | None = None, truncate: bool = False) -> list[Features]:
        """Return the hidden states of every token of each text: of all layers, 0 the embeddings, or of some."""
        check_texts_of("features", texts)
        chosen = self.check_layers(layers if layers is not None else "all")
        encodings = self.encode(texts, truncate=truncate)
        return features_of(encodings, self._compute(encodings, chosen), self._device)

    def attention(
        self, text: str, pair: str | None = None, *, truncate: bool = False
    ) -> tuple[Encoding, NDArray[np.float32]]:
        """Return a text's encoding and its attention weights, [layers, heads, from token, to token]."""
        if not self.net.blocks:
            raise UserError("the model has no layers, so nothing attends in it")
        encoding = self.encode([text], None if pair is None else [pair], truncate=truncate)[0]
        with torch.inference_mode():
            tokens = self.pack([encoding.ids], [encoding.segment_ids])
            attentions = self.net.encode(tokens, attentions=True).attentions
        return encoding, torch.stack([layer[0] for layer in attentions]).cpu().numpy()

    def next_words(self, text: str, top_k: int = 5, *, truncate: bool = False) -> list[dict[str, Any]]:
        """Guess what comes after a text, with a left-to-right model: {"token", "id", "score"}, the likeliest first."""
        if self.net.config.direction != "left_to_right":
            raise UserError("the model does not read from left to right alone; fill(text) guesses at a [MASK]")
        return self.fill(f"{text} {MASK}", top_k, truncate=truncate)[-1]

    def perplexity(self, texts: Sequence[str], *, truncate: bool = False) -> float:
        """Return among how many choices a model of one direction hesitates at each guess in all texts."""
        if self.net.config.direction == "both":
            raise UserError("the model sees what it would have to guess; perplexity is of models of one direction")
        self._need("mlm", "guess")
        check_texts_of("perplexity", texts)
        encodings = self.encode(texts, truncate=truncate)

        def sums(numbers: list[int]) -> Sums:
            tokens = self.pack([encodings[number].ids for number in numbers], None)
            return self.net.lm_sums(self.net(tokens), tokens)

        return perplexity_of([len(encoding) for encoding in encodings], sums, self._device)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None
    ) -> dict[str, Any]: ...
    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]: ...
    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell the class, the score or the labels of each text, or pair of texts, as the model was fine-tuned to do.

        Returns:
            {"label", "score", "scores"}; {"score"} of a regression; {"labels", "scores"} of several labels. For a list
            of texts a list of these.

        Example:
            >>> model.classify("a fine film")["label"]
            "positive"
            >>> [result["label"] for result in model.classify(["a fine film", "a dull one"])]
            ["positive", "negative"]
        """
        results = classify_texts(self.predictor(), texts, pairs)
        return results[0] if isinstance(texts, str) else results

    @overload
    def choose(  # type: ignore[overload-overlap]
        self, context: str, endings: Sequence[str]
    ) -> dict[str, Any]: ...
    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[dict[str, Any]]: ...
    def choose(self, context: str | Sequence[str], endings: Sequence[Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell which ending goes best with a context: {"choice", "score", "scores"}, its place counted from 0.

        For a list of contexts, with a list of endings for each, a list of these.

        Example:
            >>> model.choose("She sits down.", ["She plays the piano.", "She melts."])["choice"]
            0
        """
        self._need("choose", "choose")
        if isinstance(context, str):
            return choose_endings(self.predictor(), [context], [endings])[0]
        return choose_endings(self.predictor(), context, endings)

    def predictor(self) -> Predictor:
        """Return what predicts for the examples of the task that the model was fine-tuned for."""
        task = task_of(self.net, self.labels, self.about)
        is_told = bool(self.about.get("task"))
        return Predictor(self.net, self.tokenizer, task, self._cut_of(self.max_length), self._laying(), is_told=is_told)

    def _cut_of(self, usual_length: int) -> Cut:
        """Return how much is read at once: as in fine-tuning, as far as the folder says."""
        return stated_cut(self.about, usual_length, self.max_length)

    def _laying(self) -> Laying:
        return Laying(self._device, self._flash)

    def _compute(self, encodings: Sequence[Encoding], layers: Sequence[int]) -> Compute:
        def compute(numbers: list[int]) -> Rows:
            some = [encodings[number] for number in numbers]
            tokens = self.pack([encoding.ids for encoding in some], [encoding.segment_ids for encoding in some])
            if set(layers) == {self.num_layers}:
                return Rows(tokens.packing.cumulative_lengths, [self.net(tokens)] * len(layers))
            all_hidden = self.net.encode(tokens, hidden=True).all_hidden
            return Rows(tokens.packing.cumulative_lengths, [all_hidden[layer] for layer in layers])

        return compute

    def pack(self, ids: Sequence[Sequence[int]], segment_ids: Sequence[Sequence[int]] | None) -> Tokens:
        """Lay sequences of ids end to end for the network."""
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

    def cut(self, ids: list[int], truncate: bool) -> list[int]:
        """Cut ids that are more than the model reads, or say that they are."""
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

    def check_layers(self, layers: Layers) -> list[int]:
        """Return layers counted from 0, the embeddings; -1 is the last, "all" is all of them."""
        return check_layers(layers, self.num_layers)

    def _need(self, head: str, what: str) -> None:
        if head not in self.net.heads:
            found = ", ".join(self.net.heads) or "none"
            way = "" if head in ("mlm", "nsp") else "; see `bertworks finetune`"
            raise UserError(f"the model cannot {what}: it has no {head} head (heads: {found}){way}")


# How texts go through the networks of GPT-1 and ELMo: what `LanguageModel` asks of either.
#
# GPT-1 reads pieces by their ids, as many as it has positions for. ELMo reads words by their characters, also those
# that its list does not have, and texts of any length; the ids of its list are only what it guesses.


_NO_LIMIT = 1 << 30


class ReadText(NamedTuple):
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

    def rows(self, texts: Sequence[ReadText], layers: Sequence[int]) -> Rows:
        """Return the layers asked for, 0 the embeddings."""
        tokens = self._pack(texts)
        if set(layers) == {self.num_layers}:
            return Rows(tokens.packing.cumulative_lengths, [self.net(tokens)] * len(layers))
        all_hidden = self.net.all_hidden(tokens)
        return Rows(tokens.packing.cumulative_lengths, [all_hidden[layer] for layer in layers])

    def sums(self, texts: Sequence[ReadText]) -> Sums:
        """Return the sums of all guesses in texts."""
        tokens = self._pack(texts)
        return self.net.lm_sums(self.net(tokens), tokens)

    def next_scores(self, text: ReadText) -> Tensor:
        """Return how likely each piece comes next, [V]; of a text that is too long the end is read."""
        ids = text.encoding.ids[-self.max_length :]
        if not ids:
            raise UserError("a GPT-1 has no sign for a text's beginning; give it at least a word to go on from")
        hidden_TD = self.net(pack([ids], None, self._device, flash=self._flash))
        return self.net.lm_logits(hidden_TD[-1:]).float().softmax(-1)[0]

    def write(self, folder: Path, opened: ModelFolder[Any]) -> None:
        """Write the network into a folder, with what else was in the one that it comes from."""
        write_model(folder, self.net, labels=opened.labels, about=opened.about)

    def _pack(self, texts: Sequence[ReadText]) -> Tokens:
        return pack([text.encoding.ids for text in texts], None, self._device, flash=self._flash)


class ElmoInUse:
    """Reads texts with an ELMo."""

    name = "an ELMo"
    max_length = _NO_LIMIT

    def __init__(self, net: Elmo, tokenizer: WordTokenizer, device: torch.device) -> None:
        self.net, self.tokenizer, self._device = net, tokenizer, device
        self.num_layers, self.width = net.config.num_layers, 2 * net.config.projection_size

    def rows(self, texts: Sequence[ReadText], layers: Sequence[int]) -> Rows:
        """Return the layers asked for, 0 the words themselves."""
        all_hidden, packing = self._read(texts)
        return Rows(packing.cumulative_lengths, [all_hidden[layer] for layer in layers])

    def sums(self, texts: Sequence[ReadText]) -> Sums:
        """Return the sums of all guesses in texts, of both directions."""
        self._need_softmax()
        tokens = pack([text.encoding.ids for text in texts], device=self._device)
        return self.net.lm_sums(self._read(texts)[0], tokens)

    def next_scores(self, text: ReadText) -> Tensor:
        """Return how likely each word of the list comes next, [V]."""
        softmax = self._need_softmax()
        characters_TK, packing = spelt([self.tokenizer.words(text.text)[:-1]], self._device)
        row_D = self.net.read(characters_TK, packing)[-1][-1, : self.net.config.projection_size]
        return (softmax.weight @ row_D + softmax.bias).softmax(-1)

    def write(self, folder: Path, opened: ModelFolder[Any]) -> None:
        """Write the network into a folder, with what else was in the one that it comes from."""
        write_model(folder, self.net, about=opened.about)

    def _need_softmax(self) -> WordSoftmax:
        if self.net.softmax is None:
            raise UserError("this ELMo gives layers and cannot guess: its folder has no softmax")
        return self.net.softmax

    def _read(self, texts: Sequence[ReadText]) -> tuple[list[Tensor], Packing]:
        characters_TK, packing = spelt([self.tokenizer.words(text.text) for text in texts], self._device)
        return self.net.read(characters_TK, packing), packing


def spelt(texts: Sequence[Sequence[str]], device: torch.device) -> tuple[Tensor, Packing]:
    """Return the characters of texts given as words (`<S>` and `</S>` included), and how they lie end to end."""
    table = character_ids([word for words in texts for word in words]).astype(np.int16)
    return torch.from_numpy(table).to(device), pack_lengths([len(words) for words in texts], device)


# A GPT-1 or an ELMo to use: what `bw.load` gives for their folders.
#
# Both give hidden states, guess the next word and tell how likely they find a text. What only a BERT can do is
# refused in words that say what they can.


POOLS_of_language_models = ("mean", "max", "last")
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
        from bertworks.inference.describe import summary_of

        return summary_of(self)

    def __getattr__(self, name: str) -> Any:

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
        check_pool(pool := pooling or "mean", POOLS_of_language_models)
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
        both = [ReadText(*pair) for pair in zip(texts, encodings, strict=True)]
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
            scores_V = self._reader.next_scores(ReadText(text, encoding))[: len(self.tokenizer)].cpu()
        return best_guesses(scores_V, self.tokenizer.pieces, top_k)

    def perplexity(self, texts: Sequence[str], *, truncate: bool = False) -> float:
        """Return among how many choices the model hesitates at each guess in all texts; an ELMo's, of both ways."""
        check_texts_of("perplexity", texts)
        encodings = self.encode(texts, truncate=truncate)
        both = [ReadText(*pair) for pair in zip(texts, encodings, strict=True)]
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


# A fine-tuned model of another kind than BERT, to use: what `bw.load` gives for its folder.
#
# It does what it was fine-tuned for, with the same methods and results as a BERT; what else only a BERT can do is
# refused in words that say so.


_METHODS_of_task_model = ("classify", "choose", "tag", "answer", "predictor", "save")
_NO_LIMIT_of_task_model = 65_536  # words that an ELMo reads at once: as many as may be learnt with


class Traits(NamedTuple):
    """What is particular to a kind of network.

    Attributes:
        name: as an error calls it.
        max_length: the most tokens that it reads.
        head_widths: of its attention's heads; none where it has no such attention.
        tokenizer: makes a task's inputs, given the tokenizer of the folder; None: that one makes them.
    """

    name: str
    max_length: int
    head_widths: list[int]
    tokenizer: Callable[[Any], Any] | None = None


def _traits_of(net: Any) -> Traits:
    if isinstance(net, Gpt):
        width = net.config.n_embd // net.config.n_head
        return Traits("a fine-tuned GPT-1", net.config.n_positions, [width], GptInputs)
    if isinstance(net, ElmoTasks):
        return Traits("a fine-tuned ELMo", _NO_LIMIT_of_task_model, [], partial(_spelling_for, net))
    assert isinstance(net, Compound), net
    widths = [encoder.head_width for encoder in net.config.encoders]
    length = net.config.max_position_embeddings
    return Traits("a model of several parts", length, widths)


def _spelling_for(net: ElmoTasks, tokenizer: SpeltTokenizer) -> SpeltTokenizer:
    """Have a network read the words that its tokenizer numbers."""
    net.read_words(tokenizer.met)
    return tokenizer


class TaskModel:
    """A network with a task's head and its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what makes its inputs.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
        max_length: the most tokens that it reads at once.
    """

    def __init__(self, folder: ModelFolder[Any], tokenizer: Any, device: torch.device) -> None:
        self.net: Any = folder.net.eval()
        freeze(self.net)
        self._traits = _traits_of(self.net)
        self.tokenizer: Tokenizer = self._traits.tokenizer(tokenizer) if self._traits.tokenizer else tokenizer
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self.max_length, dtype = self._traits.max_length, next(self.net.parameters()).dtype
        widths = self._traits.head_widths
        self._laying = Laying(device, bool(widths) and all(can_flash(width, dtype, device) for width in widths))

    def __repr__(self) -> str:
        from bertworks.inference.describe import summary_of

        return summary_of(self)

    def __getattr__(self, name: str) -> Any:

        if name.startswith("_") or not hasattr(Model, name):
            raise AttributeError(f"a fine-tuned model has no {name}")
        raise UserError(
            f"{self._traits.name} has no {name}, which is BERT's; it has {', '.join(_METHODS_of_task_model)}"
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            write_model(Path(temporary), self.net, labels=self.labels, about=self.about)
            save_tokenizer(self.tokenizer, temporary)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None
    ) -> dict[str, Any]: ...
    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]: ...
    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell the class, the score or the labels of each text, or pair of texts; see `Model.classify`."""
        results = classify_texts(self.predictor(), texts, pairs)
        return results[0] if isinstance(texts, str) else results

    @overload
    def choose(  # type: ignore[overload-overlap]
        self, context: str, endings: Sequence[str]
    ) -> dict[str, Any]: ...
    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[dict[str, Any]]: ...
    def choose(self, context: str | Sequence[str], endings: Sequence[Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell which ending goes best with a context; see `Model.choose`."""
        self._need("choose", "choose")
        if isinstance(context, str):
            return choose_endings(self.predictor(), [context], [endings])[0]
        return choose_endings(self.predictor(), context, endings)

    def predictor(self) -> Predictor:
        """Return what predicts for the examples of the task that the model was fine-tuned for."""
        task, cut = task_of(self.net, self.labels, self.about), stated_cut(self.about, self.max_length, self.max_length)
        return Predictor(self.net, self.tokenizer, task, cut, self._laying, is_told=bool(self.about.get("task")))

    def tag(self, texts: str | Sequence[Text], *, units: Units | None = None) -> list[Any]:
        """Find the entities of texts of any length; see `Model.tag`."""
        self._need("tag", "tag")
        labels = self.labels or [f"LABEL_{number}" for number in range(self.net.heads["tag"].num_outputs)]
        found = tag_texts(
            self.net, self.tokenizer, texts, labels, laying=self._laying,
            cut=stated_cut(self.about, self.max_length, self.max_length),
            units=units or self.about.get("units", "word"),
        )  # fmt: skip
        entities = [tagged.entities(labels) for tagged in found]
        return entities[0] if isinstance(texts, str) else entities

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        threshold: float | None = None,
    ) -> list[Any]:
        """Look for the answer to a question in a text of any length, or for several; see `Model.answer`."""
        self._need("span", "answer questions")
        texts_of("answer", question, "question")
        found = answer_questions(
            self.net, self.tokenizer, *in_pairs("answer", question, context), top_k=top_k, laying=self._laying,
            cut=stated_cut(self.about, ORIGINAL_CUT.max_length, self.max_length),
            threshold=stated_threshold(self.about) if threshold is None else threshold,
        )  # fmt: skip
        return found[0] if isinstance(question, str) and isinstance(context, str) else found

    def _need(self, head: str, what: str) -> None:
        if head not in self.net.heads:
            found = ", ".join(self.net.heads) or "none"
            raise UserError(
                f"the model cannot {what}: it has no {head} head (heads: {found}); see `bertworks finetune`"
            )


# `bw.load`: a model folder of any kind becomes a model to use, on a device.


AnyModel = Model | LanguageModel | TaskModel
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(source: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32") -> AnyModel:
    """Open a model: a folder in Hugging Face's form, a run folder, a shipped model, or one in Hugging Face's cache.

    A BERT is a `Model`; a GPT-1 or an ELMo is a `LanguageModel`, unless it was fine-tuned: then it is a `TaskModel`.
    """
    place = find_device(device)
    if dtype not in _DTYPES:
        raise UserError(f"no number type is called {str(dtype)[:40]!r}; choose {', '.join(_DTYPES)}")
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_model(folder)
    if isinstance(opened.net, Elmo | ElmoTasks) and dtype != "float32":
        raise UserError(f"an ELMo is computed in float32, not in {dtype}")
    tokenizer = kind_of_network(opened.net).tokenizer.from_folder(folder)
    if len(tokenizer) > opened.net.config.vocab_size:
        raise UserError(
            f"{folder}: its vocabulary has {len(tokenizer):,} pieces and its model {opened.net.config.vocab_size:,}"
        )
    check_tiles(place, _DTYPES[dtype])
    opened.net.to(place, _DTYPES[dtype])
    if isinstance(opened.net, Compound | ElmoTasks) or (isinstance(opened.net, Gpt) and "task" in opened.about):
        return TaskModel(opened, tokenizer, place)
    if isinstance(tokenizer, Tokenizer):
        return Model(opened, tokenizer, read_pooling(root), place)
    assert not isinstance(tokenizer, SpeltTokenizer), "its model is of a task"
    return LanguageModel(opened, tokenizer, place)
