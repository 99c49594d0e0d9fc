"""Hidden states of the texts of a file, written as safetensors, JSON lines or parquet.

Texts are computed some hundreds at a time and written as they come, so memory does not grow with the file. A word's
features are those of its first piece, as in the paper's section 5.3.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.inference.model import Model
from bertworks.models.weights import announced, write_in_order
from bertworks.nn.hidden_states import Layers
from bertworks.text.tokenizer import Encoding

PER = ("token", "word")
_ENDINGS = (".safetensors", ".jsonl", ".parquet")
_TEXTS_AT_ONCE = 256
# Of one text: its tokens, or words as they stand in it, their ids and offsets, and [layers, tokens or words, width].
Row = tuple[list[str], list[int], list[tuple[int, int]], NDArray[np.float32]]


def write_features(
    model: Model,
    texts: Sequence[str],
    out: Path,
    *,
    layers: Layers,
    per: str = "token",
    truncate: bool = False,
) -> None:
    """Write the features of every text; the ending of `out` names the form."""
    if per not in PER:
        raise UserError(f"no features can be written per {per[:40]!r}; choose {' or '.join(PER)}")
    if out.suffix not in _ENDINGS:
        raise UserError(f"cannot tell the format of {out}; use a name that ends in {', '.join(_ENDINGS)}")
    chosen = model.check_layers(layers)
    if len(set(chosen)) < len(chosen):
        raise UserError(f"layers {layers} name a layer twice; the model's last is {model.num_layers}")
    encodings = model.encode(texts, truncate=truncate)

    def rows() -> Iterator[Row]:
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            # Encoded once more: a small part of the work, and so a model may look at the texts themselves.
            for text, found in zip(some, model.features(some, layers=chosen, truncate=truncate), strict=True):
                encoding, hidden = found.encoding, found.hidden
                if per == "token":
                    yield encoding.tokens, encoding.ids, encoding.offsets, hidden
                else:
                    firsts, spans = _words(encoding)
                    names = [text[start:end] for start, end in spans]
                    yield names, [encoding.ids[place] for place in firsts], spans, hidden[:, firsts]

    if out.suffix == ".safetensors":
        counts = [len(encoding) if per == "token" else len(_words(encoding)[0]) for encoding in encodings]
        _write_safetensors(out, rows(), counts, len(chosen), model.width)
    elif out.suffix == ".jsonl":
        _write_jsonl(out, rows(), per, chosen)
    else:
        _write_parquet(out, rows(), per, chosen, model.width)


def _words(encoding: Encoding) -> tuple[list[int], list[tuple[int, int]]]:
    """Return each word's first piece and its span of characters."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for place, word in enumerate(encoding.word_ids):
        if word is not None:
            firsts.setdefault(word, place)
            ends[word] = encoding.offsets[place][1]
    return list(firsts.values()), [(encoding.offsets[place][0], ends[word]) for word, place in firsts.items()]


def _write_safetensors(out: Path, rows: Iterator[Row], counts: Sequence[int], num_layers: int, width: int) -> None:
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

    write_in_order(out, tensors, arrays())


def _write_jsonl(out: Path, rows: Iterator[Row], per: str, layers: Sequence[int]) -> None:
    with atomic_write(out) as stream:
        for number, (names, ids, offsets, hidden) in enumerate(rows):
            values: dict[str, Any] = {"index": number, f"{per}s": names, "ids": ids, "offsets": offsets}
            values["layers"] = {
                str(layer): np.round(part.astype(float), 6).tolist() for layer, part in zip(layers, hidden, strict=True)
            }
            stream.write(json.dumps(values, ensure_ascii=False) + "\n")


def _write_parquet(out: Path, rows: Iterator[Row], per: str, layers: Sequence[int], width: int) -> None:
    """Write a row for every token or word: index, name, id, start, end, and a column of vectors for each layer."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError('parquet needs pyarrow: pip install "bertworks[data]"') from None
    vector, whole = pa.list_(pa.float32(), width), pa.int64()
    columns = [("index", whole), (per, pa.string()), ("id", whole), ("start", whole), ("end", whole)]
    schema = pa.schema([*columns, *((f"layer_{layer}", vector) for layer in layers)])
    with atomic_write(out, "wb") as stream, pq.ParquetWriter(stream, schema) as writer:
        for number, (names, ids, offsets, hidden) in enumerate(rows):
            starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
            values = [[number] * len(ids), names, ids, list(starts), list(ends)]
            vectors = [pa.FixedSizeListArray.from_arrays(part.ravel(), part.shape[-1]) for part in hidden]
            writer.write_table(pa.Table.from_arrays([*map(pa.array, values), *vectors], schema=schema))
