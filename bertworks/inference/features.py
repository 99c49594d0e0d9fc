"""Hidden states of texts, whatever network makes them: token by token, or pooled to a vector a text; and files of them.

- Texts are sorted by length and packed into batches of about as many tokens, so that none waits for a longer one and no
  padding is computed. Results come back in the order of the texts.
- Files (safetensors, JSON lines or parquet) are written as features come, of at most some hundreds of texts at a time,
  so memory does not grow with them. A word's features are those of its first piece, as in the paper's section 5.3.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.models.weights import announced, write_in_order
from bertworks.nn.attention import batches
from bertworks.text.tokenizer import Encoding

if TYPE_CHECKING:
    from bertworks.inference.model import Model

Pool = Literal["cls", "mean", "max", "last", "mean_sqrt_len_tokens", "weightedmean"]
Layers = Iterable[int] | int | Literal["all"]
PER = ("token", "word")
_ENDINGS = (".safetensors", ".jsonl", ".parquet")
_TEXTS_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 26
# Of one text: its tokens, or words as they stand in it, their ids and offsets, and [layers, tokens or words, width].
Row = tuple[list[str], list[int], list[tuple[int, int]], NDArray[np.float32]]


class Features(NamedTuple):
    """The hidden states of one text."""

    encoding: Encoding
    hidden: NDArray[np.float32]  # [layers, tokens, width]


# Of the texts with these numbers, end to end: where each starts and the last one ends, and [T, width] of each layer.
Compute = Callable[[list[int]], tuple[Tensor, list[Tensor]]]
# Of lists of texts, in their order: [layers, tokens, width] of each text.
ComputeTexts = Callable[[Iterator[list[str]]], Iterator[list[NDArray[np.float32]]]]


def features_of(encodings: Sequence[Encoding], compute: Compute, device: torch.device) -> list[Features]:
    """Return the hidden states of every token of each text."""
    found: dict[int, Features] = {}
    for numbers in batches([len(encoding) for encoding in encodings], device):
        with torch.inference_mode():
            starts_S, layers = compute(numbers)
            hidden = torch.stack(layers).float().cpu().numpy()
        starts = starts_S.tolist()
        for index, number in enumerate(numbers):
            found[number] = Features(encodings[number], hidden[:, starts[index] : starts[index + 1]])
    return [found[number] for number in range(len(encodings))]


def vectors_of(
    lengths: Sequence[int], width: int, compute: Compute, pools: Sequence[str], device: torch.device, skip: int = 0
) -> NDArray[np.float32]:
    """Return one vector for each text, its layers side by side; one without tokens is all zeros.

    Args:
        lengths: of the texts, in tokens.
        width: of a text's layers side by side.
        compute: gives the hidden states of some texts.
        pools: how they are reduced to vectors, which are joined.
        device: where that is computed.
        skip: how many tokens at the beginning of each text are left out, at least one being kept.
    """
    vectors = np.empty((len(lengths), width * len(pools)), np.float32)
    for numbers in batches(lengths, device):
        with torch.inference_mode():
            starts_S, layers = compute(numbers)
            hidden_TD = torch.cat(layers, dim=-1).float()
            vectors[numbers] = torch.cat([_pooled(hidden_TD, starts_S, pool, skip) for pool in pools], 1).cpu()
    return vectors


def _pooled(hidden_TD: Tensor, starts: Tensor, pool: str, skip: int) -> Tensor:
    """Reduce the rows of each text to one."""
    lengths_S = starts.diff().long()
    if not len(hidden_TD):
        return hidden_TD.new_zeros(len(lengths_S), hidden_TD.shape[1])
    # A text's index of each row, from 1; those that are skipped get 0.
    places_T = torch.arange(1, len(hidden_TD) + 1, device=hidden_TD.device) - starts[:-1].repeat_interleave(lengths_S)
    skipped_S = (lengths_S - 1).clamp(0, skip)
    is_kept_T = places_T > skipped_S.repeat_interleave(lengths_S)
    if pool in ("cls", "last"):
        rows_S = starts[:-1] + skipped_S if pool == "cls" else starts[1:] - 1
        vectors = hidden_TD.index_select(0, rows_S.clamp(0, len(hidden_TD) - 1))
    else:
        kept_TD, lengths_S = hidden_TD[is_kept_T] if skip else hidden_TD, lengths_S - skipped_S
        reduce = "max" if pool == "max" else "mean"
        if pool == "weightedmean":
            weights_T1 = places_T[is_kept_T].float()[:, None]
            kept_TD = torch.cat([kept_TD * weights_T1, weights_T1], 1)
        vectors = torch.segment_reduce(kept_TD, reduce, lengths=lengths_S, axis=0)
        if pool == "weightedmean":
            vectors = vectors[:, :-1] / vectors[:, -1:]
        elif pool == "mean_sqrt_len_tokens":
            vectors = vectors * lengths_S.sqrt()[:, None]
    return vectors.masked_fill((starts.diff() == 0)[:, None], 0.0)


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to length 1."""
    scaled: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


