"""How much memory a run takes at its peak, by what it is for, and how much of it this machine has.

For the backward pass a block keeps, of every token, sixteen times its width in the type that is computed in: what comes
in (1), queries, keys and values (3), what attention gives (1), that projected (1), normalised (1), the feed-forward
layer before and after gelu (4 + 4), and its output (1). What dropout needs is a hash. Besides, each head keeps one
fp32 number and each LayerNorm two. While a block's gradients are computed they take about as much again, once. With
`train.recompute` only what comes into a block is kept; the rest is made again, a block at a time.

Everything is added up, though the last gradients come when most of what was kept is gone: a run takes somewhat less.

On a CPU nothing is fused: a block keeps five widths more (queries, keys and values once more as attention wants them,
and two masks of dropout), and with dropout three numbers for each pair of tokens and head (attention's weights before
and after dropout, and its mask). Scores of the vocabulary are there four times in fp32 when their gradient is made.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.plan.network import Network

GIGA = 1e9
_KEPT_WIDTHS = 16
_KEPT_BYTES_OF_NORMS = 2 * 2 * 4
_EMBEDDED_BYTES = 6  # of each number of a token: the sum in fp32, and what goes into the first block
_SCORES_AT_ONCE = 1 << 28  # that a language model makes, see nn/lm.py
_KEPT_WIDTHS_OF_CPU, _KEPT_PAIRS_OF_CPU, _SCORES_OF_CPU = 21, 3, 4
_KEPT_BY_LSTMS_OF_CPU = 2.0  # times what cuDNN keeps: each operation of each step keeps its own
_READ_SHARE_OF_CPU = 0.33  # a word that occurs twice in a batch is read once, and little of its padding
_KEPT_CELLS_OF_CPU = 15  # of an LSTM: four gates before and after, and what is made of them, step by step
_PROGRAM_BYTES = 0.4 * GIGA  # Python, torch, the tokenizer and the data
# A formula is not exact: a warning where a run may fail, a refusal only where it must.
_NEAR, _TOO_MUCH = 0.85, 1.4
_NO_LIMIT = 1 << 60  # what cgroups of version 1 call no limit is more
_CONTEXT_BYTES = 1.0 * GIGA  # CUDA's own, and the workspaces of its libraries
_USABLE_SHARE = 0.95  # of a card: memory is handed out in pieces, and some fit nothing


class Slice(NamedTuple):
    """What is computed at once on one GPU, and how."""

    tokens: int
    half: bool  # in bf16
    recompute: bool
    parts: int = 1  # that weights, gradients and optimizer are spread over
    on_cpu: bool = False
    attended: float = 0.0  # tokens that each one attends to, where attention's weights are kept: on a CPU with dropout


def memory_of(network: Network, part: Slice) -> dict[str, float]:
    """Return the bytes on one device by what they are for."""
    bytes_each = 2 if part.half else 4
    num_rows = network.scored_share * part.tokens
    if network.scores_all or network.is_recurrent:
        num_rows = min(num_rows, _rows_at_once(network.columns))
    owned = {
        "weights": 4 * network.num_parameters,
        "gradients": 4 * network.num_trained,
        "optimizer": 8 * network.num_trained,
        "bf16 copies of weights": 2 * network.num_parameters if part.half else 0,
    }
    bytes_a_score = 4 * _SCORES_OF_CPU if part.on_cpu else bytes_each * 2  # and their gradient
    program = {"the program itself": _PROGRAM_BYTES} if part.on_cpu else {"CUDA itself": _CONTEXT_BYTES}
    return {name: size / part.parts for name, size in owned.items()} | {
        "activations kept": _activations(network, part, bytes_each),
        "scores of the vocabulary": num_rows * network.columns * bytes_a_score,
        **program,
    }


def block_bytes(width: int, heads: int, part: Slice, bytes_each: int) -> float:
    """Return what a block of a Transformer keeps on a CPU of each token for its backward pass."""
    pairs = _KEPT_PAIRS_OF_CPU * heads * part.attended
    return (_KEPT_WIDTHS_OF_CPU * width + pairs) * bytes_each + _KEPT_BYTES_OF_NORMS


def lstm_bytes(cells: int, directions: int, tokens: float) -> float:
    """Return what an LSTM without a projection keeps on a CPU for its backward pass, in fp32."""
    return 4.0 * tokens * directions * _KEPT_CELLS_OF_CPU * cells


def score_bytes(rows: float, columns: int) -> float:
    """Return what the scores of a vocabulary take on a CPU, where a language model makes them for some rows at once."""
    return 4.0 * _SCORES_OF_CPU * columns * min(rows, _rows_at_once(columns))


def _rows_at_once(columns: int) -> int:
    return 1 << (_SCORES_AT_ONCE // columns).bit_length() - 1


def _activations(network: Network, part: Slice, bytes_each: int) -> float:
    if network.kept_numbers is not None:
        numbers = network.kept_numbers
        if part.on_cpu:
            of_lstms = numbers - network.read_numbers
            numbers = _KEPT_BY_LSTMS_OF_CPU * of_lstms + _READ_SHARE_OF_CPU * network.read_numbers
        return part.tokens * numbers * bytes_each
    block_in = network.width * bytes_each
    if part.on_cpu:
        block = block_bytes(network.width, network.heads, part, bytes_each)
        at_once = block if part.recompute else block / _KEPT_WIDTHS_OF_CPU  # gradients come when the scores are gone
    else:
        block = _KEPT_WIDTHS * block_in + 4 * network.heads + _KEPT_BYTES_OF_NORMS
        at_once = block
    kept = network.layers * block_in + block if part.recompute else network.layers * block
    return part.tokens * (kept + at_once + _EMBEDDED_BYTES * network.width)


def fits(needed: float, memory_gb: float) -> bool:
    """Tell whether so many bytes fit a GPU, or what is free of a machine's memory."""
    return needed <= _USABLE_SHARE * memory_gb * GIGA


