"""What heads over [CLS] read: the last block computed for first tokens alone equals the whole block there."""

import pytest
import torch
from small_models import scattered

from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert, recompute_blocks
from bertworks.nn.config import BertConfig

LENGTHS = {"of one length": [4, 4, 4], "that ascend": [2, 3, 3, 7], "in any order": [7, 2, 5, 2, 9, 5], "alone": [3]}


def small_net(**changes):
    sizes = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
             "intermediate_size": 40, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
             "attention_probs_dropout_prob": 0.0}  # fmt: skip
    return scattered(Bert(BertConfig(**(sizes | changes)), {"classify": 3}))


def tokens_of(lengths):
    generator = torch.Generator().manual_seed(1)
    return pack([torch.randint(50, (length,), generator=generator).tolist() for length in lengths])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("direction", ["both", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_outputs_and_gradients_are_those_of_the_plain_way(lengths, direction, recomputed):
    net, tokens = small_net(direction=direction).train(), tokens_of(lengths)
    if recomputed:
        recompute_blocks(net)
    found = []
    for pooled in (lambda: net.pooled(net(tokens), tokens.packing), lambda: net.pooled_of(tokens)):
        net.zero_grad()
        scores = net.scores("classify", pooled())
        (scores * torch.arange(scores.numel()).view(scores.shape)).sum().backward()
        gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
        found.append((scores.detach(), gradients))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-6)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_a_network_without_blocks_pools_its_embeddings():
    net, tokens = small_net(num_hidden_layers=0), tokens_of([3, 2])
    torch.testing.assert_close(net.pooled_of(tokens), net.pooled(net(tokens), tokens.packing))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_in_half_precision_it_is_the_same_to_its_precision():
    net = small_net(hidden_size=32, num_attention_heads=2).to("cuda", torch.bfloat16)
    sequences = [[5, 6, 7], [8, 9], [1, 2, 3, 4, 5, 6]]
    tokens = pack(sequences, None, "cuda", flash=True)
    with torch.no_grad():
        plain = net.pooled(net(tokens), tokens.packing)
        torch.testing.assert_close(net.pooled_of(tokens), plain, rtol=0.05, atol=0.05)