def check_pool(pool: str, known: Sequence[str]) -> None:
    """Refuse a way of pooling that a model does not have."""
    if pool not in known:
        raise UserError(f"pooling {str(pool)[:40]!r} is not known; choose {', '.join(known)}")


def check_layers(layers: Layers, num_layers: int) -> list[int]:
    """Return layers counted from 0, the embeddings; -1 is the last, and a number by itself one layer."""
    if isinstance(layers, str) and layers == "all":  # an array of numbers would be compared one by one
        return list(range(num_layers + 1))
    given = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(layer, SupportsIndex) for layer in given):
        raise UserError(f"layers {layers!r:.40} are not numbers; such as [-1, -2], or 'all'")
    chosen = [layer if layer >= 0 else num_layers + 1 + layer for layer in given]
    if not chosen or not all(0 <= layer <= num_layers for layer in chosen):
        raise UserError(f"layers {given} are not in a model of {num_layers}; 0 to {num_layers}, or -1 back")
    return chosen


# Files of features.


def write_features(
    model: "Model",
    texts: Sequence[str],
    out: Path,
    *,
    layers: Layers,
    per: str = "token",
    truncate: bool = False,
    compute: ComputeTexts | None = None,
) -> None:
    """Write the features of every text; the ending of `out` names the form.

    The file says in what numbers the model was computed, if not in float32. `compute` gives the hidden states of each
    text of some, as `inference/ray.py` does; without it they are computed here.
    """
    if per not in PER:
        raise UserError(f"no features can be written per {per[:40]!r}; choose {' or '.join(PER)}")
    if out.suffix not in _ENDINGS:
        raise UserError(f"cannot tell the format of {out}; use a name that ends in {', '.join(_ENDINGS)}")
    chosen = model.check_layers(layers)
    if len(set(chosen)) < len(chosen):
        raise UserError(f"layers {layers} name a layer twice; the model's last is {model.num_layers}")
    encodings = model.encode(texts, truncate=truncate)

    def chunks() -> Iterator[list[str]]:
        most = _BYTES_AT_ONCE // (4 * len(chosen) * model.width)
        some: list[str] = []
        size = 0
        for text, encoding in zip(texts, encodings, strict=True):
            if some and (len(some) == _TEXTS_AT_ONCE or size + len(encoding) > most):
                yield some
                some, size = [], 0
            some.append(text)
            size += len(encoding)
        if some:
            yield some

    def compute_here(chunks: Iterator[list[str]]) -> Iterator[list[NDArray[np.float32]]]:
        # Encoded once more: a small part of the work, and so a model may look at the texts themselves.
        for some in chunks:
            yield [one.hidden for one in model.features(some, layers=chosen, truncate=truncate)]

    def rows() -> Iterator[Row]:
        every = (hidden for found in (compute or compute_here)(chunks()) for hidden in found)
        for text, encoding, hidden in zip(texts, encodings, every, strict=True):
            if per == "token":
                yield encoding.tokens, encoding.ids, encoding.offsets, hidden
            else:
                firsts, spans = _words(encoding)
                names = [text[start:end] for start, end in spans]
                yield names, [encoding.ids[index] for index in firsts], spans, hidden[:, firsts]

    facts = {} if model.dtype == "float32" else {"dtype": model.dtype}
    if out.suffix == ".safetensors":
        counts = [len(encoding) if per == "token" else len(_words(encoding)[0]) for encoding in encodings]
        _write_safetensors(out, rows(), counts, len(chosen), model.width, facts)
    elif out.suffix == ".jsonl":
        _write_jsonl(out, rows(), per, chosen, facts)
    else:
        _write_parquet(out, rows(), per, chosen, model.width, facts)


