"""Parameters, operations and memory of a recipe's network, computed without building it; and the figures of GPUs.

A multiplication and an addition count as two operations. A dense layer of m by n numbers takes 2 m n operations per
token in the forward pass, and twice as many in the backward pass: once for the gradient of its input, once for that of
its weights. Biases, LayerNorms and the pooler (one row per sequence) are not counted.

For the backward pass a block keeps, per token, sixteen times its width in the type of the computation: its input (1),
queries, keys and values (3), the output of attention (1), its projection (1), the normalised sum (1), the feed-forward
layer before and after gelu (4 + 4), and its output (1). Dropout keeps nothing, because its masks are hashes. In
addition each head keeps one fp32 number and each LayerNorm two. While the gradients of one block are computed, they
take about as much again. With `train.recompute` only a block's input is kept, and the rest is recomputed, one block at
a time. The total is the sum of all parts. A run takes somewhat less, because the last gradients are made when most
activations are already free.

On a CPU nothing is fused: a block keeps five widths more (copies of queries, keys and values in attention's layout, and
two dropout masks), and with dropout three numbers per head and pair of tokens (attention weights before and after
dropout, and the mask). There are four fp32 copies of the scores of the vocabulary while their gradient is computed.

The GPU figures are the vendors'. Rates are for dense matrices with fp32 accumulation (the doubled figures in data
sheets are for sparse matrices). If a card exists in several forms, the fastest one, SXM, is meant. A card without bf16
can be planned for in fp32.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.config import OBJECTIVES
from bertworks.errors import UserError, counted, did_you_mean
from bertworks.nn.config import ElmoConfig, elmo_preset, gpt_preset, preset
from bertworks.recipe import Recipe

FORWARD_AND_BACKWARD = 3
_NUM_CHARACTERS, _MAX_CHARACTERS = 262, 50  # in ELMo's character table, and in a word
_NUM_GATES = 4
GIGA = 1e9
TERA = 1e12
CPU = "cpu"  # this machine: its memory is known, its speed is not
MEASURED = "h200"  # the GPU on which the time formulas were fitted
_KEPT_WIDTHS = 16
_KEPT_BYTES_OF_NORMS = 2 * 2 * 4
_EMBEDDED_BYTES = 6  # per number of a token's embedding: the fp32 sum, and the input of the first block
_SCORES_AT_ONCE = 1 << 28  # scores that a language model computes at once, see nn/bert.py
_KEPT_WIDTHS_OF_CPU, _KEPT_PAIRS_OF_CPU, _SCORES_OF_CPU = 21, 3, 4
_KEPT_BY_LSTMS_OF_CPU = 2.0  # times what cuDNN keeps: every operation of every step keeps activations
_READ_SHARE_OF_CPU = 0.33  # repeated words of a batch are read once, and most padding is skipped
_KEPT_CELLS_OF_CPU = 15  # per LSTM cell and step: gates before and after activation, and what follows from them
_PROGRAM_BYTES = 0.4 * GIGA  # Python, torch, the tokenizer and the data
_CONTEXT_BYTES = 1.0 * GIGA  # CUDA itself, and the workspaces of its libraries
_USABLE_SHARE = 0.95  # of a card's memory, because of fragmentation
# The formula is not exact: give a warning if a run may fail, and refuse it only if it must fail.
_NEAR, _TOO_MUCH = 0.85, 1.4
_NO_LIMIT = 1 << 60  # larger values mean "no limit" in cgroups of version 1
_MAX_WAYS = 3
_MIN_LENGTH = 8  # see DataSettings
_MAX_SLICES = 65_536  # that are tried


class Network(NamedTuple):
    """The sizes from which memory and time are computed."""

    size: str  # as text
    parts: dict[str, int]  # parameters by part
    num_fixed: int  # parameters that are not trained: sinusoidal positions, segments of zeros
    layers: int
    width: int
    heads: int
    dense_flops: float  # forward pass, per token in all layers, without attention
    seen_share: float  # the share of its sequence that a token attends to: 1, 0.5 if causal, 0 for LSTMs
    scored_share: float  # rows per token that are scored with the vocabulary: only masked ones, or all
    score_flops: float  # forward pass, per scored row
    columns: int  # scores per scored row
    kept_numbers: float | None = None  # per token for the backward pass, if it does not follow from the layers
    read_numbers: float = 0.0  # the part of them for reading characters, at most

    @property
    def num_parameters(self) -> int:
        """The number of all parameters."""
        return sum(self.parts.values())

    @property
    def num_trained(self) -> int:
        """The number of parameters with a gradient and optimizer state."""
        return self.num_parameters - self.num_fixed

    @property
    def is_recurrent(self) -> bool:
        """Whether it has LSTMs instead of attention."""
        return self.kept_numbers is not None

    @property
    def scores_all(self) -> bool:
        """Whether every token is scored; then in parts, whose gradient is computed with them."""
        return self.scored_share == 1

    def attention_flops(self, length: int) -> float:
        """Return the forward operations of a token's attention in all layers: scores and weighted sums."""
        return self.layers * 4 * length * self.width * self.seen_share

    def flops(self, length: int) -> float:
        """Return the operations of a token in training."""
        forward = self.dense_flops + self.attention_flops(length) + self.scored_share * self.score_flops
        return FORWARD_AND_BACKWARD * forward


