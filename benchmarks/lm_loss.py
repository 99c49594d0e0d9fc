"""A language model's loss over its vocabulary, forward and backward: the gradient made with the loss, or later.

    python benchmarks/lm_loss.py [--rows 131072] [--pieces 16000] [--width 256]

Contestants: ours (`nn/bert.py: guesses`); the same scores in parts that the backward pass makes again (a checkpoint, as
ours was); torch's cross entropy over all scores at once. Rows are bfloat16 and all is compiled on a GPU; on a CPU it is
float32 as it stands, and fewer rows are enough. Medians of rounds in which all take turns.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertworks.nn.bert import guesses, rows_at_once, sums_of, total_of

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def ours(x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, counted: Tensor) -> Tensor:
    return guesses(x, weight, bias, ids, counted).loss


def made_again(x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, counted: Tensor) -> Tensor:
    def of_part(x: Tensor, ids: Tensor, counted: Tensor) -> object:
        return sums_of(F.linear(x, weight, bias), ids, counted)

    parts = rows_at_once(len(weight), x, ids, counted)
    return total_of(checkpoint(of_part, *part, use_reentrant=False) for part in parts).loss


def cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, counted: Tensor) -> Tensor:
    return (F.cross_entropy(F.linear(x, weight, bias).float(), ids, reduction="none") * counted).sum()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=131_072)
    options.add_argument("--pieces", type=int, default=16_000)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--rounds", type=int, default=7)
    given = options.parse_args()
    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.processor() or platform.machine()}"
    print(f"{name}, torch {torch.__version__}, {given.rows:,} rows of {given.pieces:,} pieces, width {given.width}")
    torch.manual_seed(0)
    x = torch.randn(given.rows, given.width, device=device, dtype=dtype)
    weight = (torch.randn(given.pieces, given.width, device=device) * 0.05).to(dtype)
    inputs = [one.requires_grad_() for one in (x, weight, torch.zeros(given.pieces, device=device, dtype=dtype))]
    rest = torch.randint(given.pieces, (given.rows,), device=device), torch.ones(given.rows, device=device)
    contestants: dict[str, Loss] = {"ours": ours, "made again": made_again, "cross entropy": cross_entropy}
    if on_gpu:
        contestants = {name: torch.compile(loss, dynamic=False) for name, loss in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    losses = {}
    for _ in range(given.rounds + 1):  # the first of which is not counted
        for name, loss in contestants.items():
            started = time.perf_counter()
            value = loss(*inputs, *rest) / given.rows
            torch.autograd.grad(value, inputs)
            losses[name] = value.item()
            taken[name].append(time.perf_counter() - started)
    for name, seconds in taken.items():
        median = statistics.median(seconds[1:])
        ratio = statistics.median(own / other for own, other in zip(seconds[1:], taken["ours"][1:], strict=True))
        print(f"{name:<14} {1e3 * median:8.1f} ms   {ratio:.2f} of ours   loss {losses[name]:.5f}")


if __name__ == "__main__":
    main()
