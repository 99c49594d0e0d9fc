"""Hidden states of the texts of a file, written as safetensors, JSON lines or parquet.

Texts are computed some hundreds at a time and written as they come, so memory does not grow with the file. A word's
features are those of its first piece, as in the paper's section 5.3.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.inference.model import AnyModel
from bertworks.models.weights import announced, write_in_order
from bertworks.nn.hidden_states import Features
from bertworks.text.tokenizer import Encoding

PER = ("token", "word")
_TEXTS_AT_ONCE = 256


class Row(NamedTuple):
    """What is written of one text."""

    number: int  # of the text, from 0
    names: list[str]  # tokens, or words as they stand in the text
    ids: list[int]
    offsets: list[tuple[int, int]]
    hidden: NDArray[np.float32]  # [layers, tokens or words, width]


class Work(NamedTuple):
    """What is to be written: of which texts, which layers, and whether of tokens or words."""

    model: AnyModel
    texts: Sequence[str]
    encodings: Sequence[Encoding]
    layers: list[int]  # counted from 0
    per: str
    truncate: bool


def write_features(
    model: AnyModel,
    texts: Sequence[str],
    out: Path,
    *,
    layers: Sequence[int],
    per: str = "token",
    truncate: bool = False,
) -> None:
    """Write the features of every text; the ending of `out` names the form."""
    writers: dict[str, Callable[[Work, Path], None]] = {
        ".safetensors": _write_safetensors,
        ".jsonl": _write_jsonl,
        ".parquet": _write_parquet,
    }
    if per not in PER:
        raise UserError(f"no features are kept per {per[:40]!r}; choose {' or '.join(PER)}")
    if out.suffix not in writers:
        raise UserError(f"cannot tell the form of {out}; let it end in {', '.join(writers)}")
    chosen = model.check_layers(layers)
    if len(set(chosen)) < len(chosen):
        raise UserError(f"layers {list(layers)} name a layer twice; the model's last is {model.num_layers}")
    writers[out.suffix](Work(model, texts, model.encode(texts, truncate=truncate), chosen, per, truncate), out)


def _rows(work: Work) -> Iterator[Row]:
    for first in range(0, len(work.texts), _TEXTS_AT_ONCE):
        some = work.texts[first : first + _TEXTS_AT_ONCE]
        # Encoded once more: a small part of the work, and so a model may look at the texts themselves.
        for number, found in enumerate(work.model.features(some, layers=work.layers, truncate=work.truncate), first):
            yield _row(number, work.texts[number], found, work.per)


def _row(index: int, text: str, found: Features, per: str) -> Row:
    encoding = found.encoding
    if per == "token":
        return Row(index, encoding.tokens, encoding.ids, encoding.offsets, found.hidden)
    firsts, spans = _words(encoding)
    names = [text[start:end] for start, end in spans]
    return Row(index, names, [encoding.ids[place] for place in firsts], spans, found.hidden[:, firsts])


def _words(encoding: Encoding) -> tuple[list[int], list[tuple[int, int]]]:
    """Return each word's first piece and its span of characters."""
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for place, word in enumerate(encoding.word_ids):
        if word is not None:
            firsts.setdefault(word, place)
            ends[word] = encoding.offsets[place][1]
    return list(firsts.values()), [(encoding.offsets[place][0], ends[word]) for word, place in firsts.items()]


def _write_safetensors(work: Work, out: Path) -> None:
    """Write `i/hidden`, `i/ids` and `i/offsets`; the header comes first in a file, so lengths are found out before."""
    width = work.model.width
    tensors = []
    for index, encoding in enumerate(work.encodings):
        count = len(encoding) if work.per == "token" else len(_words(encoding)[0])
        tensors.append(announced(f"{index}/hidden", np.float32, (len(work.layers), count, width)))
        tensors.append(announced(f"{index}/ids", np.int64, (count,)))
        tensors.append(announced(f"{index}/offsets", np.int64, (count, 2)))

    def arrays() -> Iterator[NDArray[Any]]:
        for row in _rows(work):
            yield row.hidden
            yield np.array(row.ids, np.int64)
            yield np.array(row.offsets, np.int64)

    write_in_order(out, tensors, arrays())


def _write_jsonl(work: Work, out: Path) -> None:
    with atomic_write(out) as stream:
        for row in _rows(work):
            values: dict[str, Any] = {"index": row.number, f"{work.per}s": row.names}
            values |= {"ids": row.ids, "offsets": row.offsets}
            values["layers"] = {
                str(layer): np.round(part.astype(float), 6).tolist()
                for layer, part in zip(work.layers, row.hidden, strict=True)
            }
            stream.write(json.dumps(values, ensure_ascii=False) + "\n")


def _write_parquet(work: Work, out: Path) -> None:
    """Write a row for every token or word: index, name, id, start, end, and a column of vectors for each layer."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError('parquet needs pyarrow: pip install "bertworks[data]"') from None
    vector = pa.list_(pa.float32(), work.model.width)
    whole = pa.int64()
    columns = [("index", whole), (work.per, pa.string()), ("id", whole), ("start", whole), ("end", whole)]
    schema = pa.schema([*columns, *((f"layer_{layer}", vector) for layer in work.layers)])
    with atomic_write(out, "wb") as stream, pq.ParquetWriter(stream, schema) as writer:
        for row in _rows(work):
            starts, ends = zip(*row.offsets, strict=True) if row.offsets else ((), ())
            values = [[row.number] * len(row.ids), row.names, row.ids, list(starts), list(ends)]
            vectors = [pa.FixedSizeListArray.from_arrays(part.ravel(), part.shape[-1]) for part in row.hidden]
            writer.write_table(pa.Table.from_arrays([*map(pa.array, values), *vectors], schema=schema))