def network_of(recipe: Recipe, vocab_size: int) -> Network:
    """Return the sizes of a recipe's network with a vocabulary of this size."""
    model, objective = recipe.model, recipe.data.objective
    if objective not in (objectives := OBJECTIVES[model.tokens]):
        possible = " or ".join(objectives)
        raise UserError(f"model.kind {model.kind} cannot learn data.objective {objective}; choose {possible}")
    if model.kind == "elmo":
        return elmo_network(elmo_preset(model.preset, vocab_size=vocab_size))
    if recipe.data.max_length > model.max_positions:
        raise UserError(f"data.max_length {recipe.data.max_length} is more than model.max_positions")
    if model.kind == "gpt":
        config = gpt_preset(model.preset, vocab_size=vocab_size, n_positions=model.max_positions).as_bert()
    else:
        inputs = {"positions": model.positions, "segments": model.segments}
        sizes = {"vocab_size": vocab_size, "max_position_embeddings": model.max_positions}
        config = preset(model.preset, **sizes, **inputs)
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    heads, vocab = config.num_attention_heads, config.vocab_size
    position_numbers = config.max_position_embeddings * width
    block = 4 * width * (width + 1) + width * inner + inner + inner * width + width + 4 * width
    parts = {"embeddings": vocab * width + position_numbers, "layers": layers * block}
    score_flops, is_masked, num_fixed, scored_share = 2 * width * vocab, objective.startswith("mlm"), 0, 1.0
    if model.kind == "bert":
        parts["embeddings"] += (config.type_vocab_size + 2) * width
        parts["mlm head"] = width * (width + 1) + 2 * width + vocab
        score_flops = 2 * width * (width + vocab)
        num_fixed = position_numbers if config.positions == "sinusoidal" else 0
        num_fixed += config.type_vocab_size * width if config.segments == "none" else 0
    if objective == "mlm+nsp":
        parts |= {"pooler": width * (width + 1), "nsp head": 2 * (width + 1)}
    if is_masked:
        most = recipe.data.max_predictions
        scored_share = min(recipe.data.mask_rate, most / recipe.data.max_length if most else 1.0)
    return Network(
        size=f"{counted(layers, 'layer')} of width {width}, {counted(heads, 'head')}, {vocab:,} pieces",
        parts=parts,
        num_fixed=num_fixed,
        layers=layers,
        width=width,
        heads=heads,
        dense_flops=layers * 2 * (4 * width**2 + 2 * width * inner),
        seen_share=1.0 if is_masked else 0.5,
        scored_share=scored_share,
        score_flops=score_flops,
        columns=vocab,
    )


