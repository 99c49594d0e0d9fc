"""A model in use: `bw.load(source)` opens one of any kind, and the methods of `Model` are what it can do.

- One class for BERTs, GPT-1, ELMo, encoders side by side, and what was fine-tuned on any of them. `methods` says what
  a model can do; everything else is refused in a line that says what is missing and what there is.
- Every method takes a text or a list of them, and returns one result or a list.
- Texts are sorted by length and packed, so that no padding is computed and no answer depends on its neighbours in a
  batch (`features.py`). What the heads of fine-tuned models say is in `heads.py`.
- GPT-1 reads pieces, as many as it has positions for. ELMo reads words by their characters, also those that its list
  does not have, and texts of any length; the ids of its list are only what it guesses.
"""

import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import CorruptFile, UserError
from bertworks.export.runtime import OnnxEngine, open_exported
from bertworks.inference.describe import facts_of, repr_of
from bertworks.inference.features import (
    Compute,
    Features,
    Layers,
    Pool,
    check_layers,
)
from bertworks.inference.heads import (
    Guesses,
    Result,
    Text,
    Units,
    best_guesses,
    check_texts_of,
    check_top_k,
    texts_of,
)
from bertworks.inference.readings import (
    Attention,
    choice_examples,
    read_answering,
    read_attention,
    read_embed,
    read_examples,
    read_features,
    read_fill,
    read_nsp,
    read_tagging,
    text_examples,
)
from bertworks.models.folder import MODULES_FILE, OWN_FILE, find_encoder, find_model, num_positions
from bertworks.models.kinds import ModelFolder, ModelKind, kind_of_network, num_labels, read_model, write_model
from bertworks.models.sentence_transformers import Pooling, check_widths, read_pooling, write_pooling
from bertworks.models.weights import put_whole
from bertworks.nn.attention import Packing, Tokens, batches, can_flash, pack, pack_lengths
from bertworks.nn.bert import Bert, Sums
from bertworks.nn.bilstm import Compound
from bertworks.nn.elmo import Elmo, ElmoTasks
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import check_tiles, find_device, freeze, is_fast_on_cpu, torch_on_one_thread
from bertworks.tasks.columns import as_columns
from bertworks.tasks.evaluation import Scored, score_items
from bertworks.tasks.heads import KINDS, BatchLayout, Items
from bertworks.tasks.task import Cut, Example, Task, TaskKind
from bertworks.text.elmo_words import character_ids
from bertworks.text.tokenizer import Encoding, Tokenizer
from bertworks.text.vocabulary import MASK

if TYPE_CHECKING:
    from bertworks.export.onnx import Exported

_log = logging.getLogger(__name__)
EXAMPLES_AT_ONCE = 4_096  # so that memory does not grow with a file, and lengths within them are much alike
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
_KINDS = {"classify": "classify", "choose": "choose", "tag": "tag", "span": "answer"}  # of the task, by the head
_METHODS = {  # what each does, and the head that it needs
    "fill": ("fill masks", "mlm"),
    "nsp": ("predict next sentences", "nsp"),
    "classify": ("classify texts", "classify"),
    "tag": ("tag", "tag"),
    "answer": ("answer questions", "span"),
    "choose": ("choose", "choose"),
    "embed": ("embed texts", ""),
    "features": ("give the features of tokens", ""),
    "attention": ("show attention", ""),
    "next_words": ("predict next words", ""),
    "perplexity": ("score how likely a text is", ""),
}


