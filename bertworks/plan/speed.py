"""How long a training step takes: work counted, rates measured.

    step = products / rate + attention / (rate / 2) + bytes / bandwidth + kernels * 5 us

What is counted. Products: the operations of dense layers and scores, forward and backward. Attention: its two products
forward, and five backward for short sequences (scores are made again), seven for longer ones (by two kernels). Bytes:
what everything between the products reads and writes. A block reads and writes 18 times its width for each token
forward (attention 4, two LayerNorms with dropout and residual 3 each, gelu 8) and 48 times backward (attention 8, gelu
12, LayerNorms 18, the sums that are gradients of biases 9, residuals 1). Scores pass five times; embeddings, in fp32,
take as much as 20 widths; an update takes 44 bytes a parameter (copy, cast, norm, Adam).

What is fitted, three numbers, to whole steps on one H200 (docs/log.md; bf16, compiled): products reach 72.5 % of the
vendor's peak, which is 717 TFLOP/s; attention half of that; memory 56 % of its bandwidth. Then base, large, small and
mini at length 128 and base at 512 come out within 6 %. That a kernel costs 5 us to start and to run out is what they
commonly do; it matters to small models and small batches. Without dropout a step of base is some 6 % shorter, which is
not counted.

On another GPU the vendor's numbers are put in, as if the same shares of them were reached.
"""

from typing import NamedTuple

from bertworks.plan.gpus import TERA, find_gpu, peak_flops
from bertworks.plan.memory import Slice
from bertworks.plan.network import FORWARD_AND_BACKWARD, Network

_RATE_SHARE = 0.725
_ATTENTION_SHARE = _RATE_SHARE / 2
_BANDWIDTH_SHARE = 0.56
_KERNEL_S = 5e-6

_FORWARD_WIDTHS, _BACKWARD_WIDTHS, _EMBEDDING_WIDTHS = 18, 48, 20
_SCORE_PASSES = 5
_UPDATE_BYTES = 44
_FORWARD_KERNELS, _BACKWARD_KERNELS = 8, 18  # of a block
_OTHER_KERNELS = 60  # of embeddings, scores, copies of weights and the update
_SHORT_LENGTH = 128  # up to which attention's backward pass is one kernel, see nn/gpu_attention.py
_SHORT_BACKWARD, _LONG_BACKWARD = 2.5, 3.5  # times the forward pass

# What a whole `pretrain` of mini took longer for a step than the step alone (7,100 against 8,060 thousand tokens/s).
LOOP_S = 2.2e-3


class Rates(NamedTuple):
    """What a GPU reaches."""

    products: float  # operations a second
    attention: float
    bandwidth: float  # bytes a second


def rates_of(gpu: str, *, half: bool) -> Rates:
    """Return what a GPU is expected to reach in bf16 or fp32."""
    peak = peak_flops(gpu, half=half)
    bandwidth = _BANDWIDTH_SHARE * find_gpu(gpu).terabytes_per_s * TERA
    return Rates(_RATE_SHARE * peak, _ATTENTION_SHARE * peak, bandwidth)


def slice_seconds(network: Network, part: Slice, length: int, rates: Rates) -> float:
    """Return the seconds that the gradients of a slice take."""
    again = 1 if part.recompute else 0
    scored_again = 1 if network.scores_all else 0
    backward = _SHORT_BACKWARD if length <= _SHORT_LENGTH else _LONG_BACKWARD
    products = network.dense_flops * (FORWARD_AND_BACKWARD + again)
    products += network.scored_share * network.score_flops * (FORWARD_AND_BACKWARD + scored_again)
    attention = network.attention_flops(length) * (1 + backward + again)
    widths = network.layers * (_FORWARD_WIDTHS * (1 + again) + _BACKWARD_WIDTHS) + _EMBEDDING_WIDTHS
    numbers = widths * network.width + network.scored_share * network.columns * (_SCORE_PASSES + 2 * scored_again)
    num_bytes = numbers * (2 if part.half else 4)
    kernels = network.layers * (_FORWARD_KERNELS * (1 + again) + _BACKWARD_KERNELS) + _OTHER_KERNELS
    per_token = products / rates.products + attention / rates.attention + num_bytes / rates.bandwidth
    return part.tokens * per_token + kernels * _KERNEL_S


def update_seconds(network: Network, part: Slice, rates: Rates) -> float:
    """Return the seconds that the change of the weights takes, once a step."""
    return network.num_trained / part.parts * _UPDATE_BYTES / rates.bandwidth
