"""The records of `models/kinds.py` agree with each other and with what other rooms say of the same kinds."""

import pytest

from bertworks.config import OBJECTIVES
from bertworks.models.kinds import BERT, FEATURES, KINDS, find_kind, kind_of_network
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import FeatureReader, feature_bert
from bertworks.nn.config import BertConfig, FeatureConfig
from bertworks.recipe import ModelSettings
from bertworks.train.objectives import OBJECTIVES as LEARNT

SMALL = BertConfig(
    vocab_size=9, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=8,
)  # fmt: skip


def test_names_and_model_types_tell_kinds_apart():
    for one in ("name", "title", "model_type"):
        assert len({getattr(kind, one) for kind in KINDS}) == len(KINDS)
    assert all(find_kind(kind.name) is kind for kind in KINDS)


@pytest.mark.parametrize("name", ["bert", "gpt", "elmo"])
def test_a_recipe_s_model_reads_the_tokens_of_its_kind_and_learns_by_objectives_that_there_are(name):
    kind = find_kind(name)
    assert kind.tokenizer.kind == ModelSettings(kind=name).tokens
    assert kind.objectives == OBJECTIVES[kind.tokenizer.kind]
    assert kind.objectives.keys() <= LEARNT.keys()


def test_only_what_a_recipe_names_is_pre_trained():
    assert {kind.name for kind in KINDS if kind.objectives} == {"bert", "gpt", "elmo"}


def test_a_network_is_of_the_kind_that_made_it():
    assert kind_of_network(Bert(SMALL, {"tag": 2})) is BERT
    tagger = feature_bert(Bert(SMALL, pooler=False), FeatureReader(FeatureConfig(lstm_cells=4), SMALL, 2))
    assert kind_of_network(tagger) is FEATURES
