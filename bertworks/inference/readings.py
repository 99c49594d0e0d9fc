"""What a model has read of texts before it computes anything, so that several callers' texts can be computed together.

Every method of `Model` works in three steps: `read_*` makes sequences of tokens of texts and refuses what cannot be
read; `compute` lets the network work on any number of sequences, of one reading or of several; `Reading.answer` makes
the result of what was computed. `Model` takes the steps one after the other. A server takes them apart: it reads each
request by itself, where a mistake harms nobody else, computes the sequences of many together, and answers each.

Sequences are packed (`nn/attention.py`), so what is computed of one does not depend on what is computed beside it.

| key                                   | a unit is                   | computed of it                               |
|---------------------------------------|-----------------------------|----------------------------------------------|
| ("fill",)                             | ids, how many, which pieces | for each [MASK] its best pieces              |
| ("nsp",)                              | an encoded pair             | the probability that the second text follows |
| ("embed", layers, pools, tokens left out) | a text and its encoding | a vector                                     |
| ("features", layers)                  | a text and its encoding     | its hidden states                            |
| ("attention",)                        | an encoding                 | its attention weights                        |
| ("task", kind)                        | items and the number of one | the scores of that item                      |
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import UserError, counted
from bertworks.inference.features import Features, Layers, check_pool, features_of, normalized, vectors_of
from bertworks.inference.heads import (
    Guesses,
    Result,
    Text,
    Units,
    best_guesses,
    check_texts_of,
    check_top_k,
    ids_with_masks,
    in_pairs,
    piece_id,
    read_answers,
    read_tags,
    results_of,
    texts_of,
)
from bertworks.models.sentence_transformers import Layer
from bertworks.nn.attention import batches
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import FeatureReader
from bertworks.nn.layers import torch_on_one_thread
from bertworks.tasks.evaluation import score_items
from bertworks.tasks.heads import KINDS, Items, join_items
from bertworks.tasks.task import ChoiceExample, Example, Task, TextExample
from bertworks.text.tokenizer import Encoding, check_texts
from bertworks.text.vocabulary import MASK

if TYPE_CHECKING:
    from bertworks.inference.model import Model

POOLS = ("cls", "mean", "max", "last", "mean_sqrt_len_tokens", "weightedmean")
_AHEAD = {"both": 0, "left_to_right": -1, "right_to_left": 1}  # where a token is guessed, seen from the token
Attention = tuple[Encoding, NDArray[np.float32]]  # of a text; [layers, heads, from token, to token]
Key = tuple[Any, ...]
Answer = TypeVar("Answer")


class Reading(NamedTuple, Generic[Answer]):
    """Texts as a model has read them.

    Attributes:
        key: the method and its options; units of one key can be computed together.
        units: what is computed by itself: a sequence of tokens, or the sequences of one item.
        lengths: how many tokens each unit has.
        answer: makes the result of what was computed of each unit, in order.
    """

    key: Key
    units: list[Any]
    lengths: list[int]
    answer: Callable[[list[Any]], Answer]

    def result(self, model: "Model") -> Answer:
        """Compute all units at once, and return the result."""
        return self.answer(compute(model, self.key, self.units))


def compute(model: "Model", key: Key, units: Sequence[Any]) -> list[Any]:
    """Return what a model computes of each unit; units of several readings that have this key may be given together."""
    with torch_on_one_thread(when=model.dtype == "int8"):
        return _COMPUTE[key[0]](model, key, units) if units else []


def read_fill(
    model: "Model", texts: str | Sequence[str], top_k: int, targets: Sequence[str] | str | None, *, truncate: bool
) -> Reading[list[list[Guesses]]]:
    """Read texts with masks; the result has the guesses for every mask of every text."""
    model.check_can("fill")
    listed = texts_of("fill", texts)
    check_top_k(top_k)
    given = [targets] if isinstance(targets, str) else targets or ()
    pieces = [piece_id(model.tokenizer, word) for word in given]
    units: list[tuple[list[int], int, list[int]]] = []
    for number, one in enumerate(listed, 1):
        where = f"text {number} of {len(listed)}: " if len(listed) > 1 else ""
        units.append((ids_with_masks(model, one, truncate=truncate, where=where), top_k, pieces))
    return Reading(("fill",), units, [len(ids) for ids, *_ in units], list)


def _fill(model: "Model", _: Key, units: Sequence[tuple[list[int], int, list[int]]]) -> list[list[Guesses]]:
    mask_id, ahead = model.tokenizer.id_of(MASK), _AHEAD[model.net.config.direction]
    found: list[list[Guesses]] = [[] for _ in units]
    for numbers in batches([len(ids) for ids, *_ in units], model.device):
        together = [(id, number) for number in numbers for id in units[number][0]]
        rows = [row + ahead for row, (id, _) in enumerate(together) if id == mask_id]
        owners = [number for id, number in together if id == mask_id]
        if not rows:
            continue
        with torch.inference_mode():
            hidden_TD = model.net(model.pack([units[number][0] for number in numbers]))
            scores_MV = model.mlm_logits(hidden_TD[rows]).float().softmax(-1)[:, : len(model.tokenizer)]
        for owner, scores_V in zip(owners, scores_MV.cpu(), strict=True):
            top_k, allowed = units[owner][1:]
            found[owner].append(best_guesses(model.tokenizer, scores_V, top_k, allowed))
    return found


def read_nsp(
    model: "Model", texts: str | Sequence[str], following: str | Sequence[str], *, truncate: bool
) -> Reading[list[float]]:
    """Read pairs of texts; the result is the probability of each that the second follows the first."""
    model.check_can("nsp")
    texts_of("nsp", texts), texts_of("nsp", following)
    encodings = model.encode(*in_pairs("nsp", texts, following), truncate=truncate)
    return Reading(("nsp",), list(encodings), list(map(len, encodings)), list)


def _nsp(model: "Model", _: Key, encodings: Sequence[Encoding]) -> list[float]:
    found = np.empty(len(encodings))
    for numbers in batches([len(encoding) for encoding in encodings], model.device):
        some = [encodings[number] for number in numbers]
        with torch.inference_mode():
            tokens = model.pack([encoding.ids for encoding in some], [encoding.segment_ids for encoding in some])
            logits_S2 = model.net.heads["nsp"](model.net.pooled(model.net(tokens), tokens.packing))
            found[numbers] = logits_S2.float().softmax(-1)[:, 0].cpu()
    return found.tolist()


def read_embed(
    model: "Model",
    texts: Sequence[str] | Sequence[Encoding],
    *,
    layers: Layers | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    truncate: bool = False,
) -> Reading[NDArray[np.float32]]:
    """Read texts, or take some that are encoded already; the result is a vector for each, [texts, width]."""
    model.check_can("embed")
    stated, is_own = model.pooling, layers is None and pooling is None
    chosen = model.check_layers(layers if layers is not None else [-1])
    pools = stated.modes if pooling is None else (pooling,)
    for pool in pools:
        check_pool(pool, POOLS if isinstance(model.net, Bert) else POOLS[1:])
    listed: list[Any] = list(texts)
    skip = 0
    if listed and isinstance(listed[0], Encoding):
        encodings: Sequence[Encoding] = listed
    else:
        if before := stated.text_of(prompt):
            check_texts(listed, None)
            listed = [before + text for text in listed]
            if not stated.include_prompt:
                skip = len(model.tokenizer.encode(before)) - 1
        encodings = model.encode(listed, truncate=truncate)
    width = len(chosen) * model.width * len(pools)

    def answer(rows: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        vectors = np.stack(rows) if rows else np.empty((0, width), np.float32)
        for step in stated.steps:
            if isinstance(step, Layer):
                vectors = step(vectors) if is_own else vectors
            elif normalize is not False:
                vectors = normalized(vectors)
        vectors = vectors[:, : stated.truncate_dim] if is_own else vectors
        return normalized(vectors) if normalize else vectors

    units = list(zip(listed, encodings, strict=True))
    return Reading(("embed", tuple(chosen), tuple(pools), skip), units, list(map(len, encodings)), answer)


def _embed(model: "Model", key: Key, units: Sequence[tuple[str, Encoding]]) -> list[NDArray[np.float32]]:
    _, layers, pools, skip = key
    encodings = [encoding for _, encoding in units]
    hidden_states = model.hidden_states([text for text, _ in units], encodings, layers)
    lengths = list(map(len, encodings))
    return list(vectors_of(lengths, len(layers) * model.width, hidden_states, pools, model.device, skip))


def read_features(
    model: "Model", texts: Sequence[str], layers: Layers | None, *, truncate: bool
) -> Reading[list[Features]]:
    """Read texts; the result has the hidden states of each."""
    model.check_can("features")
    chosen = model.check_layers(layers if layers is not None else "all")
    encodings = model.encode(texts, truncate=truncate)
    units = list(zip(texts, encodings, strict=True))
    return Reading(("features", tuple(chosen)), units, list(map(len, encodings)), list)


def _features(model: "Model", key: Key, units: Sequence[tuple[str, Encoding]]) -> list[Features]:
    encodings = [encoding for _, encoding in units]
    hidden_states = model.hidden_states([text for text, _ in units], encodings, key[1])
    return features_of(encodings, hidden_states, model.device)


def read_attention(
    model: "Model", texts: Sequence[str], pairs: Sequence[str] | None, *, truncate: bool
) -> Reading[list[Attention]]:
    """Read texts, or pairs of them; the result has the encoding and the attention weights of each."""
    model.check_can("attention")
    encodings = model.encode(texts, pairs, truncate=truncate)
    return Reading(("attention",), list(encodings), list(map(len, encodings)), list)


def _attention(model: "Model", _: Key, encodings: Sequence[Encoding]) -> list[Attention]:
    found = []
    for encoding in encodings:  # one by one: the weights of a text are layers * heads * tokens * tokens numbers
        with torch.inference_mode():
            tokens = model.pack([encoding.ids], [encoding.segment_ids])
            weights = model.net.encode(tokens, attentions=True).attentions
        found.append((encoding, torch.stack([layer[0] for layer in weights]).cpu().numpy()))
    return found


# The task of a fine-tuned model.


def read_examples(model: "Model", examples: Sequence[Example], task: Task) -> Reading[list[Result]]:
    """Read examples of a model's task; the result has a result for each, as `heads.py` describes them."""
    items = model.read(examples, task)
    return _read_items(model, task.kind, items, lambda rows: results_of(task, examples, items, rows))