def check_memory(needed: dict[str, float], ways: str, note: Callable[[str], None]) -> None:
    """Refuse what clearly does not fit the memory that is free, and give a note where it hardly fits.

    The program's own share is left out, for it has that already when this is called.

    Args:
        needed: bytes by what they are for.
        ways: what to change.
        note: shows a line to a person.
    """
    free, peak = free_memory(), sum(needed.values()) - needed.get("the program itself", 0.0)
    if free is None or peak <= _NEAR * free:
        return
    said = f"a step needs about {peak / GIGA:,.1f} GB of memory, and {free / GIGA:,.1f} GB are free here"
    if peak > _TOO_MUCH * free:
        raise UserError(f"{said}; change {ways}; train.check_memory=false starts it anyway")
    note(f"{said}: this may fail; if it does, change {ways}")


def free_memory() -> int | None:
    """Return how many bytes more this process can take: of the machine, of its cgroups and by its own limits.

    None where the system does not say it in Linux's files.
    """
    found = [*_free_of_machine(), *_free_of_cgroups(), *_free_of_process()]
    return max(0, min(found)) if found else None


def _numbers(path: str | Path) -> dict[str, int]:
    """Return the numbers of a file of lines "name: number kB" or "name number"; none where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = re.findall(r"^(\w+):?\s+(\d+)( kB)?$", text, re.MULTILINE)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in lines}


def _free_of_machine() -> Iterator[int]:
    numbers = _numbers("/proc/meminfo")
    if "MemAvailable" in numbers:
        yield numbers["MemAvailable"] + numbers.get("SwapFree", 0)


def _free_of_cgroups(root: str | Path = "/sys/fs/cgroup", own: str | Path = "/proc/self/cgroup") -> Iterator[int]:
    """Yield what is free in each cgroup of memory that this process is in, from its own up to the root."""
    try:
        lines = Path(own).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    swap = _numbers("/proc/meminfo").get("SwapFree", 0)
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        is_second = number == "0" and not controllers
        if not is_second and "memory" not in controllers.split(","):
            continue
        names = ("memory.max", "memory.high") if is_second else ("memory.limit_in_bytes",)
        used_name = "memory.current" if is_second else "memory.usage_in_bytes"
        cache_name = "inactive_file" if is_second else "total_inactive_file"
        top = Path(root) if is_second else Path(root) / "memory"
        # In a container the path may be the host's, and the root its own cgroup: what is not there is passed over.
        inner = Path(*(part for part in Path(path).parts if part not in ("/", "..")))
        for folder in [top / inner, *(top / parent for parent in inner.parents)]:
            limits = [limit for name in names if (limit := _number(folder / name)) is not None and limit < _NO_LIMIT]
            used = _number(folder / used_name)
            if limits and used is not None:
                # Pages of files that nobody reads are given back before anything fails.
                cached = _numbers(folder / "memory.stat").get(cache_name, 0)
                yield min(limits) - used + cached + swap


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", which is no limit
        return None


def _free_of_process() -> Iterator[int]:
    """Yield what the process may still map, where `ulimit -v` or `-d` limits it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    numbers = _numbers("/proc/self/status")
    for limit, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and name in numbers:
            yield most - numbers[name]