def _words(encoding: Encoding) -> tuple[list[int], list[tuple[int, int]]]:
    """Return each word's first piece and its span of characters."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for index, word in enumerate(encoding.word_ids):
        if word is not None:
            firsts.setdefault(word, index)
            ends[word] = encoding.offsets[index][1]
    return list(firsts.values()), [(encoding.offsets[index][0], ends[word]) for word, index in firsts.items()]


def _write_safetensors(
    out: Path, rows: Iterator[Row], counts: Sequence[int], num_layers: int, width: int, facts: dict[str, str]
) -> None:
    """Write `i/hidden`, `i/ids` and `i/offsets`; a file begins with its header, so the counts are known before."""
    tensors = []
    for number, count in enumerate(counts):
        tensors.append(announced(f"{number}/hidden", np.float32, (num_layers, count, width)))
        tensors.append(announced(f"{number}/ids", np.int64, (count,)))
        tensors.append(announced(f"{number}/offsets", np.int64, (count, 2)))

    def arrays() -> Iterator[NDArray[Any]]:
        for _, ids, offsets, hidden in rows:
            yield hidden
            yield np.array(ids, np.int64)
            yield np.array(offsets, np.int64)

    write_in_order(out, tensors, arrays(), facts)


def _write_jsonl(out: Path, rows: Iterator[Row], per: str, layers: Sequence[int], facts: dict[str, str]) -> None:
    with atomic_write(out) as stream:
        for number, (names, ids, offsets, hidden) in enumerate(rows):
            values: dict[str, Any] = {"index": number, f"{per}s": names, "ids": ids, "offsets": offsets} | facts
            values["layers"] = {
                str(layer): np.round(part.astype(float), 6).tolist() for layer, part in zip(layers, hidden, strict=True)
            }
            stream.write(json.dumps(values, ensure_ascii=False) + "\n")


def _write_parquet(
    out: Path, rows: Iterator[Row], per: str, layers: Sequence[int], width: int, facts: dict[str, str]
) -> None:
    """Write a row for every token or word: index, name, id, start, end, and a column of vectors for each layer."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError('parquet needs pyarrow: pip install "bertworks[data]"') from None
    vector, whole = pa.list_(pa.float32(), width), pa.int64()
    columns = [("index", whole), (per, pa.string()), ("id", whole), ("start", whole), ("end", whole)]
    schema = pa.schema([*columns, *((f"layer_{layer}", vector) for layer in layers)], metadata=facts)
    with atomic_write(out, "wb") as stream, pq.ParquetWriter(stream, schema) as writer:
        for number, (names, ids, offsets, hidden) in enumerate(rows):
            starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
            values = [[number] * len(ids), names, ids, list(starts), list(ends)]
            vectors = [pa.FixedSizeListArray.from_arrays(part.ravel(), part.shape[-1]) for part in hidden]
            writer.write_table(pa.Table.from_arrays([*map(pa.array, values), *vectors], schema=schema))