def load(source: str | os.PathLike[str], *, device: str = "auto", dtype: str | None = None) -> "Model":
    """Open a model: a folder in Hugging Face's form, a run folder, a shipped model, or one in Hugging Face's cache.

    Args:
        source: the folder or the name; or a file that `bertworks export` wrote, for ONNX Runtime.
        device: auto, cpu, cuda or mps.
        dtype: float32, bfloat16, float16 or int8; or auto: bfloat16 where this processor or GPU is fast at it, else
            float32. None: float32, or int8 if the folder was converted to it.

    Example:
        >>> bw.load("mini").methods
        ['fill', 'nsp', 'embed', 'features', 'attention']
    """
    place = find_device(device)
    if dtype not in (None, *DTYPES):
        raise UserError(f"unknown number type {str(dtype)[:40]!r}; choose {', '.join(DTYPES)}")
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".onnx" and Path(source).is_file():
        return _load_exported(Path(source), device, dtype)
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_model(folder)
    tokenizer = kind_of_network(opened.net).tokenizer.from_folder(folder)
    if len(tokenizer) > opened.net.config.vocab_size:
        raise UserError(
            f"{folder}: its vocabulary has {len(tokenizer):,} pieces and its model {opened.net.config.vocab_size:,}"
        )
    is_int8 = opened.int8_factors is not None and place.type == "cpu" and dtype in (None, "auto")
    dtype = _put(opened.net.eval(), place, "int8" if is_int8 else dtype or "float32", opened.int8_factors)
    is_stated = isinstance(opened.net, Bert) and (root / MODULES_FILE).exists()
    return Model(opened, tokenizer, read_pooling(root) if is_stated else Pooling(), place, dtype)


def _load_exported(path: Path, device: str, dtype: str | None) -> "Model":
    if device not in ("auto", "cpu"):
        raise UserError(f"{path}: an exported model is computed on the CPU, not on {device}; leave the device out")
    opened, tokenizer, pooling, stored = open_exported(path)
    if dtype not in (None, "auto", stored):
        raise UserError(f"{path} was exported in {stored}; for {dtype} open the folder that it was exported from")
    return Model(opened, tokenizer, pooling, torch.device("cpu"), stored)


def _put(net: Any, device: torch.device, dtype: str, int8_factors: Any = None) -> str:
    """Have a network computed on a device in numbers of a type; returns the type."""
    is_bert, on_cpu = isinstance(net, Bert), device.type == "cpu"
    if dtype == "auto":
        is_fast_there = is_fast_on_cpu("bfloat16") if on_cpu else can_flash(64, torch.bfloat16, device)
        dtype = "bfloat16" if is_bert and is_fast_there else "float32"
    if isinstance(net, Elmo | ElmoTasks) and dtype != "float32":
        raise UserError(f"an ELMo is computed in float32, not in {dtype}")
    if dtype == "int8" and not (is_bert and on_cpu):
        raise UserError(f"int8 is for a BERT on a CPU, and this is {'a BERT' if is_bert else 'none'} on {device.type}")
    if is_bert and on_cpu and dtype in ("bfloat16", "int8"):
        if is_fast_on_cpu(dtype):
            from bertworks.nn.cpu import CpuEngine  # compiled code, which a single text in float32 does without

            net.engine = CpuEngine(net.float(), dtype, int8_factors)
            return dtype
        if dtype == "int8":
            _log.warning("this processor has no instructions for int8 (VNNI or AMX); the model is computed in float32")
            dtype = "float32"
    check_tiles(device, getattr(torch, dtype))
    net.to(device, getattr(torch, dtype))
    return dtype


