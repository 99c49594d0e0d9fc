"""The published sizes by name, and every mistake in a config told at once (S6)."""

import pytest
import torch

from bertworks.errors import ConfigError, UserError
from bertworks.nn.bert import Bert
from bertworks.nn.config import NAMED_SIZES, BertConfig, preset


def num_parameters(config, **options):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Bert(config, **options).parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [("base", 109_482_240), ("large", 335_141_888), ("tiny", 4_385_920), ("mini", 11_170_560), ("small", 28_763_648),
     ("medium", 41_373_184)],
)  # fmt: skip
def test_the_named_sizes_have_the_published_numbers_of_parameters(name, count):
    assert num_parameters(preset(name)) == count
    assert num_parameters(preset(NAMED_SIZES[name])) == count


def test_multilingual_base_is_base_with_more_pieces():
    assert num_parameters(preset("base", vocab_size=119_547)) == 177_853_440


@pytest.mark.parametrize("layers", [2, 4, 6, 8, 10, 12])
@pytest.mark.parametrize("width", [128, 256, 512, 768])
def test_googles_24_sizes_build(layers, width):
    config = preset(f"{layers}x{width}")
    assert (config.num_attention_heads, config.intermediate_size) == (width // 64, 4 * width)
    per_layer = 4 * width * (width + 1) + 2 * 4 * width * width + 5 * width + 4 * width
    embeddings = (30_522 + 512 + 2 + 2) * width
    assert num_parameters(config) == embeddings + layers * per_layer + width * (width + 1)
    assert num_parameters(config, pooler=False) == embeddings + layers * per_layer


def test_a_size_may_name_its_heads():
    assert preset("6x768x3").head_width == 256
    assert preset("2x32").num_attention_heads == 1
    assert preset("base", hidden_act="gelu_new", vocab_size=99).vocab_size == 99


@pytest.mark.parametrize(
    "name", ["", "huge", "12x", "x768", "12x768x", "0012x768", "12X768", "-1x768", "12x768 ", "٣x768"]
)
def test_an_unknown_size_is_refused_with_the_known_ones(name):
    with pytest.raises(
        UserError, match=r"tiny, mini, small, medium, base, large\); or give layers x width, such as 4x256"
    ):
        preset(name)


@pytest.mark.parametrize(("name", "words"), [("2x100x3", "3 heads cannot share hidden_size 100"),
                                             ("999x768", "num_hidden_layers"), ("2x99999", "hidden_size")])  # fmt: skip
def test_an_impossible_size_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        preset(name)


def test_all_problems_of_a_size_are_told_at_once():
    """S6."""
    wrong = {"vocab_size": -1, "intermediate_size": 10**12, "hidden_act": "swish", "layer_norm_eps": float("inf"),
             "num_attention_heads": 5, "type_vocab_size": "2", "num_hidden_layers": True, "hidden_sise": 4}  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        preset("4x256", **wrong)
    assert len(caught.value.problems) == len(wrong)
    for name in wrong:
        assert sum(problem.startswith(f"{name}:") for problem in caught.value.problems) == 1
    assert "did you mean 'hidden_size'" in str(caught.value)


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        BertConfig().vocab_size = 3
