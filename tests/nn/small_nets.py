"""Small networks whose every parameter matters, for tests: no bias is 0, no scale 1."""

import torch

from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def small_config(**changes):
    return BertConfig(**(SMALL | changes))


def filled(net, std=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in net.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * std
        parameter.data.copy_(values + 1 if "norm.weight" in name else values)
    return net.eval()


def small_net(heads=None, *, pooler=True, seed=0, **changes):
    return filled(Bert(small_config(**changes), heads, pooler=pooler), seed=seed)


def random_texts(lengths, config, seed=0):
    """Ids and segment ids of texts of these lengths; the second half of each is segment 1 where there is one."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    last_segment = config.type_vocab_size - 1
    return ids, [[0] * (n // 2) + [last_segment] * (n - n // 2) for n in lengths]
