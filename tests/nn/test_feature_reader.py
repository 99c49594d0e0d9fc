"""A tagger on frozen layers: the formula, written out, for each of Table 7's rows."""

import pytest
import torch

from bertworks.errors import UserError
from bertworks.nn.attention import pack_lengths
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import FeatureReader, feature_bert, initialise_readers, reader_of
from bertworks.nn.config import FEATURES, BertConfig, FeatureConfig, layers_of

ENCODER = BertConfig(
    vocab_size=11, hidden_size=6, num_hidden_layers=5, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=8,
)  # fmt: skip
LENGTHS = [3, 1, 4]


def reader_for(features, **changes):
    reader = FeatureReader(FeatureConfig(features=features, lstm_cells=7, **changes), ENCODER, 4)
    initialise_readers(reader, 1)
    return reader.eval()


def layers_for(reader, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(LENGTHS), 6, generator=generator) for _ in reader.layers]


@pytest.mark.parametrize("features", FEATURES)
@torch.no_grad()
def test_scores_are_those_of_each_sentence_alone(features):
    reader = reader_for(features)
    layers = layers_for(reader)
    if reader.mix is not None:
        reader.mix.weights.copy_(torch.arange(len(layers)) / 3)
        reader.mix.gamma.fill_(1.7)
        shares = (torch.arange(len(layers)) / 3).softmax(0)
        x = 1.7 * sum(share * layer for share, layer in zip(shares, layers, strict=True))
    else:
        x = torch.cat(layers, 1)
    alone = [reader.lstm.lstm(sentence)[0] @ reader.out.weight.T + reader.out.bias for sentence in x.split(LENGTHS)]
    got = reader(layers, pack_lengths(LENGTHS))
    torch.testing.assert_close(got, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_a_mix_starts_as_the_mean_and_learns():
    reader = reader_for("sum-all")
    layers = layers_for(reader)
    torch.testing.assert_close(reader.mix(layers), torch.stack(layers).mean(0))
    reader(layers, pack_lengths(LENGTHS)).square().sum().backward()
    assert reader.mix.weights.grad.abs().min() > 0
    assert reader.mix.gamma.grad.abs() > 0


def test_features_in_half_precision_are_read_in_full():
    reader = reader_for("last")
    layers = [layer.bfloat16() for layer in layers_for(reader)]
    got = reader(layers, pack_lengths(LENGTHS))
    assert got.dtype == torch.float32
    assert torch.equal(got, reader([layer.float() for layer in layers], pack_lengths(LENGTHS)))


def test_the_papers_reader_of_a_base_model_has_the_sizes_of_table_7():
    with torch.device("meta"):
        last, four = (
            FeatureReader(FeatureConfig(features=name), BertConfig(), 9) for name in ("last", "concat-last-four")
        )
    assert last.lstm.lstm.weight_ih_l0.shape == (4 * 768, 768)
    assert four.lstm.lstm.weight_ih_l0.shape == (4 * 768, 4 * 768)
    assert last.out.weight.shape == (9, 2 * 768)
    # What benchmarks/features.py and docs/features.md reckon with.
    matrices = sum(weight.numel() for name, weight in last.lstm.named_parameters() if "weight" in name)
    assert round(matrices / 1e6, 1) == 23.6


@pytest.mark.parametrize(
    ("features", "num_layers"), [("last", 0), ("second-to-last", 1), ("sum-last-four", 3), ("concat-last-four", 3)]
)
def test_too_few_layers_are_told(features, num_layers):
    with pytest.raises(UserError, match=f"and this one has {num_layers}"):
        layers_of(features, num_layers)
    assert layers_of(features, num_layers + 1)
    assert min(layers_of(features, num_layers + 1)) >= 1


def test_a_reader_is_found_in_the_network_that_has_it_and_in_no_other():
    plain = Bert(ENCODER, {"tag": 3})
    assert reader_of(plain) is None
    reader = reader_for("last")
    assert reader_of(feature_bert(Bert(ENCODER, pooler=False), reader)) is reader
