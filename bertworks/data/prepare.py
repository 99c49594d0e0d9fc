"""Any corpus to shards of token ids: one pass, streaming, the same bytes for any number of processes.

One process reads and cuts the corpus into units (`units.py`); others turn units into shards: sentences, token ids,
files on disk with their checksums. A unit's record is written when its files are. A run that was killed finds the
records, sees by their checksums that the corpus is still the same, and goes on behind them. The manifest comes last.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.data.shards import FORMAT, MANIFEST, SPLITS, token_type, write_shard
from bertworks.data.units import Unit, cut_units
from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.processes import num_workers, wait_for, worker_pool
from bertworks.progress import Progress, silent
from bertworks.text.bulk import BulkTokenizer
from bertworks.text.corpus import Corpus
from bertworks.text.kernel import ID
from bertworks.text.normalize import Rules
from bertworks.text.sentences import split_sentences
from bertworks.text.tokenizer import Tokenizer

_SETTINGS_FILE = "prepare.json"  # there while a run is not finished
_TOKENIZED_AT_ONCE = 1 << 19  # bytes: a process needs some tens of megabytes for them
_SENTENCE_END = re.compile(r"[.!?…。！？:;,][\"'”’)\]」』》]*$")
_MAX_HEADING_WORDS = 12
COUNTS = ("documents", "sentences", "tokens")


class Options(NamedTuple):
    """What is done with the text besides tokenizing it; by default nothing is dropped or kept aside."""

    holdout: float = 0.0
    lines_are_sentences: bool = False
    drop_headings: bool = False
    drop_duplicates: bool = False
    min_tokens: int = 0


class _Job(NamedTuple):
    folder: Path
    pieces: list[str]
    rules: Rules
    options: Options


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    workers: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Turn a corpus into shards in the folder `out` and return the manifest; a killed run goes on where it stopped.

    Args:
        corpus: the text.
        tokenizer: turns it into ids; its files are saved beside the shards.
        out: a folder that is new or of an interrupted run with the same settings.
        options: what to drop and what to keep aside.
        workers: how many processes tokenize; as many as there are cores if not given.
        progress: is told how far it is.
    """
    options = options or Options()
    folder = Path(out)
    settings = _settings(corpus, tokenizer, options)
    _begin(folder, settings)
    tokenizer.save(folder)
    job = _Job(folder, tokenizer.pieces, tokenizer.rules, options)
    num_units = _make_shards(corpus, job, num_workers(workers), progress)
    return _finish(folder, settings, num_units, corpus.num_replaced)