class Model:
    """A network with its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what its ids mean.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
        methods: the names of the methods that the model has an answer to.
        num_layers, width: of its hidden states, without the embeddings; an ELMo's width has both directions.
        max_length: the most tokens that it reads at once.
        pooling: how its folder wants texts embedded.
        dtype: in what numbers it is computed; of bfloat16 and int8 on a CPU, the matrix products of its layers.
    """

    def __init__(
        self, opened: ModelFolder[Any], tokenizer: Any, pooling: Pooling, device: torch.device, dtype: str = "float32"
    ) -> None:
        net: Any = opened.net
        freeze(net)
        self.net, self.device, self.dtype, self.pooling = net, device, dtype, pooling
        self.labels, self.about, self.unused = opened.labels, opened.about, opened.unused
        self.heads = list(getattr(net, "heads", ()))
        self.is_task_only = isinstance(net, Compound | ElmoTasks) or (isinstance(net, Gpt) and "task" in opened.about)
        self.tokenizer = self.kind.task_inputs(net, tokenizer) if self.is_task_only else tokenizer
        self.num_layers = self.width = 0
        self.max_length = self.kind.max_length or 0
        config, head_widths = net.config, list[int]()
        if isinstance(net, Bert):
            self.num_layers, self.width, head_widths = config.num_hidden_layers, config.hidden_size, [config.head_width]
            if pooling.steps:
                check_widths(pooling, self.width, "the folder of the model")
            self.max_length = min(pooling.max_length or 1 << 30, config.max_position_embeddings)
        elif isinstance(net, Gpt):
            self.num_layers, self.width, self.max_length = config.n_layer, config.n_embd, config.n_positions
            head_widths = [config.n_embd // config.n_head]
        elif isinstance(net, Compound):
            self.max_length, head_widths = config.max_position_embeddings, [one.head_width for one in config.encoders]
        elif isinstance(net, Elmo):
            self.num_layers, self.width = config.num_layers, 2 * config.projection_size
        stored = next(net.parameters()).dtype
        self.flash = bool(head_widths) and all(can_flash(width, stored, device) for width in head_widths)
        self.methods = [method for method in _METHODS if not self._why_not(method)]

    def __repr__(self) -> str:
        return repr_of(self.describe())

    @property
    def kind(self) -> ModelKind:
        """The record of the model's kind."""
        return kind_of_network(self.net)

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for programs, as plain JSON values.

        Returns:
            kind, title, sizes, heads, methods, labels, task, max_length (None: any length), vocabulary (its kind, size
            and rules), language (where it is known), pooling, parameters (by part), dtype and device.

        Example:
            >>> about = bw.load("mini").describe()
            >>> about["title"], about["language"], about["max_length"], about["parameters"]["total"]
            ('BERT', 'en', 512, 11267900)
        """
        rules = getattr(getattr(self.tokenizer, "tokenizer", self.tokenizer), "rules", None)
        first = next(self.net.parameters())
        return {
            **facts_of(self.net),
            "title": self.title,
            "methods": self.methods,
            "labels": self.labels,
            "task": self.about.get("task"),
            "max_length": None if self.kind.max_length else self.max_length,
            "vocabulary": {"kind": self.kind.tokenizer.kind, "size": len(self.tokenizer)}
            | (rules._asdict() if rules else {}),
            "language": (self.about.get("shipped") or {}).get("language"),
            "pooling": self.pooling.as_json(),
            "dtype": self.dtype,
            "device": str(first.device),
        }

    @property
    def title(self) -> str:
        """The kind of model, as messages name it."""
        name = self.kind.title.partition(" ")[2]
        return f"fine-tuned {name}" if self.is_task_only and isinstance(self.net, Gpt) else name

    @property
    def is_exported(self) -> bool:
        """Whether it is an ONNX file, which has no layers of its own to look into, to save or to train."""
        return isinstance(getattr(self.net, "engine", None), OnnxEngine)

    def check_can(self, method: str) -> None:
        """Refuse a method that the model cannot do; the message lists what it can."""
        if reason := self._why_not(method):
            can = ", ".join(self.methods) or "nothing by itself"
            raise UserError(f"this {self.title} cannot {_METHODS[method][0]}: {reason}; it can: {can}")

    def _why_not(self, method: str) -> str:
        """Return why the model has no answer to a method, "" where it has."""
        head, net = _METHODS[method][1], self.net
        if head:
            message = "" if head in ("mlm", "nsp") else "; see `bertworks finetune`"
            found = ", ".join(self.heads) or "none"
            if head not in self.heads:
                return f"it has no {head} head (heads: {found}){message}"
            is_unknown = isinstance(net, Gpt) and not self.is_task_only
            return "its folder does not say what its head was fine-tuned for" if is_unknown else ""
        if self.is_task_only:
            return "it does its task and nothing else"
        if method == "attention":
            if not isinstance(net, Bert):
                return "only a BERT does"
            if self.is_exported:
                return "an exported model does not give it; open the folder that it was exported from"
            return "" if net.blocks else "it has no layers, so nothing attends in it"
        if method in ("next_words", "perplexity"):
            if isinstance(net, Elmo):
                return "" if net.softmax is not None else "its folder has no softmax"
            if isinstance(net, Bert) and method == "next_words" and net.config.direction != "left_to_right":
                return "it does not read from left to right alone; fill(text) guesses at a [MASK]"
            if isinstance(net, Bert) and net.config.direction == "both":
                return "it sees the words it would have to predict; perplexity needs a model of one direction"
            if isinstance(net, Bert):
                return self._why_not("fill")
        return ""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder; transformers opens that of a BERT or a GPT-1, but for a tagger on frozen layers.

        A model in bfloat16 is written in it; one in int8 in float32, for `bw.convert` makes folders in int8.

        Example:
            >>> bw.load("mini").save("mini-folder")
            >>> bw.load("mini-folder").methods
            ['fill', 'nsp', 'embed', 'features', 'attention']
        """
        from bertworks.files import atomic_folder

        if self.is_exported:
            raise UserError("an exported model is not saved as a folder; copy its file, or the folder it was made of")

        def put(place: Path, tensors: Mapping[str, Tensor]) -> None:
            is_half = self.dtype == "bfloat16"  # of which a CPU keeps float32 beside what it computes with
            put_whole(place, {name: one.bfloat16() for name, one in tensors.items()} if is_half else tensors)

        with atomic_folder(folder) as temporary:
            write_model(temporary, self.net, labels=self.labels, about=self.about, put=put)
            self.tokenizer.save(temporary, max_length=num_positions(temporary))
            if self.pooling.is_stated:
                write_pooling(temporary, self.pooling, self.width)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        int8: bool = False,
        portable: bool = False,
        calibrate: Sequence[str] | None = None,
    ) -> "Exported":
        """Write a BERT to an ONNX file with its tokenizer and labels, compared with this model; `bw.load` opens it.

        Args:
            path: the file, whose name ends in .onnx.
            int8: multiply matrices in int8; the ranges of their inputs are found while computing, or by `calibrate`.
            portable: use standard operators only, for other programs than ONNX Runtime.
            calibrate: some hundreds of texts, by which the ranges of int8 are fixed; with standard operators only.

        Returns:
            what was written: nodes, megabytes, outputs, the largest difference from this model's results, and more.
        """
        from bertworks.export.onnx import export

        return export(
            self.net, self.tokenizer, path, labels=self.labels, about=self.about, pooling=self.pooling,
            embed=lambda encodings: read_embed(self, encodings).result(self), int8=int8, portable=portable,
            texts=calibrate,
        )  # fmt: skip

    # Reading texts.

    @overload
    def encode(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None, *, truncate: bool = False
    ) -> Encoding: ...
    @overload
    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, truncate: bool = False
    ) -> Sequence[Encoding]: ...
    def encode(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None, *, truncate: bool = False
    ) -> Encoding | Sequence[Encoding]:
        """Encode texts, or pairs of them; one that is longer than the model reads is cut or refused.

        Example:
            >>> bw.load("mini").encode("a fine film").tokens
            ['[CLS]', 'a', 'fine', 'film', '[SEP]']
        """
        listed, seconds = _listed("encode", texts), None if pairs is None else _listed("encode", pairs)
        encodings: Sequence[Encoding]
        if hasattr(self.tokenizer, "encode_batch"):
            if seconds is not None and isinstance(self.net, Bert) and self.net.config.type_vocab_size < 2:
                raise UserError("the model reads single texts, not pairs: it knows one segment (type_vocab_size 1)")
            encodings = self.tokenizer.encode_batch(listed, seconds, self.max_length if truncate else None)
        else:
            if seconds is not None:
                raise UserError(f"this {self.title} reads single texts, not pairs")
            encodings = [self.tokenizer.encode(text) for text in listed]
            encodings = [encoding.cut(self.max_length) for encoding in encodings] if truncate else encodings
        for number, encoding in enumerate(encodings, 1):
            if len(encoding) > self.max_length:
                raise self.too_long(len(encoding), f"text {number} of {len(listed)}")
        return encodings[0] if isinstance(texts, str) else encodings

    def too_long(self, length: int, what: str) -> UserError:
        """Return the error about a text that is longer than the model reads."""
        special = " with [CLS] and [SEP]" if isinstance(self.tokenizer, Tokenizer) else ""
        return UserError(
            f"{what} has {length:,} tokens{special}, and the model reads {self.max_length:,}; shorten it, or have it "
            "cut with truncate (--truncate)"
        )

    def pack(self, ids: Sequence[Sequence[int]], segment_ids: Sequence[Sequence[int]] | None = None) -> Tokens:
        """Concatenate sequences of ids for the network."""
        return pack(ids, segment_ids, self.device, flash=self.flash)

    def check_layers(self, layers: Layers) -> list[int]:
        """Return layers counted from 0, the embeddings; -1 is the last, "all" is all of them."""
        return check_layers(layers, self.num_layers)

    # What a pre-trained model guesses.

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
        """Predict the word at each [MASK] of a text, or of several.

        Args:
            text: one, or a list; each with one or more [MASK], which are guessed by themselves; what follows one
                without a space ends its word.
            top_k: how many guesses to give for each.
            targets: only these words, or this one, each a piece of the vocabulary.
            truncate: cut a text that is too long instead of refusing it.

        Returns:
            for every mask a list of {"token", "id", "score"}, the most likely first; scores are probabilities. For a
            list of texts a list of these.

        Example:
            >>> model = bw.load("mini")
            >>> model.fill("The [MASK] of the river is cold.", top_k=1)
            [[{'token': 'temperature', 'id': 2042, 'score': 0.09...}]]
        """
        found = read_fill(self, text, top_k, targets, truncate=truncate).result(self)
        return found[0] if isinstance(text, str) else found

    def mlm_logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the MLM head's scores for rows of the last layer."""
        self.check_can("fill")
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
        """Return the probability that the second text follows the first, by the next-sentence head.

        Either may be a list, with a text for each of the other, or one for all; then a list is returned.

        Example:
            >>> model = bw.load("mini")
            >>> model.nsp("He went to the shop.", ["He bought milk.", "Penguins are birds."])
            [0.98..., 0.01...]
        """
        found = read_nsp(self, text, following, truncate=truncate).result(self)
        return found[0] if isinstance(text, str) and isinstance(following, str) else found

    @overload
    def next_words(  # type: ignore[overload-overlap]
        self, text: str, top_k: int = 5, *, truncate: bool = False
    ) -> Guesses: ...
    @overload
    def next_words(self, text: Sequence[str], top_k: int = 5, *, truncate: bool = False) -> list[Guesses]: ...
    def next_words(
        self, text: str | Sequence[str], top_k: int = 5, *, truncate: bool = False
    ) -> Guesses | list[Guesses]:
        """Predict the next words of a text, with a model that reads from left to right.

        Args:
            text: one, or a list, to continue; of a GPT-1 at least a word.
            top_k: how many guesses to give.
            truncate: read the end of a text that is too long instead of refusing it; of a BERT its beginning.

        Returns:
            a list of {"token", "id", "score"}, the most likely first; scores are probabilities. GPT-1 guesses pieces.
            For a list of texts a list of these.
        """
        self.check_can("next_words")
        check_top_k(top_k)
        texts = _listed("next_words", text)
        if isinstance(self.net, Bert):
            found = [masks[-1] for masks in self.fill([f"{one} {MASK}" for one in texts], top_k, truncate=truncate)]
        else:
            scores = (self._next_scores(one, truncate) for one in texts)
            found = [best_guesses(self.tokenizer, scores_V, top_k) for scores_V in scores]
        return found[0] if isinstance(text, str) else found

    def _next_scores(self, text: str, truncate: bool) -> Tensor:
        """Return how likely each piece, or word of the list, comes next, [V]."""
        encoding = self.tokenizer.encode(text)
        if len(encoding) > self.max_length and not truncate:
            raise self.too_long(len(encoding), "the text")
        net, ids = self.net, encoding.ids[-self.max_length :]
        with torch.inference_mode():
            if isinstance(net, Elmo):
                assert net.softmax is not None, "checked before"
                characters_TK, packing = spelt([self.tokenizer.words(text)[:-1]], self.device)
                row_D = net.read(characters_TK, packing)[-1][-1, : net.config.projection_size]
                scores_V = (net.softmax.weight @ row_D + net.softmax.bias).softmax(-1)
            elif not ids:
                raise UserError("a GPT-1 has no start-of-text token; give it at least one word to continue")
            else:
                scores_V = net.lm_logits(net(self.pack([ids]))[-1:]).float().softmax(-1)[0]
        return scores_V[: len(self.tokenizer)].cpu()

    def perplexity(self, texts: str | Sequence[str], *, truncate: bool = False) -> float:
        """Return the perplexity of a language model on a text, or on several: one number over all of them.

        A BERT must read in one direction; an ELMo's guesses are those of both of its directions.
        """
        self.check_can("perplexity")
        listed, net = _listed("perplexity", texts), self.net
        encodings = self.encode(listed, truncate=truncate)
        loss = count = 0.0
        for numbers in batches([len(encoding) for encoding in encodings], self.device):
            with torch.inference_mode():
                tokens = self.pack([encodings[number].ids for number in numbers])
                hidden = self._elmo_layers([listed[n] for n in numbers])[0] if isinstance(net, Elmo) else net(tokens)
                sums: Sums = net.lm_sums(hidden, tokens)
            loss, count = loss + float(sums.loss), count + float(sums.total)
        if not count:
            raise UserError("no text has two tokens, so there is nothing to predict")
        return math.exp(min(loss / count, 700.0))  # beyond that there is no such number

    # Hidden states.

    def hidden_states(self, texts: Sequence[str], encodings: Sequence[Encoding], layers: Sequence[int]) -> Compute:
        """Return what computes the hidden states of some of the texts, 0 the embeddings."""

        def compute(numbers: list[int]) -> tuple[Tensor, list[Tensor]]:
            if isinstance(self.net, Elmo):
                all_hidden, packing = self._elmo_layers([texts[number] for number in numbers])
                return packing.cumulative_lengths, [all_hidden[layer] for layer in layers]
            some = [encodings[number] for number in numbers]
            tokens = self.pack([encoding.ids for encoding in some], [encoding.segment_ids for encoding in some])
            starts_S = tokens.packing.cumulative_lengths
            if set(layers) == {self.num_layers}:
                return starts_S, [self.net(tokens)] * len(layers)
            is_gpt = isinstance(self.net, Gpt)
            all_hidden = self.net.all_hidden(tokens) if is_gpt else self.net.encode(tokens, hidden=True).all_hidden
            return starts_S, [all_hidden[layer] for layer in layers]

        return compute

    def _elmo_layers(self, texts: Sequence[str]) -> tuple[list[Tensor], Packing]:
        characters_TK, packing = spelt([self.tokenizer.words(text) for text in texts], self.device)
        return self.net.read(characters_TK, packing), packing

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
        """Return one vector for each text; zeros for one without tokens.

        Args:
            texts: to embed; for one by itself the vector, [width], for a list [texts, width].
            layers: whose outputs to use, 0 for the embeddings, -1 for the last, or "all"; several are put side by side.
            pooling: cls (of a BERT), mean, max, last, mean_sqrt_len_tokens or weightedmean of the tokens, [CLS] and
                [SEP] included.
            normalize: scale each vector to length 1.
            prompt: the name of one of the folder's prompts, which is put before each text; "" for none.
            truncate: cut texts that are too long instead of refusing them.

        What is not given is as the folder says, else the mean of the last layer, not normalised. The layers that a
        folder has after its pooling, and its truncate_dim, are for its own pooling of the last layer alone.

        Example:
            >>> model = bw.load("mini")
            >>> model.embed(["a fine film", "a dull one"]).shape
            (2, 256)
        """
        options: dict[str, Any] = {"layers": layers, "pooling": pooling, "normalize": normalize, "prompt": prompt}
        listed = texts_of("embed", texts)
        vectors = read_embed(self, listed, **options, truncate=truncate).result(self)
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def features(  # type: ignore[overload-overlap]
        self, texts: str, *, layers: Layers | None = None, truncate: bool = False
    ) -> Features: ...
    @overload
    def features(
        self, texts: Sequence[str], *, layers: Layers | None = None, truncate: bool = False
    ) -> list[Features]: ...
    def features(
        self, texts: str | Sequence[str], *, layers: Layers | None = None, truncate: bool = False
    ) -> Features | list[Features]:
        """Return the hidden states of every token of each text: of all layers, 0 the embeddings, or of some.

        Example:
            >>> found = bw.load("mini").features("a fine film")
            >>> found.hidden.shape  # layers with the embeddings, tokens, width
            (5, 5, 256)
            >>> found.encoding.tokens
            ['[CLS]', 'a', 'fine', 'film', '[SEP]']
        """
        found = read_features(self, _listed("features", texts), layers, truncate=truncate).result(self)
        return found[0] if isinstance(texts, str) else found

    @overload
    def attention(  # type: ignore[overload-overlap]
        self, text: str, pair: str | None = None, *, truncate: bool = False
    ) -> Attention: ...
    @overload
    def attention(
        self, text: Sequence[str], pair: Sequence[str] | None = None, *, truncate: bool = False
    ) -> list[Attention]: ...
    def attention(
        self, text: str | Sequence[str], pair: str | Sequence[str] | None = None, *, truncate: bool = False
    ) -> Attention | list[Attention]:
        """Return each text's encoding and its attention weights, [layers, heads, from token, to token].

        Example:
            >>> encoding, weights = bw.load("mini").attention("a fine film")
            >>> encoding.tokens, weights.shape
            (['[CLS]', 'a', 'fine', 'film', '[SEP]'], (4, 4, 5, 5))
        """
        pairs = None if pair is None else _listed("attention", pair)
        found = read_attention(self, _listed("attention", text), pairs, truncate=truncate).result(self)
        return found[0] if isinstance(text, str) else found

    # The task of a fine-tuned model.

    @property
    def task(self) -> Task:
        """The task that the model was fine-tuned for, as its folder says, or as far as its head tells."""
        stated, problem, count = self.about.get("task") or {}, self.about.get("problem"), num_labels(self.net) or 0
        kind = stated.get("kind") or next((kind for head, kind in _KINDS.items() if head in self.heads), None)
        if not stated.get("kind") and kind == "classify":  # of texts, by what config.json calls the problem, if it does
            if problem == "regress" and count > 1:
                raise UserError(f"the model predicts {count} numbers for a text; only one can be used here")
            kind = problem or ("regress" if count == 1 else "classify")
        if kind is None:
            found = ", ".join(self.heads) or "none"
            raise UserError(f"the model was not fine-tuned for a task (heads: {found}); see `bertworks finetune`")
        try:
            columns = as_columns(stated.get("columns"), kind)
        except UserError as error:
            raise CorruptFile(f"the model's {OWN_FILE}: {error}") from error
        score_range, name = stated.get("score_range"), str(stated.get("name", kind))
        return Task(
            name=name,
            title=name,
            kind=cast(TaskKind, kind),
            splits={},
            metrics=(),
            labels=tuple(self.labels) or tuple(f"LABEL_{number}" for number in range(count)),
            is_pair=bool(stated.get("is_pair", False)),
            score_range=tuple(score_range) if score_range else None,
            has_impossible=self.about.get("threshold") is not None,
            threshold=self.about.get("threshold"),
            columns=columns,
        )

    @property
    def names_task(self) -> bool:
        """Whether the folder says what the model was fine-tuned for; else its head does, as far as it can."""
        return bool(self.about.get("task"))

    @property
    def layout(self) -> BatchLayout:
        """The layout of batches for the network."""
        return BatchLayout(self.device, self.flash)

    def cut(self, usual_length: int | None = None) -> Cut:
        """Return how much of an example is read at once: as in fine-tuning, as far as the folder says."""
        stated = self.about.get("task") or {}
        stated = {name: stated[name] for name in Cut._fields if name in stated}
        cut = Cut(**{"max_length": usual_length or self.max_length} | stated)
        return cut._replace(max_length=min(cut.max_length, self.max_length))

    def read(self, examples: Sequence[Example], task: Task) -> Items:
        """Return what the network reads of the examples of a task."""
        return KINDS[task.kind].encode(examples, self.tokenizer, task, self.cut())

    def score(self, task: Task, items: Items, done: Callable[[float], None] = lambda _: None) -> Scored:
        """Return the network's scores of what it has read; `done` as in `score_items`."""
        with torch_on_one_thread(when=self.dtype == "int8"):
            return score_items(self.net, KINDS[task.kind], items, self.layout, done)

    def results(self, examples: Iterable[Example], task: Task | None = None) -> Iterator[Result]:
        """Yield a result for each example of the model's task, some thousands of them computed together."""
        task, source = task or self.task, iter(examples)
        while some := list(itertools.islice(source, EXAMPLES_AT_ONCE)):
            yield from read_examples(self, some, task).result(self)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None
    ) -> Result: ...
    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Result]: ...
    def classify(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Result | list[Result]:
        """Predict the class, the score or the labels of each text, or pair of texts, as the model was fine-tuned to do.

        Returns:
            {"label", "score", "scores"}; {"score"} of a regression; {"labels", "scores"} of several labels. For a list
            of texts a list of these.

        Example:
            >>> model = bw.load("reviews-model")  # fine-tuned on a table of texts and labels
            >>> model.classify("The film was lovely")
            {'label': 'good', 'score': 0.9..., 'scores': {'bad': 0.0..., 'good': 0.9...}}
            >>> [result["label"] for result in model.classify(["It is fine", "It is dull"])]
            ['good', 'bad']
        """
        results = list(self.results(*text_examples(self, texts, pairs)))
        return results[0] if isinstance(texts, str) else results

    @overload
    def choose(  # type: ignore[overload-overlap]
        self, context: str, endings: Sequence[str]
    ) -> Result: ...
    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[Result]: ...
    def choose(self, context: str | Sequence[str], endings: Sequence[Any]) -> Result | list[Result]:
        """Choose the ending that best fits a context: {"choice", "score", "scores"}, its number counted from 0.

        For a list of contexts, with a list of endings for each, a list of these.

        Example:
            >>> model = bw.load("endings-model")
            >>> model.choose("She sits down.", ["She plays the piano.", "It melts."])["choice"]
            0
        """
        contexts, lists = _listed("choose", context), [endings] if isinstance(context, str) else endings
        results = list(self.results(*choice_examples(self, contexts, lists)))
        return results[0] if isinstance(context, str) else results

    def tag(self, texts: str | Sequence[Text], *, units: Units | None = None) -> list[Any]:
        """Find the entities of texts of any length.

        Args:
            texts: one text, or several; each as it is or as a list of words.
            units: what is tagged in a text as it is, word or character; else what the model learnt, or words.

        Returns:
            for each text (for one, at once) a list of {"type", "text", "start", "end", "score"}.

        Example:
            >>> model = bw.load("names-model")
            >>> model.tag("Kim lives in Seoul.")
            [{'type': 'PER', 'text': 'Kim', 'start': 0, 'end': 3, 'score': 0.9...},
             {'type': 'LOC', 'text': 'Seoul', 'start': 13, 'end': 18, 'score': 0.9...}]
        """
        results = read_tagging(self, texts, units).result(self)
        return results[0] if isinstance(texts, str) else results

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        threshold: float | None = None,
    ) -> list[Any]:
        """Find the answer to a question, or to several, in a text of any length.

        Args:
            question: the question; one, or a list.
            context: where to look; one, for all questions, or a list with one for each.
            top_k: how many answers to give.
            threshold: see `read_answers`; else what was chosen in training, where the model learnt to see that
                there is no answer.

        Returns:
            a list of {"text", "start", "end", "score"}, the best first; the text is "" where there is no answer. Where
            questions or contexts are a list, a list of these.

        Example:
            >>> model = bw.load("questions-model")
            >>> model.answer("Where does Kim live?", "Kim lives in Seoul.")
            [{'text': 'Seoul', 'start': 13, 'end': 18, 'score': 0.9...}]
        """
        found = read_answering(self, question, context, top_k, threshold).result(self)
        return found[0] if isinstance(question, str) and isinstance(context, str) else found


def _listed(method: str, texts: str | Sequence[Any]) -> Sequence[Any]:
    """Return the texts that a method is given, one by itself or a list, in which empty ones mean something."""
    if not isinstance(texts, str):
        check_texts_of(method, texts)
    return [texts] if isinstance(texts, str) else texts


def spelt(texts: Sequence[Sequence[str]], device: torch.device) -> tuple[Tensor, Packing]:
    """Return the characters of texts given as words (`<S>` and `</S>` included), and how they lie end to end."""
    table = character_ids([word for words in texts for word in words]).astype(np.int16)
    return torch.from_numpy(table).to(device), pack_lengths([len(words) for words in texts], device)
