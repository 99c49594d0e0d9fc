"""Where to compute: the device that a person names, or the best one there is; and whether its matrix tiles work.

Some virtual machines announce a CPU's matrix tiles (AMX) and hide how large they are. oneDNN, which multiplies matrices
of bfloat16 for torch, trusts the announcement, and the process dies of an illegal instruction. So one product is tried
in a child first.
"""

import faulthandler
import logging
import os
import signal
import warnings
from functools import cache
from pathlib import Path

import torch

from bertworks.errors import UserError

_CPU_FACTS = Path("/proc/cpuinfo")
_ISA, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
_log = logging.getLogger(__name__)


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # refused by `meta` too, a device without memory
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"the device {name[:40]!r} is not there; choose auto or cpu") from error
    return device


def check_tiles(device: torch.device, dtype: torch.dtype) -> None:
    """Keep torch from tiles that do not work; to be called before anything is computed in `dtype` on `device`."""
    if device.type == "cpu" and dtype == torch.bfloat16:
        _check_once()


@cache
def _check_once() -> None:
    if not _announces_tiles() or _survives_a_product():
        return
    os.environ.setdefault(_ISA, _WITHOUT_TILES)
    if not _survives_a_product():  # oneDNN reads its environment once, and has been used in this process
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
        _log.warning(
            "this machine announces matrix tiles (AMX) that do not work, so bfloat16 is computed slowly; set %s=%s "
            "before the program starts",
            _ISA,
            _WITHOUT_TILES,
        )


def _announces_tiles() -> bool:
    return _CPU_FACTS.is_file() and "amx_tile" in _CPU_FACTS.read_text()


def _survives_a_product() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not wait for
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.signal(signal.SIGILL, signal.SIG_DFL)
        torch.set_num_threads(1)
        matrix = torch.ones(64, 64, dtype=torch.bfloat16)
        torch.mm(matrix, matrix)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
