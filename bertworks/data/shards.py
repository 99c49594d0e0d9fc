"""Prepared data on disk: a folder of memory-mapped arrays and a manifest.

- A shard is three `.npy` files: `tokens` (ids, in the smallest type that fits the vocabulary), `sentences` (the start
  of each sentence in the tokens, and the end) and `documents` (the start of each document in the sentences, and the
  end). The loader plans and shuffles one shard at a time.
- The `train` shards are for training; the `holdout` shards contain the held-out documents. The folder also has the
  tokenizer's files and, if tokens are words, the table of their characters.
- The manifest, written last, lists every file with its size and sha256, and how the data was made.
- Cheap checks are made when a folder is opened: sizes, types, shapes, end points. The content of a shard is checked
  before its first use, and again if it has changed on disk: its sha256, the order of its offsets, and that every id is
  in the vocabulary. Compiled code relies on types, shapes and ids without checking them.
- With `skip_bad_shards`, all bad shards must be known beforehand, because a random B may come from any shard. So the
  content of every shard is checked when a split is opened, which takes about a second per gigabyte, or longer on a slow
  disk.
"""

import hashlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bertworks.config import Count, FileRecord, shorten, validate
from bertworks.errors import ConfigError, CorruptFile, UserError
from bertworks.files import MAX_MANIFEST_BYTES, atomic_write, read_object, safe_join, sha256_of, usable_path
from bertworks.text.elmo_words import MAX_CHARACTERS, NUM_CHARACTERS, character_ids
from bertworks.text.gpt import GptTokenizer
from bertworks.text.kinds import CLASSES, AnyTokenizer

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = ("tokens", "sentences", "documents")
SPLITS = ("train", "holdout")
CHARACTERS_FILE = "characters.npy"
_FILE_NAME = rf"^(({'|'.join(SPLITS)})-\d+\.({'|'.join(ARRAYS)})\.npy|{re.escape(CHARACTERS_FILE)})$"


class Shard(NamedTuple):
    """The memory-mapped arrays of a shard."""

    name: str
    tokens: NDArray[Any]
    sentences: NDArray[np.uint64]
    documents: NDArray[np.uint64]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1


def token_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def digest_of_vocabulary(tokenizer: AnyTokenizer) -> str:
    """Return the sha256 of a vocabulary, including any merges; it ties prepared data to its vocabulary."""
    merges = tokenizer.merges if isinstance(tokenizer, GptTokenizer) else []
    return hashlib.sha256("\n".join([*tokenizer.pieces, *map(" ".join, merges)]).encode()).hexdigest()


