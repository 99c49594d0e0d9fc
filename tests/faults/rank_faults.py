"""Faults of one rank of a run: a number that is not finite, a death, a hang. Also a script that torchrun starts.

`python rank_faults.py KIND ARGUMENTS...` is `bertworks ARGUMENTS...` whose rank 1 dies at step 13 of its first start.
"""

import os
import signal
import sys
import time

import torch

from bertworks.train.distributed import GradientSums
from bertworks.train.objectives import OBJECTIVES

FAULTY_STEP = 13
ROOT_ERROR = "a part of rank 1 broke"


def is_rank(number):
    return os.environ.get("RANK") == str(number)


def ending(kind, note=lambda: None):
    """Return a `GradientSums.begin`, called in every step, in which rank 1 ends, or hangs; `note` is called before."""
    calls = []

    def begin(self):
        calls.append(1)
        first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if is_rank(1) and first_start and len(calls) == FAULTY_STEP:
            note()
            end(kind)
        _begin(self)

    return begin


_begin = GradientSums.begin


def end(kind):
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exception":
        raise RuntimeError(ROOT_ERROR)
    while True:
        time.sleep(1)


def not_finite(kind, rank, token_ids):
    """Return an objective that is not finite for one batch of one rank, by its tokens: so it will be so again."""
    objective = OBJECTIVES["mlm+nsp"]

    def broken(net, batch):
        if not (net.training and is_rank(rank) and torch.equal(batch.tokens.token_ids, token_ids)):
            return objective(net, batch)
        weight, block = net.blocks[0].up.weight, net.blocks[0]
        if kind == "nan gradient":
            weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([3]), torch.nan))
        if kind == "inf activation":
            block.register_forward_hook(lambda _, __, out_TD: out_TD.index_fill(1, torch.tensor([5]), torch.inf))
        sums = objective(net, batch)
        factor = {"nan loss": torch.nan, "inf loss": torch.inf}.get(kind, 1.0)
        return sums | {"mlm": sums["mlm"]._replace(loss=sums["mlm"].loss * factor)}

    return broken


if __name__ == "__main__":
    from bertworks.cli import main

    kind = sys.argv.pop(1)
    GradientSums.begin = ending(kind)
    main()
