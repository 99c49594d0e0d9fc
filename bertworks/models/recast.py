"""A model folder again with numbers of another type: half the bytes to ship, or float32 for what reads nothing else.

Only floating-point tensors change, names and order do not, and the same folder gives the same bytes. bfloat16 keeps
the range of float32 and 8 bits of each number; what does not fit, as may be with float16, is refused by name.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.files import MANIFEST_NAME, atomic_write
from bertworks.models.folder import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE, copy_small_files, read_json, read_tensors
from bertworks.models.kinds import read_model
from bertworks.models.weights import read_weights, write_weights

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TYPE_KEYS = ("dtype", "torch_dtype")  # what config.json may say of the type, today and in 2020


def check_dtype(dtype: str) -> None:
    """Refuse a type that weights are not written in."""
    if dtype not in _TYPES:
        raise UserError(f"--dtype {dtype[:40]!r} is not possible; choose {', '.join(_TYPES)}")


def read_recast(source: Path, dtype: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights of a folder in another type, and notes on what was lost by that."""
    tensors = read_tensors(source, read_weights)
    recast = {name: _recast(name, tensor, _TYPES[dtype]) for name, tensor in tensors.items()}
    rounded = {_name_of(tensor.dtype) for name, tensor in tensors.items() if _loses(tensor.dtype, recast[name].dtype)}
    return recast, [f"rounded from {', '.join(sorted(rounded))} to {dtype}"] if rounded else []


def _recast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    recast = tensor.to(dtype)
    if bool((recast.isinf() & ~tensor.isinf()).any()):
        raise UserError(f"{name[:80]} has numbers too large for {_name_of(dtype)}; float32 keeps them")
    return recast


def _loses(before: torch.dtype, after: torch.dtype) -> bool:
    return torch.promote_types(before, after) != after


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def write_recast(folder: Path, source: Path, tensors: dict[str, Tensor]) -> list[str]:
    """Write the weights and copies of the small files of `source`; returns the names of files that are left out."""
    copy_small_files(source, folder)
    write_weights(folder / WEIGHTS_FILE, tensors)
    _restate_type(folder / CONFIG_FILE, tensors)
    read_model(folder)  # or raise: what does not open is no result
    weights = {path.name for path in source.glob("model*.safetensors")}
    names = {path.name for path in source.iterdir()} - weights - {INDEX_FILE, MANIFEST_NAME}
    return sorted(name for name in names if not (folder / name).exists())


def _restate_type(path: Path, tensors: dict[str, Tensor]) -> None:
    """Say the new type where config.json says one: transformers goes by it."""
    config = read_json(path)
    said = [key for key in _TYPE_KEYS if key in config]
    if said:
        type_name = next(_name_of(tensor.dtype) for tensor in tensors.values() if tensor.is_floating_point())
        with atomic_write(path) as stream:
            json.dump(config | dict.fromkeys(said, type_name), stream, ensure_ascii=False, indent=2)