def text_examples(
    model: "Model", texts: str | Sequence[str], pairs: str | Sequence[str] | None
) -> tuple[list[TextExample], Task]:
    """Return the texts to classify, or the pairs of them, as examples of the model's task."""
    model.check_can("classify")
    listed, task = texts_of("classify", texts), model.task
    if pairs is not None and not isinstance(pairs, str):
        check_texts_of("classify", pairs)
    seconds: Sequence[str] | None = [pairs] if isinstance(pairs, str) else pairs
    if seconds is not None and len(seconds) != len(listed):
        raise UserError(f"{counted(len(listed), 'text')} but {counted(len(seconds), 'pair')}; give one for each")
    if model.names_task and (seconds is None) == task.is_pair:
        raise UserError(
            "the model was fine-tuned on pairs of texts; give each text a second one with --pair, in Python with pairs"
            if task.is_pair
            else "the model was fine-tuned on single texts; leave --pair out, in Python pairs"
        )
    both = zip(listed, itertools.repeat(None) if seconds is None else seconds, strict=False)
    return [TextExample("", first, second, None) for first, second in both], replace(task, is_pair=seconds is not None)


def choice_examples(
    model: "Model", contexts: Sequence[str], lists: Sequence[Sequence[str]]
) -> tuple[list[ChoiceExample], Task]:
    """Return contexts, each with the endings to choose from, as examples of the model's task."""
    model.check_can("choose")
    check_texts_of("choose", lists)
    if len(contexts) != len(lists):
        raise UserError(f"{len(contexts)} contexts but {len(lists)} lists of endings; give one for each")
    for some in lists:
        if isinstance(some, str | bytes) or not hasattr(some, "__getitem__") or len(some) < 2:
            raise UserError("choose takes a list of at least two endings")
    both = zip(contexts, lists, strict=True)
    return [ChoiceExample("", one, tuple(some), None) for one, some in both], model.task


