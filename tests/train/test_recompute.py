"""Blocks that are computed again in the backward pass: the same gradients to the last bit, from far less memory."""

import itertools
import logging

import pytest
import torch

from bertworks.errors import UserError
from bertworks.nn import attention, layers
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert, Block, recompute_blocks
from bertworks.nn.config import GptConfig, preset
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import initialise, keep_mask
from bertworks.train.objectives import OBJECTIVES, ModelWithLoss, TrainBatch

VOCABULARY = 50


def batch_of(lengths=(9, 7, 7, 3), seed=None):
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    starts = [0, *itertools.accumulate(lengths)]
    masked = torch.tensor([start + 1 for start in starts[:-1]])
    tokens = pack(ids)._replace(dropout_seed=seed)
    ones = torch.ones(len(lengths))
    return TrainBatch(tokens, masked, tokens.token_ids[masked], ones, torch.arange(len(lengths)) % 2, ones)


def bert(objective="mlm+nsp", dropout=0.1, num_layers=3):
    direction = {"ltr": "left_to_right", "rtl": "right_to_left"}.get(objective, "both")
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = preset(f"{num_layers}x32x2", vocab_size=VOCABULARY, direction=direction, **dropouts)
    net = Bert(config, {"mlm": 0, "nsp": 2} if objective == "mlm+nsp" else {"mlm": 0}, pooler=objective == "mlm+nsp")
    initialise(net, 0.1, seed=0)
    return net


def gradients(net, objective, dtype, batch):
    """The loss and all gradients of a batch, with torch's random numbers from the same seed."""
    trainee = ModelWithLoss(net, OBJECTIVES[objective], dtype).train()
    torch.manual_seed(1)
    loss, sums = trainee(batch, torch.full((2 if objective == "mlm+nsp" else 1,), 4.0))
    loss.backward()
    return [loss.detach(), sums, *(weight.grad for weight in net.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("objective", ["mlm+nsp", "ltr", "rtl"])
def test_gradients_are_the_same_to_the_last_bit(objective, dtype):
    """With dropout from torch's generator; in half precision the copies are gone when blocks are computed again."""
    plain, again = bert(objective), bert(objective)
    recompute_blocks(again)
    expected = gradients(plain, objective, dtype, batch_of())
    found = gradients(again, objective, dtype, batch_of())
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("seed", [5, 6])
def test_hashed_dropout_is_the_same_both_times(seed):
    plain, again = bert(), bert()
    recompute_blocks(again)
    batch = batch_of(seed=torch.tensor(seed, dtype=torch.int32))
    expected = gradients(plain, "mlm+nsp", torch.float32, batch)
    found = gradients(again, "mlm+nsp", torch.float32, batch)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_a_block_s_places_are_numbered_through_the_whole_network():
    """Blocks share one compiled graph, for their places have the same numbers; their masks must differ all the same."""
    config, seed = bert().config, torch.tensor(7, dtype=torch.int32)
    device = torch.device("cpu")
    for number, place in itertools.product(range(30), (1, 2, 3)):
        own = Block(config, number).own_seed(seed)
        assert own.dtype == torch.int32
        found = keep_mask(1_000, own, place, 0.1, device)
        assert torch.equal(found, keep_mask(1_000, seed, 3 * number + place, 0.1, device))
    assert Block(config, 3).own_seed(None) is None


def test_gpt_s_blocks_can_be_computed_again_too():
    nets = []
    for is_recomputed in (False, True):
        net = Gpt(GptConfig(vocab_size=VOCABULARY, n_embd=32, n_head=2, n_layer=2, n_positions=16)).train()
        initialise(net, 0.1, seed=0, cut=False)
        if is_recomputed:
            recompute_blocks(net)
        tokens = batch_of().tokens
        torch.manual_seed(1)
        net.lm_sums(net(tokens), tokens).loss.backward()
        nets.append(net)
    pairs = zip(*(net.parameters() for net in nets), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def kept_bytes(net):
    """How much the forward pass keeps for the backward pass."""
    kept = {}

    def note(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    trainee = ModelWithLoss(net, OBJECTIVES["mlm+nsp"]).train()
    weights = {weight.data_ptr() for weight in net.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = trainee(batch_of(), torch.ones(2))[0]
    assert loss.requires_grad
    return sum(num_bytes for place, num_bytes in kept.items() if place not in weights)


def test_a_block_more_costs_its_input_and_no_more():
    each = {}
    for is_recomputed in (False, True):
        nets = [bert(num_layers=num_layers) for num_layers in (1, 9)]
        for net in nets if is_recomputed else []:
            recompute_blocks(net)
        few, many = map(kept_bytes, nets)
        each[is_recomputed] = (many - few) / 8
    its_input = len(batch_of().tokens.token_ids) * 32 * 4
    assert each[True] <= its_input
    assert each[False] > 12 * its_input


def test_what_has_no_blocks_is_refused():
    with pytest.raises(UserError, match=r"train\.recompute is for networks of blocks"):
        recompute_blocks(torch.nn.Linear(2, 2))


@pytest.mark.nightly
def test_a_compiled_step_computes_blocks_again():
    """In half precision, as one graph without a break; minutes to compile. Gradients as without, up to rounding."""
    net = bert(dropout=0.0, num_layers=2)
    loss, _, *expected = gradients(net, "mlm+nsp", torch.bfloat16, batch_of())
    net.zero_grad()
    recompute_blocks(net)
    trainee = torch.compile(ModelWithLoss(net, OBJECTIVES["mlm+nsp"], torch.bfloat16).train(), fullgraph=True)
    compiled_loss, _ = trainee(batch_of(), torch.full((2,), 4.0))
    compiled_loss.backward()
    assert compiled_loss.item() == pytest.approx(loss.item(), rel=1e-2)
    found = [weight.grad for weight in net.parameters()]
    one, other = (torch.cat([grad.flatten() for grad in grads]) for grads in (expected, found))
    assert torch.cosine_similarity(one, other, dim=0) > 0.999


def test_a_step_compiled_for_a_cpu_draws_the_same_masks_without_a_warning(monkeypatch, caplog):
    """Batches of other lengths, as they come: none is compiled anew until torch gives up."""
    for module, name in ((layers, "dropped"), (attention, "_of_run"), (attention, "_from_one")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr("torch._inductor.config.fallback_random", False)
    monkeypatch.setattr("torch._dynamo.config.recompile_limit", 2)
    attention.prepare_to_compile_for_cpu()
    prepared = layers.dropped
    attention.prepare_to_compile_for_cpu()  # as a second run of one process does: nothing is wrapped twice
    assert layers.dropped is prepared
    torch.compiler.reset()
    net = bert(num_layers=1)
    plain = ModelWithLoss(net, OBJECTIVES["mlm+nsp"]).train()
    compiled = torch.compile(plain, backend="eager", dynamic=False)
    logging.getLogger("torch._dynamo").addHandler(caplog.handler)
    try:
        for length in range(3, 7):
            losses = []
            for trainee in (plain, compiled):
                torch.manual_seed(1)
                losses.append(trainee(batch_of((length, 7, 2 * length)), torch.full((2,), 4.0))[0].item())
            assert losses[0] == losses[1]
    finally:
        logging.getLogger("torch._dynamo").removeHandler(caplog.handler)
    assert not [line for line in caplog.messages if "dropped" in line or "_of_run" in line or "item()" in line]
