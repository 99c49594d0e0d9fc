"""Frozen features on disk: computed once for a model and its texts, shared by all that learn from them.

    CACHE/3f0a...c2/part-00000/layer-00.npy   the embeddings of some thousand words, [words, width]
                               layer-12.npy
                               manifest.json  sizes and sha256

A folder's name is the checksum of everything that decides its content: the encoder's sizes and weights, the type of its
numbers, and its input, which is the ids of every window and which of them label a word. So another model or other texts
have another folder, and nothing has to be compared by hand. A part gets its name when it is complete; a run that is
killed loses only the part it is computing. Every part is checked against its manifest when the cache is opened, and is
computed again if it is not whole or lacks a layer.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from bertworks.errors import CorruptFile, counted
from bertworks.files import (
    MANIFEST_NAME,
    atomic_folder,
    discard_folder,
    exclusive,
    make_folder,
    read_manifest,
    remove_leftovers,
    verify_manifest,
)
from bertworks.nn.bert import Bert
from bertworks.tasks.evaluation import Layers, compute_rows
from bertworks.tasks.heads import BatchLayout
from bertworks.tasks.windows import TagWindow, TagWindows
from bertworks.train.distributed import Ranks
from bertworks.train.run_folder import check_room

_FORM = 1  # of the files; another one has other folders
_PART_TOKENS = 16_384  # a minute of a base model on two cores; some hundred megabytes of all its layers

_Parts = Mapping[Path, Sequence[TagWindow]]


class FeatureCache:
    """Gives the layers of words, out of its files or by computing them.

    Args:
        folder: where all caches are.
        net: the frozen encoder, in evaluation mode and on its device.
        layers: which are read, 0 being the embeddings.
        kept: which are computed and kept, also for other runs.
        layout: the layout of batches for the network.
        ranks: share the work.
        note: is called with what is computed or found.

    Attributes:
        checksums: of all files that were given out.
    """

    def __init__(
        self,
        folder: Path,
        net: Bert,
        layers: Sequence[int],
        kept: Sequence[int],
        layout: BatchLayout,
        ranks: Ranks,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._net, self._layers, self._kept, self._layout = folder, net, layers, set(kept), layout
        self._ranks, self._note = ranks, note
        self._encoder = _encoder_checksum(net)
        self.checksums: list[str] = []

    def find(self, encoded: TagWindows) -> list[Layers]:
        """Return the rows of the words that windows label, in parts mapped from files."""
        digest = hashlib.sha256(f"{_FORM} {_PART_TOKENS} {self._encoder}".encode())
        for window in encoded.windows:
            digest.update(f"{len(window.ids)} {len(window.positions)} ".encode())
            digest.update(window.ids.astype("<i4").tobytes() + window.positions.astype("<i8").tobytes())
        folder = self._folder / digest.hexdigest()[:32]
        parts = {folder / f"part-{number:05}": part for number, part in enumerate(_parts(encoded.windows))}
        make_folder(folder, "folder for features")
        about = f"features of {counted(_num_words(parts.values()), 'word')}, {counted(len(self._kept), 'layer')}"
        self._ranks.be_patient()
        # The folder is locked only to compute: runs that find all they need may share it at the same time.
        if self._ranks.greatest(len(self._missing(parts))):
            self._fill(folder, parts, about)
        else:
            self._note(f"{about}: found in {folder}")
        return list(map(self._opened, parts))

    def _missing(self, parts: _Parts) -> list[Path]:
        """Return which of this rank's parts have to be computed: not as they were written, or without all layers."""
        missing = []
        for path in list(parts)[self._ranks.rank :: self._ranks.world_size]:
            try:
                if path.exists() and verify_manifest(path).keys() >= {_file(layer) for layer in self._kept}:
                    continue
            except CorruptFile as error:
                self._note(f"{error}; it is computed again")
            missing.append(path)
        return missing

    def _fill(self, folder: Path, parts: _Parts, about: str) -> None:
        started = time.monotonic()
        with exclusive(folder) if self._ranks.is_first else nullcontext():
            if self._ranks.is_first:
                remove_leftovers(folder)
            self._meet()
            missing = self._missing(parts)  # again, because another run may have computed some
            num_words = _num_words(parts[path] for path in missing)
            check_room(folder, folder, num_words * len(self._kept) * self._net.embeddings.norm.weight.nbytes)
            self._note(f"{about}: computing {len(missing)} of {len(parts)} parts in {folder}")
            for path in missing:
                self._write(path, parts[path])
            self._meet()
        self._note(f"{about}: computed in {time.monotonic() - started:,.1f} s")

    def _meet(self) -> None:
        self._ranks.be_patient()
        self._ranks.wait()

    def _write(self, folder: Path, windows: Sequence[TagWindow]) -> None:
        layers = set(self._kept)
        if folder.exists():
            # With the layers that it has, or two runs that need different layers would replace each other's parts.
            layers |= {
                layer for layer in range(self._net.config.num_hidden_layers + 1) if (folder / _file(layer)).exists()
            }
            discard_folder(folder)
        rows = compute_rows(self._net, windows, sorted(layers), self._layout)
        with atomic_folder(folder) as temporary:
            for layer, values in rows.items():
                # numpy has no bfloat16, but can hold its bits.
                held = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
                np.save(temporary / _file(layer), held.numpy(), allow_pickle=False)

    def _opened(self, folder: Path) -> Layers:
        """Map a whole part; its checksums become part of the run's fingerprint."""
        files, dtype = read_manifest(folder / MANIFEST_NAME), self._net.embeddings.norm.weight.dtype
        self.checksums += [files[_file(layer)]["sha256"] for layer in self._layers]
        # Mapped for writing in memory alone, as torch has no tensors that cannot be written.
        mapped = {layer: np.lib.format.open_memmap(folder / _file(layer), mode="c") for layer in self._layers}
        return {layer: torch.from_numpy(values).view(dtype) for layer, values in mapped.items()}


def _parts(windows: Sequence[TagWindow]) -> Iterator[list[TagWindow]]:
    """Divide windows into parts of about as many tokens."""
    part: list[TagWindow] = []
    size = 0
    for window in windows:
        part.append(window)
        size += len(window.ids)
        if size >= _PART_TOKENS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _num_words(parts: Iterable[Sequence[TagWindow]]) -> int:
    return sum(len(window.positions) for part in parts for window in part)


def _file(layer: int) -> str:
    return f"layer-{layer:02}.npy"


def _encoder_checksum(net: Bert) -> str:
    """Return the checksum of an encoder: its sizes, without dropout, and its numbers."""
    sizes = net.config.model_dump(exclude={"hidden_dropout_prob", "attention_probs_dropout_prob"})
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
    for name, weight in net.named_parameters():
        if not name.startswith("heads."):
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
