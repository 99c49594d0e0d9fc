"""What saving memory costs: a training step plain, with blocks computed twice, and with its weights spread (FSDP2).

Each way is compared with the plain step of the same run: time of a step, largest memory, and the gradient of the first
batch (its cosine with the plain step's; dropout is the same, so only rounding differs). On one GPU a spread step shows
what its hooks and its graph in parts cost, and that it runs; what ranks save and send shows under torchrun alone:
`torchrun --nproc-per-node 8 benchmarks/scale_gpu.py`.
"""

import argparse
import gc
import json
import os
import statistics
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from pretrain_gpu import CASES_ALL, DEVICE, milliseconds, ours_batch

from bertworks.nn.bert import Bert, recompute_blocks
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise
from bertworks.recipe import OptimSettings
from bertworks.train.distributed import GradientSums, Ranks, joined_ranks, local_device, spread, whole
from bertworks.train.objectives import ModelWithLoss, mlm_and_nsp
from bertworks.train.optim import Optimizer


class Way(NamedTuple):
    recompute: bool
    shard: bool


WAYS = {
    "plain": Way(False, False),
    "recompute": Way(True, False),
    "shard": Way(False, True),
    "shard + recompute": Way(True, True),
}


class Steps:
    """Training steps of one case done in one way."""

    def __init__(self, case: dict[str, Any], way: Way, ranks: Ranks, compiled: bool) -> None:
        half = DEVICE == "cuda"
        net = Bert(preset(case["size"]), {"mlm": 0, "nsp": 2})
        initialise(net, net.config.initializer_range, seed=0)
        makes_copies = half and not way.shard
        trainee = ModelWithLoss(net, mlm_and_nsp, torch.bfloat16 if makes_copies else torch.float32).train()
        if way.shard:
            spread(trainee.inner, net, torch.device(DEVICE), half=half)
        trainee.to(DEVICE)
        if way.recompute:
            recompute_blocks(net)
        self.net, self.optimizer = net, Optimizer(net, OptimSettings())
        self.gradients = GradientSums(ranks, self.optimizer.weights())
        self.compute = torch.compile(trainee) if compiled else trainee
        self.seed = torch.zeros((), dtype=torch.int32, device=DEVICE)
        batch = ours_batch(np.full(case["batch"], case["length"]), half)
        self.batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=self.seed))
        self.counts = torch.full((2,), 1_000.0, device=DEVICE)

    def backward(self) -> None:
        loss, sums = self.compute(self.batch, self.counts)
        self.gradients.begin()
        loss.backward()
        self.gradients.finish(sums)

    def step(self) -> torch.Tensor:
        self.seed.add_(1)
        self.backward()
        norm = self.optimizer.gradient_norm()
        self.optimizer.step(1e-4, norm)
        self.optimizer.clear_gradients()
        return norm

    def first_gradient(self) -> torch.Tensor:
        self.backward()
        found = torch.cat([whole(grad).flatten().cpu() for grad in self.optimizer.gradients()])
        self.optimizer.clear_gradients()
        return found


def measure(name: str, ranks: Ranks, given: argparse.Namespace) -> None:
    plain: dict[str, Any] = {}
    for title, way in WAYS.items():
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch.compiler.reset()
        steps = Steps(CASES_ALL[name], way, ranks, given.compile)
        gradient = steps.first_gradient()
        milliseconds(steps.step, 3)
        ms = statistics.median(milliseconds(steps.step, given.steps) for _ in range(given.rounds))
        peak = torch.cuda.max_memory_allocated() / 1e9 if DEVICE == "cuda" else float("nan")
        steps.gradients.close()
        plain = plain or {"ms": ms, "peak": peak, "gradient": gradient}
        result = {
            "case": name, "way": title, "ranks": ranks.world_size, "ms": round(ms, 2), "times plain": ms / plain["ms"],
            "peak GB": peak, "peak times plain": peak / plain["peak"],
            "cosine with plain": float(torch.cosine_similarity(gradient.double(), plain["gradient"].double(), dim=0)),
        }  # fmt: skip
        if ranks.is_first:
            print(json.dumps(result), flush=True)
        del steps


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", default=["base@128", "large@128"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--no-compile", dest="compile", action="store_false")
    given = options.parse_args()
    device = local_device(torch.device(DEVICE))
    with joined_ranks(device) as ranks:
        if ranks.world_size == 1:  # FSDP2 wants a group even of one
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
            dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
        for name in given.cases:
            measure(name, ranks, given)
        if ranks.world_size == 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
