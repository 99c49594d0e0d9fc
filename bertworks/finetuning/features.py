"""Frozen features on disk: computed once for a model and its texts, shared by all that learn from them.

    CACHE/3f0a...c2/part-00000/layer-00.npy   the embeddings of some thousand words, [words, width]
                               layer-12.npy
                               manifest.json  sizes and sha256

A folder's name is the checksum of what decides its content: the encoder's sizes and weights, the type of its numbers,
and what it reads, which is what tokenizer, texts and cut have become: the ids of every window, and which of them label
a word. So another model or other texts have another folder, and nothing has to be compared by hand. A part takes its
name when it is complete; a run that is killed loses the part it is at. Every part is checked against its manifest when
the cache is opened, and one that is not whole, or lacks a layer that is asked for now, is computed again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from bertworks.tasks.heads import Laying
from bertworks.tasks.windows import TagWindow, TagWindows
from bertworks.train.distributed import Ranks
from bertworks.train.run_folder import check_room

_FORM = 1  # of the files; another one has other folders
_PART_TOKENS = 16_384  # a minute of a base model on two cores; some hundred megabytes of all its layers


class FeatureCache:
    """Gives the layers of words, out of its files or by computing them.

    Args:
        folder: where all caches are.
        net: the frozen encoder, in evaluation mode and in its place.
        layers: which are wanted, 0 being the embeddings.
        kept: which are computed and kept, for others to want.
        laying: how tokens are laid for the network.
        ranks: share the work.
        note: is told what is computed or found.

    Attributes:
        checksums: of all files that were given out.
    """

    def __init__(
        self,
        folder: Path,
        net: Bert,
        layers: Sequence[int],
        kept: Sequence[int],
        laying: Laying,
        ranks: Ranks,
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._net, self._layers, self._kept, self._laying = folder, net, layers, set(kept), laying
        self._ranks, self._note = ranks, note
        self._encoder = _encoder_checksum(net)
        self.checksums: list[str] = []

    def find(self, encoded: TagWindows) -> list[Layers]:
        """Return the rows of the words that windows label, in parts mapped from files."""
        parts = list(_parts(encoded.windows))
        folder = self._folder / self._name(encoded.windows)
        make_folder(folder, "folder for features")
        about = f"features of {counted(_num_words(parts), 'word')}, {counted(len(self._kept), 'layer')}"
        self._ranks.be_patient()
        # Only who computes holds the folder: runs that find all they want may share it at the same time.
        if self._ranks.greatest(len(self._missing(folder, parts))):
            self._fill(folder, parts, about)
        else:
            self._note(f"{about}: found in {folder}")
        return [self._opened(_place(folder, number)) for number in range(len(parts))]

    def _name(self, windows: Sequence[TagWindow]) -> str:
        digest = hashlib.sha256(f"{_FORM} {_PART_TOKENS} {self._encoder}".encode())
        for window in windows:
            digest.update(f"{len(window.ids)} {len(window.places)} ".encode())
            digest.update(window.ids.astype("<i4").tobytes() + window.places.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def _missing(self, folder: Path, parts: Sequence[Sequence[TagWindow]]) -> list[int]:
        """Return which of this rank's parts have to be computed."""
        own = range(self._ranks.rank, len(parts), self._ranks.world_size)
        return [number for number in own if not self._is_whole(_place(folder, number))]

    def _fill(self, folder: Path, parts: Sequence[Sequence[TagWindow]], about: str) -> None:
        started = time.monotonic()
        with exclusive(folder) if self._ranks.is_first else nullcontext():
            if self._ranks.is_first:
                remove_leftovers(folder)
            self._meet()
            missing = self._missing(folder, parts)  # again, for another run may have been at it
            check_room(folder, folder, self._num_bytes([parts[number] for number in missing]))
            self._note(f"{about}: computing {len(missing)} of {len(parts)} parts in {folder}")
            for number in missing:
                self._write(_place(folder, number), parts[number])
            self._meet()
        self._note(f"{about}: computed in {time.monotonic() - started:,.1f} s")

    def _meet(self) -> None:
        self._ranks.be_patient()
        self._ranks.wait()

    def _num_bytes(self, parts: Sequence[Sequence[TagWindow]]) -> int:
        return _num_words(parts) * len(self._kept) * self._net.embeddings.norm.weight.nbytes

    def _is_whole(self, place: Path) -> bool:
        """Tell whether a part is as it was written and has all layers."""
        if not place.exists():
            return False
        try:
            return verify_manifest(place).keys() >= {_file(layer) for layer in self._kept}
        except CorruptFile as error:
            self._note(f"{error}; it is computed again")
            return False

    def _write(self, place: Path, windows: Sequence[TagWindow]) -> None:
        layers = set(self._kept)
        if place.exists():
            # With the layers that it has, or those who came for them would take turns with those who come for others.
            layers |= {
                layer for layer in range(self._net.config.num_hidden_layers + 1) if (place / _file(layer)).exists()
            }
            discard_folder(place)
        rows = compute_rows(self._net, windows, sorted(layers), self._laying)
        with atomic_folder(place) as temporary:
            for layer, values in rows.items():
                np.save(temporary / _file(layer), _as_numbers(values), allow_pickle=False)

    def _opened(self, place: Path) -> Layers:
        """Map a part that is whole; its manifest is what stands for its content in a run's settings."""
        files = read_manifest(place / MANIFEST_NAME)
        self.checksums += [files[_file(layer)]["sha256"] for layer in self._layers]
        return {layer: _mapped(place / _file(layer), self._net.embeddings.norm.weight.dtype) for layer in self._layers}


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


def _num_words(parts: Sequence[Sequence[TagWindow]]) -> int:
    return sum(len(window.places) for part in parts for window in part)


def _place(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}"


def _file(layer: int) -> str:
    return f"layer-{layer:02}.npy"


def _as_numbers(values: Tensor) -> NDArray[Any]:
    """Return what numpy can hold: half precision of 8 bits' exponent is nothing that it knows, but bits it does."""
    return values.view(torch.int16).numpy() if values.dtype == torch.bfloat16 else values.numpy()


def _mapped(path: Path, dtype: torch.dtype) -> Tensor:
    # Mapped for writing in memory alone, as torch has no tensors that cannot be written.
    return torch.from_numpy(np.lib.format.open_memmap(path, mode="c")).view(dtype)


def _encoder_checksum(net: Bert) -> str:
    """Return the checksum of an encoder: its sizes, without dropout, and its numbers."""
    sizes = net.config.model_dump(exclude={"hidden_dropout_prob", "attention_probs_dropout_prob"})
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
    for name, weight in net.named_parameters():
        if not name.startswith("heads."):
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