def write_shard(folder: Path, name: str, arrays: dict[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Write the arrays of a shard; returns each file's size and sha256 for the manifest."""
    entries = {}
    for kind in ARRAYS:
        path = folder / f"{name}.{kind}.npy"
        entries[path.name] = write_array(path, arrays[kind])
    return entries


def write_characters(folder: Path, tokenizer: AnyTokenizer) -> dict[str, dict[str, Any]]:
    """Write the table of characters if tokens are words; returns its entry for the manifest, or an empty dict."""
    if tokenizer.kind != "words":
        return {}
    return {CHARACTERS_FILE: write_array(folder / CHARACTERS_FILE, character_ids(tokenizer.pieces))}


def write_array(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array; returns the file's size and sha256."""
    array = np.ascontiguousarray(array)
    with atomic_write(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(array.data)  # numpy's own writer would hide the system's message about a full disk
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


class _Split(FileRecord):
    tokens: Count
    sentences: Count
    documents: Count


class _File(FileRecord):
    bytes: Count
    sha256: str


class _Manifest(FileRecord):
    """The parts of a manifest that are read: for training, for `inspect`, or to recognise the data."""

    kind: Literal["wordpiece", "gpt-bpe", "words"]
    vocab_size: Count
    train: _Split
    holdout: _Split
    files: dict[Annotated[str, Field(pattern=_FILE_NAME)], _File]
    vocab_sha256: str = ""
    tokenizer: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    duplicates: Count = 0
    empty: Count = 0
    too_short: Count = 0
    replaced_lines: Count = 0


class Dataset:
    """Prepared data, opened.

    Args:
        folder: the folder of the data.
        skip_bad_shards: leave out shards that are corrupt, truncated or missing when a split is opened, with a warning
            for each; a shard that changes later is still an error.

    Attributes:
        folder: the folder of the data.
        skipped: for each bad shard that was left out, what is wrong with it.
        manifest: the contents of the manifest.
        tokenizer: the tokenizer that the data was made with.
        vocab_size: the number of pieces of its vocabulary.
    """

    def __init__(self, folder: str | Path, *, skip_bad_shards: bool = False) -> None:
        self.folder = usable_path(folder)
        self.skipped: list[str] = []
        self._skips = skip_bad_shards
        self._good: dict[str, list[str]] = {}  # the names of a split's shards, without the bad ones
        self.manifest = _read_manifest(self.folder)
        self.vocab_size: int = self.manifest["vocab_size"]
        self.tokenizer: AnyTokenizer = CLASSES[self.manifest["kind"]].from_folder(self.folder)
        # Ids have no meaning in another vocabulary.
        if digest_of_vocabulary(self.tokenizer) != self.manifest.get("vocab_sha256"):
            raise CorruptFile(f"{folder}: its vocabulary is not the one in {MANIFEST}, with which the data was made")
        if self.tokenizer.rules._asdict() != self.manifest.get("tokenizer"):
            raise CorruptFile(f"{folder}: tokenizer_config.json and {MANIFEST} disagree on the tokenizer settings")
        self._checked: dict[Path, tuple[int, ...]] = {}  # the state of each file when its content was checked

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Dataset, skip_bad_shards=self._skips), (self.folder,)

    def shards(self, split: str) -> list[Shard]:
        """Open the shards of a split, in order."""
        names = sorted({name.split(".")[0] for name in self.manifest["files"] if name.startswith(f"{split}-")})
        if not names:
            hint = "; prepare it with --holdout 0.005" if split == "holdout" else ""
            raise UserError(f"{self.folder} has no {split} data{hint}")
        if self._skips:
            if split not in self._good:
                self._good[split] = [name for name in names if self._is_good(name)]
            if not self._good[split]:
                raise CorruptFile(f"{self.folder}: every {split} shard is bad; the last: {self.skipped[-1]}")
            return [self._open(name) for name in self._good[split]]
        shards = [self._open(name) for name in names]
        num_tokens = sum(len(shard.tokens) for shard in shards)
        if num_tokens != self.manifest[split]["tokens"]:
            expected = self.manifest[split]["tokens"]
            raise CorruptFile(f"{self.folder / MANIFEST} lists {num_tokens:,} {split} tokens, not {expected:,}")
        return shards

    def _is_good(self, name: str) -> bool:
        try:
            self.check(self._open(name))
        except CorruptFile as error:
            self.skipped.append(str(error))
            logging.getLogger(__name__).warning("bad shard left out: %s", error)
            return False
        return True

    def check(self, shard: Shard) -> None:
        """Check a shard: its files if they are new or have changed, and its offsets and ids every time."""
        for kind in ARRAYS:
            self._check_file(self._path(shard.name, kind))
        for kind in ("sentences", "documents"):
            offsets = getattr(shard, kind)
            if np.any(offsets[1:] < offsets[:-1]):
                raise CorruptFile(f"{self._path(shard.name, kind)}: offsets do not ascend")
        largest = int(shard.tokens.max(initial=0))
        if largest >= self.vocab_size:
            path = self._path(shard.name, "tokens")
            raise CorruptFile(f"{path}: id {largest} in a vocabulary of {self.vocab_size}")

    def characters(self) -> NDArray[np.uint16]:
        """Map the table with the character ids of each word, [words, 50], after checking its content."""
        kind = self.tokenizer.kind
        if kind != "words":
            raise UserError(
                f"{self.folder} holds {kind} tokens, which have no characters; prepare it with --tokens words"
            )
        path = safe_join(self.folder, CHARACTERS_FILE)
        table = self._map(path, np.uint16, shape=(self.vocab_size, MAX_CHARACTERS))
        self._check_file(path)
        if int(table.max(initial=0)) >= NUM_CHARACTERS:
            raise CorruptFile(f"{path}: character {int(table.max())}; the last one is {NUM_CHARACTERS - 1}")
        return table

    def _check_file(self, path: Path) -> None:
        entry = self.manifest["files"][path.name]
        try:
            state = path.stat()
            # Check the size first: reading a mapped file beyond its new end would kill the process.
            _check_size(path, state.st_size, entry)
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            if self._checked.get(path) == seen:
                return
            if sha256_of(path) != entry["sha256"]:
                raise CorruptFile(f"{path} was altered: its sha256 is not the one in {MANIFEST}")
        except OSError as error:
            raise CorruptFile(f"cannot read {path}: {error.strerror}") from error
        self._checked[path] = seen

    def _path(self, name: str, kind: str) -> Path:
        return safe_join(self.folder, f"{name}.{kind}.npy")

    def _open(self, name: str) -> Shard:
        types = {"tokens": token_type(self.vocab_size), "sentences": np.uint64, "documents": np.uint64}
        arrays = {kind: self._map(self._path(name, kind), types[kind]) for kind in ARRAYS}
        for offsets, target in (("documents", "sentences"), ("sentences", "tokens")):
            values, end = arrays[offsets], len(arrays[target]) - (target == "sentences")
            if len(values) == 0 or values[0] != 0 or values[-1] != end:
                raise CorruptFile(f"{self._path(name, offsets)}: does not fit {name}.{target}.npy")
        return Shard(name, **arrays)

    def _map(self, path: Path, dtype: type[np.generic], shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Map an array of one dimension, or of the shape given."""
        entry = self.manifest["files"].get(path.name)
        if entry is None:
            raise CorruptFile(f"{self.folder / MANIFEST} does not list {path.name}")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CorruptFile(f"{path} is missing, but {MANIFEST} lists it: {error.strerror}") from error
        _check_size(path, size, entry)
        try:
            # Not np.load, which would also open archives and pickles.
            array = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # numpy parses the header with Python's parser, which can raise anything
            raise CorruptFile(f"{path} is not a .npy array: {str(error)[:200]}") from error
        if shape is not None and array.shape != shape:
            raise CorruptFile(f"{path} has the shape {array.shape}, not {shape}")
        if array.ndim != len(shape or (0,)) or array.dtype != dtype:
            raise CorruptFile(f"{path} holds {array.dtype} of {array.ndim} dimensions, not {np.dtype(dtype)} of 1")
        mapped: NDArray[Any] = array.view(np.ndarray)
        return mapped


def _check_size(path: Path, size: int, entry: dict[str, Any]) -> None:
    if size != entry["bytes"]:
        raise CorruptFile(f"{path} has {size} bytes where {MANIFEST} says {entry['bytes']}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that `bertworks prepare` made")
    if not path.exists():
        raise UserError(f"{folder} has no {MANIFEST}: not prepared data, or `bertworks prepare` was not finished")
    manifest = read_object(path, max_bytes=MAX_MANIFEST_BYTES, unique=True)
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path}: format {shorten(manifest.get('format'))}; this version reads {FORMAT}")
    try:
        validate(_Manifest, manifest, str(path))
    except ConfigError as error:
        problems = "; ".join(error.problems)
        raise CorruptFile(f"{path} is not a manifest of prepared data: {problems[:400]}") from error
    return manifest