def elmo_network(config: ElmoConfig) -> Network:
    """Return the sizes of an ELMo: its character encoder, its LSTMs in both directions, and its sampled softmax."""
    filters, cells, width = sum(config.num_filters), config.cell_size, config.projection_size
    looked_at = sum(long * count for long, count in enumerate(config.num_filters, start=1)) * config.char_embedding_size
    highways = config.num_highway_layers * 2 * filters**2
    num_lstms = 2 * config.num_layers
    lstm = _NUM_GATES * cells * 2 * width + cells * width
    parts = {
        "characters": _NUM_CHARACTERS * config.char_embedding_size
        + (looked_at + filters)
        + (highways + config.num_highway_layers * 2 * filters)
        + (filters + 1) * width,
        "lstms": num_lstms * (lstm + 2 * _NUM_GATES * cells),
        "softmax": config.vocab_size * (width + 1),
    }
    columns = min(config.num_negatives + 1, config.vocab_size)
    # An upper bound: a word that occurs twice in a batch is read only once.
    reading = _MAX_CHARACTERS * looked_at + highways + filters * width
    of_lstm = (_NUM_GATES + 2) * cells + width  # gates, cell state, output, projection
    return Network(
        size=f"{counted(config.num_layers, 'layer')} of {cells} cells each way, width {width}, "
        f"{config.vocab_size:,} words",
        parts=parts,
        num_fixed=0,
        layers=config.num_layers,
        width=width,
        heads=0,
        dense_flops=2 * (reading + num_lstms * lstm),
        seen_share=0.0,
        scored_share=2.0,  # from the left and from the right
        score_flops=2 * width * columns,
        columns=columns,
        kept_numbers=num_lstms * of_lstm + filters * (_MAX_CHARACTERS + 4 * config.num_highway_layers),
        read_numbers=filters * (_MAX_CHARACTERS + 4 * config.num_highway_layers),
    )


class Gpu(NamedTuple):
    """A GPU's memory and peak rates; a GB is counted as 10^9 bytes, though most cards have 7 % more."""

    memory_gb: float
    bf16_tflops: float | None  # of matrix products; None: the card has no bf16
    fp32_tflops: float  # without TF32, which is torch's default
    terabytes_per_s: float  # of its memory


