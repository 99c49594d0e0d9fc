"""From a corpus to shards of token ids: one streaming pass, with the same bytes for any number of processes.

- One process reads the corpus and cuts it into units: whole documents, about sixteen million bytes. Other processes
  turn units into shards: sentences, token ids, files on disk with their checksums. The result depends only on the
  unit's text, so it does not matter which process, or which machine of a Ray cluster (`ray.py`), makes it.
- A unit ends at the first document end after it is full, so the cuts depend only on the text and not on how it is read.
  Only a document that is larger than two units is cut, at a line end, so that memory is bounded for every corpus.
- A unit's record is written after its files. A run that resumes finds the records, checks by their checksums that the
  corpus is unchanged, and makes only the missing units. The manifest is written last.
- Sentences and documents without tokens are dropped; such documents are counted. Nothing else is dropped unless an
  option says so.
"""

import contextlib
import hashlib
import json
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks import __version__
from bertworks.cluster import is_on_ray
from bertworks.data.shards import (
    ARRAYS,
    CHARACTERS_FILE,
    FORMAT,
    MANIFEST,
    SPLITS,
    digest_of_vocabulary,
    token_type,
    write_characters,
    write_shard,
)
from bertworks.errors import UserError, counted
from bertworks.files import (
    LOCK_NAME,
    MAX_MANIFEST_BYTES,
    TEMPORARY_PREFIX,
    atomic_write,
    digest64,
    exclusive,
    make_folder,
    read_object,
    usable_path,
)
from bertworks.processes import ProgressCallback, in_batches, num_workers, progress_bar, wait_for, worker_pool
from bertworks.text.corpus import Corpus, Sources, open_corpus
from bertworks.text.fast import compiled
from bertworks.text.kinds import CLASSES, TOKENIZER_FILES, AnyTokenizer, open_tokenizer
from bertworks.text.normalize import Rules
from bertworks.text.sentences import split_sentences

UNIT_BYTES = 1 << 24
_MAX_UNITS = 2  # a longer document is cut, because a process needs about five times the memory of its text
_LINE_END = b"\n"
_DOCUMENT_END = b"\n\n"

_SETTINGS_FILE = "prepare.json"  # exists until the run is finished
_RECORD = re.compile(r"unit-\d+\.json")
_SHARD_FILE = re.compile(rf"({'|'.join(SPLITS)})-\d+\.({'|'.join(ARRAYS)})\.npy")
_LEFT_OUT = ("duplicates", "empty", "too_short")  # documents, by reason


class Options(NamedTuple):
    """Options of the preparation besides tokenization; by default nothing is dropped or held out."""

    holdout: float = 0.0
    lines_are_sentences: bool = False
    drop_headings: bool = False
    drop_duplicates: bool = False
    min_tokens: int = 0


class Job(NamedTuple):
    """The inputs of a process that makes shards."""

    folder: Path  # has the tokenizer's files; the shards are written here
    kind: str  # of tokens
    vocab_size: int
    options: Options


