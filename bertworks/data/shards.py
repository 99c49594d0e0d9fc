"""Prepared data on disk: a folder of small memory-mapped arrays and a manifest.

A shard is three `.npy` files: `tokens` (ids in the smallest type that holds the vocabulary), `sentences` (where each
sentence starts in the tokens, and the end) and `documents` (where each document starts in the sentences, and the end).
The `train` shards are for training; `holdout` has whole documents kept aside. The manifest, written last, lists every
file with its size and sha256, and how the data was made. A shard is also the block that the loader plans and shuffles.

What is cheap is checked when a folder is opened: sizes, types, shapes, end points. A shard's content is checked when it
is first entered: its sha256, the order of its offsets, and that every id is in the vocabulary.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write, safe_join, sha256_of

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = ("tokens", "sentences", "documents")
SPLITS = ("train", "holdout")
_HEADER_BYTES = 128  # of a .npy file with a short header


class Shard(NamedTuple):
    """The arrays of one shard, mapped into memory."""

    name: str
    tokens: NDArray[Any]
    sentences: NDArray[np.uint64]
    documents: NDArray[np.uint64]

    @property
    def num_documents(self) -> int:
        """How many documents it has."""
        return len(self.documents) - 1


def token_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type that holds every id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def write_shard(folder: Path, name: str, arrays: dict[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Write the arrays of a shard; returns each file's size and sha256 for the manifest."""
    entries = {}
    for kind in ARRAYS:
        path = folder / f"{name}.{kind}.npy"
        with atomic_write(path, "wb") as stream:
            np.lib.format.write_array(stream, np.ascontiguousarray(arrays[kind]), version=(1, 0), allow_pickle=False)
        entries[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return entries


class Dataset:
    """Prepared data, opened.

    Attributes:
        folder: where it lies.
        manifest: what the manifest says, as read.
        vocab_size: the number of pieces of the vocabulary it was made with.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self.vocab_size: int = self.manifest["vocab_size"]
        self._checked: set[str] = set()

    def shards(self, split: str) -> list[Shard]:
        """Open the shards of a split, in order."""
        names = sorted({name.split(".")[0] for name in self.manifest["files"] if name.startswith(f"{split}-")})
        if not names:
            raise UserError(f"{self.folder} has no {split} data" + _hint(split))
        return [self._open(name) for name in names]

    def check(self, shard: Shard) -> None:
        """Check a shard's content the first time it is entered, and that its ids are in the vocabulary every time."""
        if shard.name not in self._checked:
            for kind in ARRAYS:
                path = self._path(shard.name, kind)
                if sha256_of(path) != self.manifest["files"][path.name]["sha256"]:
                    raise CorruptFile(f"{path} was altered: its sha256 is not the one in {MANIFEST}")
            for kind in ("sentences", "documents"):
                if np.any(np.diff(getattr(shard, kind).astype(np.int64)) < 0):
                    raise CorruptFile(f"{self._path(shard.name, kind)}: offsets do not ascend")
            self._checked.add(shard.name)
        if len(shard.tokens) and int(shard.tokens.max()) >= self.vocab_size:
            raise CorruptFile(
                f"{self._path(shard.name, 'tokens')}: id {shard.tokens.max()} in a vocabulary of {self.vocab_size}"
            )

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

    def _map(self, path: Path, dtype: type[np.generic]) -> NDArray[Any]:
        entry = self.manifest["files"].get(path.name)
        if entry is None:
            raise CorruptFile(f"{self.folder / MANIFEST} does not list {path.name}")
        try:
            if path.stat().st_size != entry["bytes"]:
                raise CorruptFile(f"{path} has {path.stat().st_size} bytes where {MANIFEST} says {entry['bytes']}")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise CorruptFile(f"{path} is missing, but {MANIFEST} lists it") from None
        except (OSError, ValueError) as error:
            raise CorruptFile(f"{path} is not a .npy array: {error}") from error
        if array.ndim != 1 or array.dtype != dtype:
            raise CorruptFile(f"{path} holds {array.dtype} of {array.ndim} dimensions, not {np.dtype(dtype)} of 1")
        mapped: NDArray[Any] = array.view(np.ndarray)
        return mapped


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one that `bertworks prepare` made")
    if not path.exists():
        raise UserError(f"{folder} has no {MANIFEST}: not prepared data, or `bertworks prepare` was not finished")
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise UserError(f"{path}: format {manifest['format']!r}; this version reads {FORMAT}")
        files = manifest["files"]
        assert_fits = (int(manifest["vocab_size"]), *(int(entry["bytes"]) for entry in files.values()))
        if min(assert_fits) < 0 or not all(re.fullmatch(r"\w+-\d+\.\w+\.npy", name) for name in files):
            raise ValueError("sizes or names out of range")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not a manifest of prepared data: {error}") from error
    return manifest  # type: ignore[no-any-return]


def _hint(split: str) -> str:
    return "; prepare it with --holdout 0.005" if split == "holdout" else ""