def read_tagging(model: "Model", texts: str | Sequence[Text], units: Units | None) -> Reading[list[list[Result]]]:
    """Read texts of any length; the result has the entities of each."""
    model.check_can("tag")
    items, decode = read_tags(model, texts, units)
    labels = model.task.labels
    return _read_items(model, "tag", items, lambda rows: [tagged.entities(labels) for tagged in decode(rows)])


def read_answering(
    model: "Model",
    questions: str | Sequence[str],
    contexts: str | Sequence[str],
    top_k: int = 1,
    threshold: float | None = None,
) -> Reading[list[list[Result]]]:
    """Read questions and the texts to look in, of any length; the result has the best answers to each question."""
    model.check_can("answer")
    texts_of("answer", questions, "question")
    threshold = model.about.get("threshold") if threshold is None else threshold
    items, decode = read_answers(model, *in_pairs("answer", questions, contexts), top_k, threshold)
    return _read_items(model, "answer", items, decode)


def _read_items(model: "Model", kind: str, items: Items, answer: Callable[[list[Any]], Answer]) -> Reading[Answer]:
    if _reads_features(model):  # whole windows of words, which are computed as they are
        return Reading(("task", kind), [(items, None)], [int(items.lengths().sum())], lambda rows: answer(rows[0]))
    units = [(items, number) for number in range(len(items))]
    return Reading(("task", kind), units, items.lengths().tolist(), answer)


def _scores(model: "Model", key: Key, units: Sequence[tuple[Items, int | None]]) -> list[Any]:
    kind = KINDS[key[1]]
    if _reads_features(model):
        return [score_items(model.net, kind, items, model.layout).rows for items, _ in units]
    by_items: dict[int, tuple[Items, list[int], list[int]]] = {}
    for place, (items, number) in enumerate(units):
        _, numbers, places = by_items.setdefault(id(items), (items, [], []))
        numbers.append(number or 0)
        places.append(place)
    together = join_items([(items, numbers) for items, numbers, _ in by_items.values()])
    rows: list[Any] = [None] * len(units)
    order = [place for _, _, places in by_items.values() for place in places]
    for place, row in zip(order, score_items(model.net, kind, together, model.layout).rows, strict=True):
        rows[place] = row
    return rows


def _reads_features(model: "Model") -> bool:
    return isinstance(model.net, Bert) and isinstance(dict(model.net.heads.items()).get("tag"), FeatureReader)


_COMPUTE: dict[str, Callable[..., list[Any]]] = {
    "fill": _fill,
    "nsp": _nsp,
    "embed": _embed,
    "features": _features,
    "attention": _attention,
    "task": _scores,
}
