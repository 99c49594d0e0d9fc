"""Text to batches: shards of token ids on disk, and training instances made from them while loading.

The public names are imported when they are first used, so that reading a recipe or starting a command does not import
numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertworks.config import DataSettings
    from bertworks.data.loader import Loader, Packed, Shape, State, shape_for
    from bertworks.data.shards import Dataset
    from bertworks.data.workers import batches

__all__ = ["DataSettings", "Dataset", "Loader", "Packed", "Shape", "State", "batches", "shape_for"]

_HOMES = {"DataSettings": "config", "Dataset": "data.shards", "batches": "data.workers"}  # others: data.loader


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bertworks.data' has no attribute {name!r}")
    return getattr(import_module(f"bertworks.{_HOMES.get(name, 'data.loader')}"), name)