def _settings(corpus: Corpus, tokenizer: Tokenizer, options: Options) -> dict[str, Any]:
    vocabulary = hashlib.sha256("\n".join(tokenizer.pieces).encode()).hexdigest()
    return {
        "format": FORMAT,
        "kind": "wordpiece",
        "vocab_size": len(tokenizer),
        "vocab_sha256": vocabulary,
        "tokenizer": tokenizer.rules._asdict(),
        "options": options._asdict(),
        "sources": [
            {"name": path.name, "bytes": path.stat().st_size if path.exists() else None} for path in corpus.files
        ],
    }


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder, or see that it is of a run with the same settings that was not finished."""
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} holds prepared data already; choose another --out, or remove it")
    settings_path = folder / _SETTINGS_FILE
    if settings_path.exists():
        if json.loads(settings_path.read_text(encoding="utf-8")) != json.loads(json.dumps(settings)):
            raise UserError(
                f"{folder} is of an interrupted run with another corpus, vocabulary or options; "
                "give the same ones to go on, or remove it"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    with atomic_write(settings_path) as stream:
        json.dump(settings, stream, ensure_ascii=False, indent=1)


def _make_shards(corpus: Corpus, job: _Job, workers: int, progress: Progress) -> int:
    """Turn every unit that has no record yet into shards; returns the number of units."""
    num_units = 0
    with worker_pool(workers, _load_tokenizer, job) as pool:
        pending: set[Future[None]] = set()
        for unit in cut_units(corpus.blocks(), drop_duplicates=job.options.drop_duplicates):
            num_units += 1
            if not _is_done(job.folder, unit):
                pending.add(pool.submit(_make_shard, unit, job))
            pending = wait_for(pending, workers)
            progress("preparing", corpus.bytes_read, corpus.total_bytes)
        wait_for(pending, 0)
    return num_units


def _record_path(folder: Path, number: int) -> Path:
    return folder / f"unit-{number:05d}.json"


def _is_done(folder: Path, unit: Unit) -> bool:
    path = _record_path(folder, unit.number)
    if not path.exists():
        return False
    if json.loads(path.read_text(encoding="utf-8"))["digest"] != unit.digest():
        raise UserError(f"the corpus has changed since {folder} was begun; remove it to start again")
    return True


_tokenizers: dict[str, BulkTokenizer] = {}  # of a process that makes shards: its one tokenizer


def _load_tokenizer(job: _Job) -> None:
    _tokenizers["current"] = BulkTokenizer(job.pieces, job.rules)


def _make_shard(unit: Unit, job: _Job) -> None:
    """Turn one unit into the files of its shards and a record of them."""
    shards = make_arrays(unit, _tokenizers["current"], job.options, len(job.pieces))
    record: dict[str, Any] = {"digest": unit.digest(), "duplicates": unit.num_duplicates, "files": {}}
    record["too_short"] = shards.num_too_short
    for split, arrays in shards.by_split.items():
        record[split] = {kind: len(arrays[kind]) - (kind != "tokens") for kind in COUNTS}
        if len(arrays["tokens"]):
            record["files"] |= write_shard(job.folder, f"{split}-{unit.number:05d}", arrays)
    with atomic_write(_record_path(job.folder, unit.number)) as stream:
        json.dump(record, stream, indent=1)


class ShardArrays(NamedTuple):
    """What a unit becomes."""

    by_split: dict[str, dict[str, NDArray[Any]]]
    num_too_short: int


def make_arrays(unit: Unit, tokenizer: BulkTokenizer, options: Options, vocab_size: int) -> ShardArrays:
    """Turn the text of a unit into tokens, sentence offsets and document offsets, by split."""
    ids: dict[str, list[NDArray[Any]]] = {split: [] for split in SPLITS}
    lengths: dict[str, list[NDArray[Any]]] = {split: [] for split in SPLITS}
    documents: dict[str, list[int]] = {split: [] for split in SPLITS}
    num_too_short, dtype = 0, token_type(vocab_size)
    for batch in _batches(unit.documents()):
        sentences = [list(split_document(document.decode("utf-8"), options)) for document in batch]
        tokens = tokenizer.tokenize([sentence for document in sentences for sentence in document])
        first_sentence = first_token = 0
        for document, text in zip(sentences, batch, strict=True):
            counts = tokens.counts[first_sentence : first_sentence + len(document)]
            num_tokens = int(counts.sum())
            counts = counts[counts > 0]
            if num_tokens < max(1, options.min_tokens):
                num_too_short += 1
            else:
                split = SPLITS[is_held_out(text, options.holdout)]
                ids[split].append(tokens.rows[first_token : first_token + num_tokens, ID].astype(dtype))
                lengths[split].append(counts)
                documents[split].append(len(counts))
            first_sentence += len(document)
            first_token += num_tokens
    return ShardArrays({s: _to_arrays(ids[s], lengths[s], documents[s], vocab_size) for s in SPLITS}, num_too_short)


def _batches(documents: list[bytes]) -> Iterator[list[bytes]]:
    """Group documents for tokenizing: one call of compiled code for many small ones, little memory for large ones."""
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= _TOKENIZED_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def split_document(document: str, options: Options) -> Iterator[str]:
    """Give the sentences of a document."""
    for line in document.split("\n"):
        if options.drop_headings and is_heading(line):
            continue
        if options.lines_are_sentences:
            yield line
        else:
            yield from split_sentences(line)


def is_heading(line: str) -> bool:
    """Tell whether a line looks like a heading: few words, and no mark at its end that closes a sentence."""
    return not _SENTENCE_END.search(line.rstrip()) and len(line.split()) <= _MAX_HEADING_WORDS


def is_held_out(document: bytes, share: float) -> bool:
    """Choose documents by their text, so that the choice does not depend on where or how often one stands."""
    digest = hashlib.blake2b(document, digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _to_arrays(
    ids: list[NDArray[Any]], lengths: list[NDArray[Any]], documents: list[int], vocab_size: int
) -> dict[str, NDArray[Any]]:
    empty = [np.zeros(0, np.int64)]
    sentence_ends = np.cumsum(np.concatenate(lengths or empty))
    return {
        "tokens": np.concatenate(ids or empty).astype(token_type(vocab_size)),
        "sentences": np.concatenate([[0], sentence_ends]).astype(np.uint64),
        "documents": np.concatenate([[0], np.cumsum(documents)]).astype(np.uint64),
    }


def _finish(folder: Path, settings: dict[str, Any], num_units: int, num_replaced: int) -> dict[str, Any]:
    """Put the records together into the manifest, which makes the data complete, and remove them."""
    records = [json.loads(_record_path(folder, number).read_text(encoding="utf-8")) for number in range(num_units)]
    manifest: dict[str, Any] = dict(settings)
    for split in SPLITS:
        manifest[split] = {kind: sum(record[split][kind] for record in records) for kind in COUNTS}
    if not manifest["train"]["tokens"]:
        raise UserError(f"no text to train on in {', '.join(source['name'] for source in settings['sources'][:3])}")
    for name in ("duplicates", "too_short"):
        manifest[name] = sum(record[name] for record in records)
    manifest["replaced_lines"] = num_replaced
    manifest["files"] = {name: entry for record in records for name, entry in sorted(record["files"].items())}
    with atomic_write(folder / MANIFEST) as stream:
        json.dump(manifest, stream, ensure_ascii=False, indent=1)
    (folder / _SETTINGS_FILE).unlink()
    for number in range(num_units):
        _record_path(folder, number).unlink()
    return manifest