GPUS = {
    "h200": Gpu(141, 989, 67, 4.8),
    "h100": Gpu(80, 989, 67, 3.35),
    "a100-80": Gpu(80, 312, 19.5, 2.039),
    "a100-40": Gpu(40, 312, 19.5, 1.555),
    "l40s": Gpu(48, 362, 91.6, 0.864),
    "l4": Gpu(24, 121, 30.3, 0.3),
    "rtx-4090": Gpu(24, 165.2, 82.6, 1.008),
    "rtx-3090": Gpu(24, 71, 35.6, 0.936),
    "v100-32": Gpu(32, None, 15.7, 0.9),
    "t4": Gpu(16, None, 8.1, 0.32),
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name; upper and lower case are the same."""
    known = name.lower()
    if known == "cpu":
        raise UserError(f"the speed of a CPU is not known; choose --gpu {', '.join(GPUS)}")
    if known not in GPUS:
        # For "a100" suggest a100-80 and not h100.
        near = [other for other in GPUS if known and other.startswith(known)]
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else did_you_mean(name[:40], list(GPUS))
        raise UserError(f"no GPU {name[:40]!r} is known{hint}")
    return GPUS[known]


def named_by_driver(device_name: str) -> str | None:
    """Return our name of a GPU for a driver's name such as "NVIDIA A100-SXM4-80GB"; None if it is unknown."""
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    for name in GPUS:
        if all(part in words or f"{part}gb" in words for part in name.split("-")):
            return name
    return None


def peak_flops(name: str, *, half: bool) -> float:
    """Return the peak operations per second of a GPU's matrix products, in bf16 or fp32."""
    gpu = find_gpu(name)
    if not half:
        return gpu.fp32_tflops * TERA
    if gpu.bf16_tflops is None:
        able = ", ".join(other for other, numbers in GPUS.items() if numbers.bf16_tflops)
        raise UserError(f"{name} has no bf16; choose --gpu {able}, or plan in fp32 with train.dtype=float32")
    return gpu.bf16_tflops * TERA


class MicroBatch(NamedTuple):
    """What one device computes at once, and how."""

    tokens: int
    half: bool  # in bf16
    recompute: bool
    parts: int = 1  # number of devices that share weights, gradients and optimizer state
    on_cpu: bool = False
    attended: float = 0.0  # tokens that each one attends to, if attention weights are kept: on a CPU with dropout


def part_of(
    recipe: Recipe,
    length: int,
    gpus: int,
    *,
    slices: int | None = None,
    recompute: bool | None = None,
    on_cpu: bool = False,
) -> MicroBatch:
    """Return what one device computes at once; `slices` and `recompute` default to the recipe's."""
    settings = recipe.train
    return MicroBatch(
        tokens=recipe.batch_tokens(length) // (slices or settings.slices),
        half=settings.dtype == "bfloat16" or (settings.dtype == "auto" and not on_cpu),
        recompute=settings.recompute if recompute is None else recompute,
        parts=gpus if settings.shard else 1,
        on_cpu=on_cpu,
        attended=length if on_cpu and recipe.model.dropout else 0,
    )


def memory_of(network: Network, part: MicroBatch) -> dict[str, float]:
    """Return the bytes needed on one device, by purpose."""
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


def _activations(network: Network, part: MicroBatch, bytes_each: int) -> float:
    if network.kept_numbers is not None:
        numbers = network.kept_numbers
        if part.on_cpu:
            of_lstms = numbers - network.read_numbers
            numbers = _KEPT_BY_LSTMS_OF_CPU * of_lstms + _READ_SHARE_OF_CPU * network.read_numbers
        return part.tokens * numbers * bytes_each
    block_in = network.width * bytes_each
    if part.on_cpu:
        block = block_bytes(network.width, network.heads, part, bytes_each)
        at_once = block if part.recompute else block / _KEPT_WIDTHS_OF_CPU  # gradients come after the scores
    else:
        block = _KEPT_WIDTHS * block_in + 4 * network.heads + _KEPT_BYTES_OF_NORMS
        at_once = block
    kept = network.layers * block_in + block if part.recompute else network.layers * block
    return part.tokens * (kept + at_once + _EMBEDDED_BYTES * network.width)


def block_bytes(width: int, heads: int, part: MicroBatch, bytes_each: int) -> float:
    """Return the bytes per token that a Transformer block keeps for its backward pass on a CPU."""
    pairs = _KEPT_PAIRS_OF_CPU * heads * part.attended
    return (_KEPT_WIDTHS_OF_CPU * width + pairs) * bytes_each + _KEPT_BYTES_OF_NORMS


def lstm_bytes(cells: int, directions: int, tokens: float) -> float:
    """Return the bytes that an LSTM without projection keeps for its backward pass on a CPU, in fp32."""
    return 4.0 * tokens * directions * _KEPT_CELLS_OF_CPU * cells


def score_bytes(rows: float, columns: int) -> float:
    """Return the bytes of vocabulary scores on a CPU; a language model computes them for some rows at a time."""
    return 4.0 * _SCORES_OF_CPU * columns * min(rows, _rows_at_once(columns))


def _rows_at_once(columns: int) -> int:
    return 1 << (_SCORES_AT_ONCE // columns).bit_length() - 1


def fits(needed: float, memory_gb: float) -> bool:
    """Tell whether `needed` bytes fit into the memory of a GPU, or into the free memory of a machine."""
    return needed <= _USABLE_SHARE * memory_gb * GIGA


def ways_to_fit(
    recipe: Recipe, network: Network, length: int, memory_gb: float, gpus: int, *, on_cpu: bool = False
) -> list[str]:
    """Return changes with which a run would fit a device; each is enough by itself, the cheapest first."""

    def fewest(length: int, recompute: bool | None = None) -> int | None:
        return fewest_slices(recipe, network, length, memory_gb, gpus, recompute=recompute, on_cpu=on_cpu)

    ways, train = [], recipe.train
    may_recompute = not train.recompute and not network.is_recurrent
    for recompute in (train.recompute, True) if may_recompute else (train.recompute,):
        changes = ["train.recompute=true"] * (recompute and not train.recompute)
        if slices := fewest(length, recompute):
            changes += [f"train.slices={slices}"] * (slices != train.slices)
            ways.append(" ".join(changes))
    if gpus > 1 and not train.shard:
        sharded = recipe.model_copy(update={"train": train.model_copy(update={"shard": True})})
        if fewest_slices(sharded, network, length, memory_gb, gpus) == train.slices:
            ways.append("train.shard=true")
    shorter = length // 2
    while not ways and shorter >= _MIN_LENGTH:  # half the length, a quarter, ..., until at least one sequence fits
        if slices := fewest(shorter):
            ways.append(f"data.max_length={shorter} train.slices={slices}")
        shorter //= 2
    ways = ways[:_MAX_WAYS]
    if not on_cpu:
        needed = sum(memory_of(network, part_of(recipe, length, gpus)).values())
        able = {name: gpu.memory_gb for name, gpu in GPUS.items() if gpu.bf16_tflops and fits(needed, gpu.memory_gb)}
        if able:
            ways.append(f"--gpu {min(able, key=able.__getitem__)}")
    return ways or ["a smaller model.preset"]


def fewest_slices(
    recipe: Recipe,
    network: Network,
    length: int,
    memory_gb: float,
    gpus: int,
    *,
    recompute: bool | None = None,
    on_cpu: bool = False,
) -> int | None:
    """Return the smallest number of micro-batches that fits, in whole sequences and divisible by the GPUs, or None."""
    batch_size = math.gcd(recipe.sequences_of(length), recipe.train.batch_size)
    for slices in range(recipe.train.slices, min(batch_size, _MAX_SLICES) + 1):
        if batch_size % slices or slices % gpus:
            continue
        part = part_of(recipe, length, gpus, slices=slices, recompute=recompute, on_cpu=on_cpu)
        if fits(sum(memory_of(network, part).values()), memory_gb):
            return slices
    return None


def check_memory(needed: dict[str, float], ways: str, note: Callable[[str], None]) -> None:
    """Refuse a run that clearly does not fit into the free memory, and give a note if it may not fit.

    The program's own memory is not counted, because it is already in use when this is called.

    Args:
        needed: bytes by purpose.
        ways: the settings to change, as text.
        note: called with a line to show.
    """
    free, peak = free_memory(), sum(needed.values()) - needed.get("the program itself", 0.0)
    if free is None or peak <= _NEAR * free:
        return
    message = f"a step needs about {peak / GIGA:,.1f} GB of memory, and {free / GIGA:,.1f} GB are free here"
    if peak > _TOO_MUCH * free:
        raise UserError(f"{message}; change {ways}; train.check_memory=false starts it anyway")
    note(f"{message}: this may fail; if it does, change {ways}")


def free_memory() -> int | None:
    """Return how many more bytes this process can allocate, by the machine, its cgroups and its own limits.

    None if the system does not have Linux's files for this.
    """
    found = list(free_of_cgroups())
    machine, process = read_numbers("/proc/meminfo"), read_numbers("/proc/self/status")
    if "MemAvailable" in machine:
        found.append(machine["MemAvailable"] + machine.get("SwapFree", 0))
    try:
        import resource
    except ImportError:  # Windows
        limits = {}
    else:  # what the process may still map, if `ulimit -v` or `-d` is set
        limits = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    for name, limit in limits.items():
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and name in process:
            found.append(most - process[name])
    return max(0, min(found)) if found else None


def read_numbers(path: str | Path) -> dict[str, int]:
    """Return the numbers in a file of lines "name: number kB" or "name number"; empty if it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = re.findall(r"^(\w+):?\s+(\d+)( kB)?$", text, re.MULTILINE)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in lines}


def free_of_cgroups(root: str | Path = "/sys/fs/cgroup", own: str | Path = "/proc/self/cgroup") -> Iterator[int]:
    """Yield the free memory of each cgroup that contains this process, from its own up to the root."""
    try:
        lines = Path(own).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    swap = read_numbers("/proc/meminfo").get("SwapFree", 0)
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        is_second = number == "0" and not controllers
        if not is_second and "memory" not in controllers.split(","):
            continue
        names = ("memory.max", "memory.high") if is_second else ("memory.limit_in_bytes",)
        used_name = "memory.current" if is_second else "memory.usage_in_bytes"
        cache_name = "inactive_file" if is_second else "total_inactive_file"
        top = Path(root) if is_second else Path(root) / "memory"
        # In a container the path may be the host's and the root the container's own cgroup, so missing files are
        # skipped.
        inner = Path(*(part for part in Path(path).parts if part not in ("/", "..")))
        for folder in [top / inner, *(top / parent for parent in inner.parents)]:
            limits = [limit for name in names if (limit := _number(folder / name)) is not None and limit < _NO_LIMIT]
            used = _number(folder / used_name)
            if limits and used is not None:
                # Inactive file pages are freed before an allocation fails.
                cached = read_numbers(folder / "memory.stat").get(cache_name, 0)
                yield min(limits) - used + cached + swap


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", which is no limit
        return None
