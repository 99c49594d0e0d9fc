"""Weights spread over three ranks, which divide no dimension evenly: parts, sums, precision, and the way back."""

import copy

import pytest
import torch
import torch._dynamo  # which FSDP2 needs too; here, or every forked rank would import them
import torch.distributed.fsdp
from forked_ranks import run_ranks
from test_recompute import batch_of, bert

from bertworks.errors import UserError
from bertworks.models.names import GLOBAL_STEP
from bertworks.nn.bert import recompute_blocks
from bertworks.recipe import OptimSettings
from bertworks.train.distributed import fill, gathered, joined_ranks, own_parts, spread, whole
from bertworks.train.objectives import OBJECTIVES, ModelWithLoss
from bertworks.train.optim import Optimizer

WORLD_SIZE = 3
COUNTS = torch.full((2,), 4.0)


def batch_for(rank):
    return batch_of([5 + rank, 4, 3])


def spread_net(half=False):
    net = bert(dropout=0.0)
    trainee = ModelWithLoss(net, OBJECTIVES["mlm+nsp"]).train()
    spread(trainee.inner, net, torch.device("cpu"), half=half)
    return net, trainee


def on_all_ranks(work, folder):
    """Do `work(ranks)` on each of three ranks; an assertion that fails there fails here."""

    def joined(_):
        with joined_ranks(torch.device("cpu"), timeout_s=60.0) as ranks:
            work(ranks)

    for rank in run_ranks(WORLD_SIZE, joined, folder, timeout_s=600):
        assert rank.code == 0, rank.said


def test_each_rank_keeps_a_part_of_weights_gradients_and_state(tmp_path):
    def work(ranks):
        net, trainee = spread_net()
        trainee(batch_for(ranks.rank), COUNTS)[0].backward()
        optimizer = Optimizer(net, OptimSettings())
        total = sum(weight.numel() for weight in bert().parameters())
        state = [tensor for key, tensor in optimizer.state_dict().items() if key != GLOBAL_STEP]
        for copies, tensors in ((1, net.parameters()), (1, optimizer.gradients()), (2, state)):
            assert 0.3 * copies * total < sum(part.numel() for part in own_parts(tensors)) < 0.4 * copies * total

    on_all_ranks(work, tmp_path)


def test_gradients_are_the_sums_of_all_ranks_also_over_several_slices(tmp_path):
    plain = bert(dropout=0.0)
    trainee = ModelWithLoss(plain, OBJECTIVES["mlm+nsp"]).train()
    for rank in range(WORLD_SIZE):
        for _ in range(2):
            trainee(batch_for(rank), COUNTS)[0].backward()

    def work(ranks):
        net, trainee = spread_net()
        for _ in range(2):
            trainee(batch_for(ranks.rank), COUNTS)[0].backward()
        for (name, weight), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(weight.grad), expected.grad, rtol=1e-4, atol=1e-6, msg=name)

    on_all_ranks(work, tmp_path)


def test_in_half_precision_blocks_compute_in_it_and_embeddings_do_not(tmp_path):
    def work(ranks):
        net, trainee = spread_net(half=True)
        seen = {}
        for name, module in {"embeddings": net.embeddings, "block": net.blocks[0], "head": net.heads["mlm"]}.items():
            module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
        trainee(batch_for(ranks.rank), COUNTS)[0].backward()
        assert seen == {"embeddings": torch.float32, "block": torch.bfloat16, "head": torch.bfloat16}
        assert {weight.dtype for weight in net.parameters()} == {torch.float32}
        assert {weight.grad.dtype for weight in net.parameters()} == {torch.float32}

    on_all_ranks(work, tmp_path)


@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_an_update_of_parts_is_that_of_the_whole_and_comes_back_to_it(tmp_path, name):
    settings = OptimSettings(name=name, lr=0.01)
    plain = bert(dropout=0.0)
    expected = Optimizer(plain, settings)
    trainee = ModelWithLoss(plain, OBJECTIVES["mlm+nsp"]).train()
    begun = copy.deepcopy(plain.state_dict())
    for rank in range(WORLD_SIZE):
        trainee(batch_for(rank), COUNTS)[0].backward()
    norm = expected.gradient_norm()
    expected.step(0.01, norm)

    def work(ranks):
        net, trainee = spread_net()
        for key, tensor in net.state_dict().items():
            fill(tensor, torch.full_like(begun[key], 3.0))
            fill(tensor, begun[key])
        trainee(batch_for(ranks.rank), COUNTS)[0].backward()
        optimizer = Optimizer(net, settings)
        torch.testing.assert_close(optimizer.gradient_norm(), norm)
        optimizer.step(0.01, optimizer.gradient_norm())
        keep = ranks.rank == 1
        weights, state = (gathered(tensors, keep=keep) for tensors in (net.state_dict(), optimizer.state_dict()))
        assert keep == bool(weights) == bool(state)
        if keep:
            for found, wanted in ((weights, plain.state_dict()), (state, expected.state_dict())):
                torch.testing.assert_close(found, dict(wanted), rtol=1e-4, atol=1e-6)
        again = Optimizer(net, settings)
        again.load_state_dict(expected.state_dict())
        for key, tensor in again.state_dict().items():
            assert torch.equal(whole(tensor), expected.state_dict()[key]), key

    on_all_ranks(work, tmp_path)


@pytest.mark.nightly
def test_a_compiled_step_of_spread_weights_has_the_same_gradients(tmp_path):
    """In parts, between which weights are gathered; all blocks are one of them. Minutes to compile."""

    def work(ranks):
        found = []
        for compiled in (False, True):
            net, trainee = spread_net()
            recompute_blocks(net)
            compute = torch.compile(trainee) if compiled else trainee
            for _ in range(2):
                compute(batch_for(ranks.rank), COUNTS)[0].backward()
            found.append({name: whole(weight.grad) for name, weight in net.named_parameters()})
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 5

    on_all_ranks(work, tmp_path)


def test_what_has_no_blocks_is_refused(tmp_path):
    def work(_):
        net = torch.nn.Linear(2, 2)
        with pytest.raises(UserError, match=r"train\.shard is for networks of blocks"):
            spread(net, net, torch.device("cpu"), half=False)

    on_all_ranks(work, tmp_path)