def prepare(
    corpus: Corpus | Sources,
    vocab: AnyTokenizer | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    holdout: float = 0.0,
    lines_are_sentences: bool = False,
    drop_headings: bool = False,
    drop_duplicates: bool = False,
    min_tokens: int = 0,
    workers: int | None = None,
    runner: str = "local",
    quiet: bool = False,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Turn raw text into shards to pre-train on, in the folder `out`, and return their manifest; a killed run resumes.

    >>> import bertworks as bw
    >>> bw.learn_vocabulary("corpus.txt", size=100, min_count=1, quiet=True).save("vocab.txt")
    >>> manifest = bw.prepare("corpus.txt", vocab="vocab.txt", out="DATA", quiet=True)
    >>> manifest["train"]["documents"]
    2

    Args:
        corpus: files, folders or patterns, one or a list; or a `Corpus`.
        vocab: a vocabulary file (then text is lower-cased), a model's name or folder, or a tokenizer.
        out: a new folder, or that of an interrupted run with the same settings; the tokenizer is saved there too.
        holdout: the share of the documents to hold out for evaluation.
        lines_are_sentences: take every line as one sentence.
        drop_headings: leave out lines that are headings.
        drop_duplicates: keep only the first of identical documents.
        min_tokens: leave out documents with fewer tokens.
        workers: the number of processes; one per core if not given.
        runner: where the processes run: `local`, or `ray` for a Ray cluster; the bytes are the same.
        quiet: show no progress; otherwise a bar is shown, or lines if there is no terminal.
        progress: a function that is called with the progress instead.
    """
    run = run_local
    if is_on_ray(runner):
        from bertworks.data.ray import run_on_ray

        run = run_on_ray
    if isinstance(vocab, str | os.PathLike):
        from bertworks.models.folder import find_encoder, find_model, is_model

        path = os.fspath(vocab)
        tokenizer = open_tokenizer(find_encoder(find_model(path)) if is_model(path) else path, Rules())
        corpus = open_corpus(corpus, without=[path])
    else:
        tokenizer, corpus = vocab, open_corpus(corpus)
    options = Options(holdout, lines_are_sentences, drop_headings, drop_duplicates, min_tokens)
    folder = Path(out)
    settings = {
        "format": FORMAT,
        "made_by": {"bertworks": __version__, "unicode": unicodedata.unidata_version},
        "kind": tokenizer.kind,
        "vocab_size": len(tokenizer),
        "vocab_sha256": digest_of_vocabulary(tokenizer),
        "tokenizer": tokenizer.rules._asdict(),
        "options": options._asdict(),
        "sources": [
            {"name": path.name, "bytes": path.stat().st_size if path.exists() else None} for path in corpus.files
        ],
    }
    is_new = not usable_path(folder).exists()
    make_folder(folder)
    try:
        with (
            exclusive(folder),
            contextlib.nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as shown,
        ):
            if _is_finished(folder, settings):
                return _clear(folder)
            with _nothing_half_done(folder):
                tokenizer.save(folder)
                characters = write_characters(folder, tokenizer)
                job = Job(folder, tokenizer.kind, len(tokenizer), options)
                tally = _Tally(corpus, shown)
                run(_units_to_make(corpus, job, tally), load_tokenizer, make_shard, job, workers, tally.made)
            manifest = _manifest(folder, settings, tally.num_units) | {"replaced_lines": corpus.num_replaced}
            manifest["files"] |= characters
            if not manifest["train"]["tokens"]:
                _discard(folder)
                counts = {name.replace("_", " "): manifest[name] for name in _LEFT_OUT}
                counts["held out"] = manifest["holdout"]["documents"]
                gone = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
                raise UserError(f"{corpus.names}: no text to train on{f' (documents: {gone})' if gone else ''}")
            with atomic_write(folder / MANIFEST) as stream:
                json.dump(manifest, stream, ensure_ascii=False, indent=1)
            return _clear(folder)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # succeeds only if the folder is empty, because the run made nothing
                folder.rmdir()


def run_local(
    units: "Iterable[Unit]",
    load: Callable[[Any], None],
    make: "Callable[[Unit, Any], Any]",
    job: Any,
    workers: int | None,
    use: Callable[[Any], object],
) -> None:
    """Make units in processes on this machine, by default one per core.

    A runner takes units as they are read, and has a bounded number of them in progress. It calls `load(job)` once in
    every process, `make(unit, job)` for every unit, and `use` with the result.
    """
    num_processes = num_workers(workers)
    with worker_pool(num_processes, load, job) as pool:
        pending: set[Future[Any]] = set()
        for unit in units:
            pending.add(pool.submit(make, unit, job))
            # Waiting units take memory: one more than there are processes keeps all of them busy.
            pending = wait_for(pending, num_processes, use)
        wait_for(pending, 0, use)


class _Tally:
    """Counts the units that have been made, to report progress."""

    def __init__(self, corpus: Corpus, progress: ProgressCallback) -> None:
        self.num_units = 0
        self._corpus, self._progress = corpus, progress
        self._read = 0  # bytes of the corpus up to the last unit that was made
        self._read_by_unit: dict[int, int] = {}
        self._documents = self._tokens = self._text_bytes = 0
        self._started = time.monotonic()
        progress("preparing", 0, corpus.total_bytes, "")

    def cut(self, unit: "Unit") -> None:
        self.num_units += 1
        self._read_by_unit[unit.number] = self._corpus.bytes_read

    def made(self, made: tuple[dict[str, Any], int]) -> None:
        """Add the result of `make_shard` for a unit."""
        record, text_bytes = made
        self._read = max(self._read, self._read_by_unit.pop(record["number"]))
        self._documents += sum(record[split]["documents"] for split in SPLITS)
        self._tokens += sum(record[split]["tokens"] for split in SPLITS)
        self._text_bytes += text_bytes
        speed = self._text_bytes / 1e6 / max(1e-3, time.monotonic() - self._started)
        millions = f"{self._tokens / 1e6:,.{0 if self._tokens > 1e8 else 1}f}M"
        detail = f"{counted(self._documents, 'document')}, {millions} tokens, {speed:.1f} MB/s"
        self._progress("preparing", self._read, self._corpus.total_bytes, detail if self._documents else "")


# The corpus, cut into units.


class Unit(NamedTuple):
    """Some documents as UTF-8 lines, with an empty line after each document."""

    number: int
    text: bytes
    num_duplicates: int  # documents that were left out because they occurred earlier in the corpus
    # If the first document continues one that was cut: the key of that document's first piece; otherwise empty.
    first_piece_key: bytes = b""

    def documents(self) -> list[bytes]:
        """Return the documents, each as its lines joined by newlines."""
        return [document for document in self.text.rstrip(_LINE_END).split(_DOCUMENT_END) if document]

    def digest(self) -> str:
        """Return a checksum of the text; a resumed run uses it to check that the corpus is unchanged."""
        return hashlib.blake2b(self.text, digest_size=16).hexdigest()


def cut_units(blocks: Iterable[str], *, drop_duplicates: bool = False) -> Iterator[Unit]:
    """Cut blocks of lines, as `Corpus.blocks` gives them, into units."""
    seen = SeenDigests()
    first_piece_key = b""
    for number, text in enumerate(_cut(blocks)):
        unit = Unit(number, text, 0, first_piece_key)
        if drop_duplicates:  # keep only the first of identical documents
            documents = unit.documents()
            is_new = seen.add(b"".join(hashlib.blake2b(each, digest_size=DIGEST_BYTES).digest() for each in documents))
            kept = [document + _DOCUMENT_END for document, new in zip(documents, is_new, strict=True) if new]
            before = first_piece_key if len(is_new) and is_new[0] else b""
            unit = Unit(number, b"".join(kept), len(documents) - len(kept), before)
        yield unit
        is_cut = not text.endswith(_DOCUMENT_END)  # then the unit is a piece of one document
        first_piece_key = (first_piece_key or digest64(text.removesuffix(_LINE_END))) if is_cut else b""


def _cut(blocks: Iterable[str]) -> Iterator[bytes]:
    text = bytearray()
    for block in blocks:
        text += block.encode("utf-8")
        while end := _unit_end(text):
            yield bytes(text[:end])
            del text[:end]
    if text:
        yield bytes(text)


def _unit_end(text: bytearray) -> int:
    """Return where the first unit of the text ends, or 0 if that depends on text that is still to come."""
    most = _MAX_UNITS * UNIT_BYTES
    # Search one byte further than `most`: a document end across the limit must not be taken for a line end.
    end = text.find(_DOCUMENT_END, max(0, UNIT_BYTES - len(_DOCUMENT_END)), most + 1)
    if end >= 0:
        return end + len(_DOCUMENT_END)
    if len(text) <= most:
        return 0
    end = text.rfind(_DOCUMENT_END, 0, most)
    if end >= 0:
        return end + len(_DOCUMENT_END)
    end = text.rfind(_LINE_END, 0, most)
    assert end >= 0, "a corpus has no line of that length"
    return end + len(_LINE_END)


# The set of documents seen so far, in about twenty bytes per document: a checksum of 16 bytes and some free space.
# There are sixteen hash tables with open addressing, chosen by the checksum's last bits. They grow one at a time, so
# the temporary memory for growing is a sixteenth of the whole. A Python set takes about a hundred bytes per checksum.

_NUM_TABLES = 16
_FIRST_ROWS = 1 << 10
_FULL = 0.9  # finding a free row then takes about five steps
_GROWTH = 1.5
DIGEST_BYTES = 16


class SeenDigests:
    """A set of checksums of 16 bytes."""

    def __init__(self) -> None:
        self._tables = [np.zeros((_FIRST_ROWS, 2), np.uint64) for _ in range(_NUM_TABLES)]
        self._counts = [0] * _NUM_TABLES

    def add(self, digests: bytes) -> NDArray[np.bool_]:
        """Add concatenated checksums, and return for each whether it is new."""
        rows = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        is_new = np.zeros(len(rows), np.bool_)
        numbers = rows[:, 1] % np.uint64(_NUM_TABLES)
        for number in range(_NUM_TABLES):
            own = np.flatnonzero(numbers == number)
            table, needed = self._tables[number], self._counts[number] + len(own)
            if needed > len(table) * _FULL:
                # Grow by what may be needed, not by a factor alone: a unit may have very many documents.
                larger = np.zeros((max(int(needed / _FULL) + 1, int(len(table) * _GROWTH)), 2), np.uint64)
                _insert(larger, table[table.any(axis=1)])
                self._tables[number] = larger
            is_new[own] = _insert(self._tables[number], rows[own])
            self._counts[number] += int(is_new[own].sum())
        return is_new

    @property
    def nbytes(self) -> int:
        """The memory that it takes, in bytes."""
        return sum(table.nbytes for table in self._tables)


@compiled
def _insert(table: Any, digests: Any) -> Any:
    """Insert checksums by linear probing; returns which of them were new. A row of zeros is free."""
    is_new = np.zeros(len(digests), np.bool_)
    for index in range(len(digests)):
        first, second = digests[index, 0], digests[index, 1]
        if first == 0 and second == 0:
            second = np.uint64(_NUM_TABLES)
        row = np.int64(first % np.uint64(len(table)))
        while (table[row, 0] != first or table[row, 1] != second) and (table[row, 0] != 0 or table[row, 1] != 0):
            row = (row + 1) % len(table)
        is_new[index] = table[row, 0] == 0 and table[row, 1] == 0
        table[row, 0], table[row, 1] = first, second
    return is_new


# Turning a unit into the arrays of its shards. Memory is bounded: the compiled tokenizer needs about fifty bytes per
# character, so it gets half a million characters at a time.

_TOKENIZED_AT_ONCE = 1 << 19
_SENTENCE_END = re.compile(r"[.!?…。！？:;,][\"'”’)\]」』》]*$")
_MAX_HEADING_WORDS = 12
_tokenizers: dict[str, AnyTokenizer] = {}  # in a process that makes shards: its only tokenizer


def load_tokenizer(job: Job) -> None:
    """Load the tokenizer in a process that makes shards."""
    _tokenizers["current"] = CLASSES[job.kind].from_folder(job.folder)


def make_shard(unit: Unit, job: Job) -> tuple[dict[str, Any], int]:
    """Write the files of a unit's shards and their record; returns the record, and the size of the text in bytes."""
    arrays_of, num_empty, num_too_short = make_arrays(unit, _tokenizers["current"], job.options, job.vocab_size)
    record: dict[str, Any] = {"digest": unit.digest(), "duplicates": unit.num_duplicates}
    record |= {"empty": num_empty, "too_short": num_too_short, "files": {}}
    for split, arrays in arrays_of.items():
        record[split] = {kind: len(arrays[kind]) - (kind != "tokens") for kind in ARRAYS}
        if len(arrays["tokens"]):
            record["files"] |= write_shard(job.folder, f"{split}-{unit.number:05d}", arrays)
    with atomic_write(_record_path(job.folder, unit.number)) as stream:
        json.dump(record, stream, indent=1)
    return record | {"number": unit.number}, len(unit.text)


def make_arrays(
    unit: Unit, tokenizer: AnyTokenizer, options: Options, vocab_size: int
) -> tuple[dict[str, dict[str, NDArray[Any]]], int, int]:
    """Turn the text of a unit into tokens, sentence offsets and document offsets, by split.

    Also returns the number of documents without tokens, and of those with too few.
    """
    gathered: dict[str, Any] = {split: ([], [], []) for split in SPLITS}  # ids, lengths of sentences, of documents
    num_empty = num_too_short = 0
    first_piece_key = unit.first_piece_key
    for documents in in_batches(unit.documents(), _TOKENIZED_AT_ONCE):
        for document, ids, lengths in _tokenize(documents, tokenizer, options, vocab_size):
            key, first_piece_key = first_piece_key or digest64(document), b""
            if not len(ids):
                num_empty += 1
            elif len(ids) < options.min_tokens:
                num_too_short += 1
            else:
                split = SPLITS[is_held_out(key, options.holdout)]
                for part, added in zip(gathered[split], (ids, lengths, np.array([len(lengths)])), strict=True):
                    part.append(added)
    arrays = {}
    for split, parts in gathered.items():
        ids, *lengths_of = (np.concatenate(part) if part else np.zeros(0, np.int64) for part in parts)
        arrays[split] = {"tokens": ids.astype(token_type(vocab_size), copy=False)}
        for kind, lengths in zip(ARRAYS[1:], lengths_of, strict=True):
            offsets = arrays[split][kind] = np.zeros(len(lengths) + 1, np.uint64)
            np.cumsum(lengths, out=offsets[1:].view(np.int64))
    return arrays, num_empty, num_too_short


def _tokenize(
    documents: list[bytes], tokenizer: AnyTokenizer, options: Options, vocab_size: int
) -> Iterator[tuple[bytes, NDArray[Any], NDArray[np.int64]]]:
    """Yield each document with its ids and the lengths of its sentences; sentences without tokens are left out."""
    sentences = [list(split_document(document.decode("utf-8"), options)) for document in documents]
    batches = in_batches((sentence for each in sentences for sentence in each), _TOKENIZED_AT_ONCE)
    tokens = [tokenizer.ids_of(batch) for batch in batches]
    # Convert the ids first: BERT's tokenizer returns a column of a table that takes eight times the memory.
    parts = [batch_ids.astype(token_type(vocab_size)) for batch_ids, _ in tokens]
    ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    lengths = np.concatenate([counts for _, counts in tokens]) if tokens else np.zeros(0, np.int64)
    first_sentence = first_token = 0
    for document, its_sentences in zip(documents, sentences, strict=True):
        its_lengths = lengths[first_sentence : first_sentence + len(its_sentences)]
        num_tokens = int(its_lengths.sum())
        yield document, ids[first_token : first_token + num_tokens], its_lengths[its_lengths > 0]
        first_sentence += len(its_sentences)
        first_token += num_tokens


def split_document(document: str, options: Options) -> Iterator[str]:
    """Yield the sentences of a document."""
    for line in document.split("\n"):
        if options.drop_headings and is_heading(line):
            continue
        if options.lines_are_sentences:
            yield line
        else:
            yield from split_sentences(line)


def is_heading(line: str) -> bool:
    """Tell whether a line looks like a heading: few words, and no punctuation at its end."""
    return not _SENTENCE_END.search(line.rstrip()) and len(line.split()) <= _MAX_HEADING_WORDS


def is_held_out(key: bytes, share: float) -> bool:
    """Choose documents by a checksum of their text, so that their position and repetitions do not matter.

    All pieces of a document that was cut go with the first piece, so that a document is never in both splits.
    """
    return int.from_bytes(key, "big") < share * 2**64


# The folder of a run: its settings, the records of its units, and at the end the manifest.


def _is_finished(folder: Path, settings: dict[str, Any]) -> bool:
    """Begin a run, or check that the folder belongs to one with the same settings; returns whether it is finished."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith((TEMPORARY_PREFIX, LOCK_NAME))]
    if _SETTINGS_FILE in names:
        before, now = _read_object(folder / _SETTINGS_FILE), json.loads(json.dumps(settings))
        if before | {"made_by": None} != now | {"made_by": None}:
            raise UserError(
                f"{folder} belongs to an interrupted run with another corpus, vocabulary or options; "
                "give the same ones to resume it, or remove it"
            )
        # Another version may split sentences or tokens differently, and all shards of a run must be made alike.
        if before.get("made_by") != now["made_by"]:
            then, this = map(_version_text, (before.get("made_by"), now["made_by"]))
            raise UserError(
                f"{folder} belongs to an interrupted run of {then}, and this is {this}; resume it with that version, "
                "or remove the folder"
            )
        return MANIFEST in names
    if MANIFEST in names:
        raise UserError(f"{folder} holds prepared data already; choose another --out, or remove it")
    if names:
        raise UserError(f"{folder} is not empty; choose another --out")
    with _nothing_half_done(folder), atomic_write(folder / _SETTINGS_FILE) as stream:
        json.dump(settings, stream, ensure_ascii=False, indent=1)
    return False


def _version_text(made_by: Any) -> str:
    known = made_by if isinstance(made_by, dict) else {}
    return f"bertworks {known.get('bertworks', '?')} with Unicode {known.get('unicode', '?')}"


@contextlib.contextmanager
def _nothing_half_done(folder: Path) -> Iterator[None]:
    """Remove the temporary files of killed processes; if an error occurs before any unit is done, remove everything."""
    is_done = False
    try:
        yield
        is_done = True
    finally:
        for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(OSError):
                path.unlink()
        if not is_done and not _files_like(folder, _RECORD):
            _discard(folder)


def _units_to_make(corpus: Corpus, job: Job, tally: _Tally) -> Iterator[Unit]:
    """Yield every unit that has no record yet."""
    for unit in cut_units(corpus.blocks(), drop_duplicates=job.options.drop_duplicates):
        tally.cut(unit)
        if is_done(job.folder, unit):
            tally.made((_read_object(_record_path(job.folder, unit.number)) | {"number": unit.number}, 0))
        else:
            yield unit


def is_done(folder: Path, unit: Unit) -> bool:
    """Tell whether a unit has its record and all its files; otherwise it is made again."""
    record = _read_object(_record_path(folder, unit.number))
    try:
        if (record["digest"], record["duplicates"]) != (unit.digest(), unit.num_duplicates):
            raise UserError(f"the corpus has changed since {folder} was started; remove it to start again")
        counts = [record[split][kind] for split in SPLITS for kind in ARRAYS] + [record[name] for name in _LEFT_OUT]
        files = {name: entry["bytes"] for name, entry in record["files"].items()}
        is_whole = all((folder / name).stat().st_size == size for name, size in files.items())
    except (KeyError, TypeError, AttributeError, OSError):
        return False
    return is_whole and all(type(count) is int for count in counts)


def _manifest(folder: Path, settings: dict[str, Any], num_units: int) -> dict[str, Any]:
    """Return the manifest: the settings and the records of all units together."""
    if len(_files_like(folder, _RECORD)) > num_units:
        raise UserError(f"the corpus has become shorter since {folder} was started; remove it to start again")
    records = [_read_object(_record_path(folder, number)) for number in range(num_units)]
    if not all(records):
        raise UserError(f"a record of {folder} is missing; is another run writing there? Start again to resume")
    manifest: dict[str, Any] = dict(settings)
    for split in SPLITS:
        manifest[split] = {kind: sum(record[split][kind] for record in records) for kind in reversed(ARRAYS)}
    for name in _LEFT_OUT:
        manifest[name] = sum(record[name] for record in records)
    manifest["files"] = {name: entry for record in records for name, entry in sorted(record["files"].items())}
    return manifest


def _record_path(folder: Path, number: int) -> Path:
    return folder / f"unit-{number:05d}.json"


def _read_object(path: Path) -> dict[str, Any]:
    """Return the contents of one of our JSON files, or an empty dict if it cannot be read."""
    try:
        return read_object(path, max_bytes=MAX_MANIFEST_BYTES)
    except UserError:
        return {}


def _files_like(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if name.fullmatch(path.name)]


def _clear(folder: Path) -> dict[str, Any]:
    """Remove the files that only an unfinished run needs, the settings last, and return the manifest."""
    for path in (*_files_like(folder, _RECORD), folder / _SETTINGS_FILE):
        path.unlink(missing_ok=True)
    return _read_object(folder / MANIFEST)


def _discard(folder: Path) -> None:
    """Remove the files that a failed run has made, and no others."""
    for path in (*(folder / name for name in (*TOKENIZER_FILES, CHARACTERS_FILE)), *_files_like(folder, _SHARD_FILE)):
        path.unlink(missing_ok=True)
    _clear(folder)
