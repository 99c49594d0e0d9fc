"""Weights in two files, so that what does not learn is written once and not with every checkpoint.

    model.safetensors.index.json       which tensor lies in which file
    model-00001-of-00002.safetensors   what learns
    model-00002-of-00002.safetensors   what is frozen: the file of an older folder, if it has the same bits, by a link

It is the form in which Hugging Face divides large models, so all that reads a model folder reads it. A hard link is a
file like any other: the folder is whole by itself, wherever it is moved and whatever becomes of the older one. The bits
are compared before, not trusted: an older file that has been damaged is not passed on under a new checksum. Where a
disk has no links the numbers are written again.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.interop.folder import INDEX_FILE, WEIGHTS_FILE
from bertworks.interop.weights import read_weights, write_weights

LEARNT_FILE, FROZEN_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Put = Callable[[Path, Mapping[str, Tensor]], None]


def put_whole(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a folder's weights into one file."""
    write_weights(folder / WEIGHTS_FILE, tensors)


def put_divided(
    folder: Path, tensors: Mapping[str, Tensor], is_frozen: Callable[[str], bool], before: Path | None
) -> None:
    """Write a folder's weights into two files and an index.

    Args:
        folder: is there.
        tensors: all of them, by their names in the folder.
        is_frozen: tells by its name which does not learn.
        before: a folder that may have the frozen ones.
    """
    frozen = {name: tensor for name, tensor in tensors.items() if is_frozen(name)}
    write_weights(folder / LEARNT_FILE, {name: tensor for name, tensor in tensors.items() if name not in frozen})
    if before is None or not _link(before / FROZEN_FILE, folder / FROZEN_FILE, frozen):
        write_weights(folder / FROZEN_FILE, frozen)
    places = {name: FROZEN_FILE if name in frozen else LEARNT_FILE for name in sorted(tensors)}
    size = sum(tensor.nbytes for tensor in tensors.values())
    with atomic_write(folder / INDEX_FILE) as stream:
        json.dump({"metadata": {"total_size": size}, "weight_map": places}, stream, indent=1)


def _link(source: Path, target: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Link a file that holds these tensors and no others; returns whether it does and could be."""
    try:
        there = read_weights(source)
        if there.keys() != tensors.keys() or not all(_are_same(there[name], tensors[name]) for name in there):
            return False
        os.link(source, target)
    except (UserError, OSError):
        return False
    return True


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Compare bits, for which -0.0 is not 0.0 and a NaN is what it is."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (one, other)))
