"""The original's checkpoints and ours: names, layouts, configurations, and what happens when they contradict."""

import json

import numpy as np
import pytest
from google_reference import CONFIG, pieces, random_variables, variable_shapes, write_folder

from bertworks.errors import ConfigError, CorruptFile, UserError
from bertworks.models.google import (
    GoogleConfig,
    find_checkpoint,
    read_google,
    read_google_config,
    to_google,
    to_huggingface,
    write_google,
)
from bertworks.models.tf_bundle import Bundle


def huggingface_config(**changes):
    return to_huggingface(GoogleConfig(**CONFIG), "BertForPreTraining", 0) | changes


@pytest.mark.parametrize(
    ("google", "huggingface", "is_transposed"),
    [
        ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", False),
        ("bert/encoder/layer_1/attention/self/query/kernel", "bert.encoder.layer.1.attention.self.query.weight", True),
        ("bert/encoder/layer_0/intermediate/dense/bias", "bert.encoder.layer.0.intermediate.dense.bias", False),
        ("bert/encoder/layer_0/output/LayerNorm/gamma", "bert.encoder.layer.0.output.LayerNorm.weight", False),
        ("bert/encoder/layer_0/output/LayerNorm/beta", "bert.encoder.layer.0.output.LayerNorm.bias", False),
        ("cls/predictions/output_bias", "cls.predictions.bias", False),
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight", True),
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", False),
    ],
)
def test_names_are_those_of_both_sides(tmp_path, google, huggingface, is_transposed):
    variables = random_variables()
    model = read_google(write_folder(tmp_path, variables))
    expected = variables[google].T if is_transposed else variables[google]
    np.testing.assert_array_equal(model.tensors[huggingface], expected)


@pytest.mark.parametrize(
    "which", ["", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
)
def test_a_folder_a_prefix_and_a_file_name_the_same_checkpoint(tmp_path, which):
    write_folder(tmp_path, random_variables())
    assert find_checkpoint(tmp_path / which) == tmp_path / "bert_model.ckpt"


def test_a_folder_with_two_checkpoints_asks_which(tmp_path):
    write_folder(tmp_path, random_variables())
    (tmp_path / "model.ckpt-100.index").touch()
    with pytest.raises(UserError, match=r"holds 2 checkpoints \(bert_model.ckpt, model.ckpt-100\)"):
        read_google(tmp_path)
    assert read_google(tmp_path / "bert_model.ckpt").tensors


@pytest.mark.parametrize("name", ["", "nothing", "no/where", "a\0b"])
def test_no_checkpoint_is_said_so(tmp_path, name):
    with pytest.raises(UserError, match="no checkpoint"):
        read_google(f"{tmp_path}/{name}")


def test_the_optimizers_state_is_read_only_when_asked_for(tmp_path):
    variables = random_variables(with_optimizer=True)
    write_folder(tmp_path, variables)
    without, with_it = read_google(tmp_path), read_google(tmp_path, with_optimizer=True)
    num_parameters = len(variable_shapes(CONFIG))
    assert without.optimizer == {}
    assert len(without.left_out) == 2 * num_parameters + 1
    assert with_it.left_out == []
    assert len(with_it.optimizer) == 2 * num_parameters + 1
    assert with_it.optimizer["global_step"] == 1_000_003
    kernel = variables["bert/pooler/dense/kernel/adam_v"]
    np.testing.assert_array_equal(with_it.optimizer["bert.pooler.dense.weight.adam_v"], kernel.T)


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_there_and_back_is_exact_on_every_tensor(tmp_path, with_optimizer):
    """N7: Google's names to Hugging Face's and back."""
    variables = random_variables(with_optimizer=with_optimizer)
    model = read_google(write_folder(tmp_path / "a", variables), with_optimizer=True)
    (tmp_path / "b").mkdir()
    assert (
        write_google(tmp_path / "b/bert_model.ckpt", model.config, model.tensors, model.pieces, model.optimizer) == []
    )
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "b/bert_config.json").read_text()) == CONFIG
    assert (tmp_path / "b/checkpoint").read_text().splitlines()[0] == 'model_checkpoint_path: "bert_model.ckpt"'


def test_half_precision_is_widened_exactly(tmp_path):
    variables = {name: value.astype(np.float16) for name, value in random_variables().items()}
    tensors = read_google(write_folder(tmp_path, variables)).tensors
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(tensors["cls.predictions.bias"], variables["cls/predictions/output_bias"])


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ((), "BertForPreTraining"),
        (("cls/seq",), "BertForMaskedLM"),
        (("cls/seq", "bert/pooler"), "BertForMaskedLM"),
        (("cls/",), "BertModel"),
    ],
)
def test_the_architecture_follows_the_heads(tmp_path, without, expected):
    variables = {name: value for name, value in random_variables().items() if not name.startswith(without or "-")}
    model = read_google(write_folder(tmp_path, variables))
    assert model.config["architectures"] == [expected]
    assert len(model.tensors) == len(variables)


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("bert/embeddings/LayerNorm/beta", 1),
        ("cls/predictions/transform/", 4),
        ("cls/seq_relationship/output_bias", 1),
        ("bert/encoder/layer_1/", 16),
        ("bert/pooler/", 2),
    ],
)
def test_what_is_missing_is_named(tmp_path, removed, expected):
    variables = {name: value for name, value in random_variables().items() if not name.startswith(removed)}
    with pytest.raises(ConfigError) as caught:
        read_google(write_folder(tmp_path, variables))
    assert len(caught.value.problems) == expected
    assert all(removed in problem and "is missing" in problem for problem in caught.value.problems)


def test_all_contradictions_are_told_at_once_before_anything_is_read(tmp_path):
    """S6: the configuration and the shapes."""
    variables = random_variables()
    variables["bert/pooler/dense/kernel"] = np.zeros((12, 13), np.float32)
    variables["bert/pooler/dense/bias"] = np.zeros(12, np.int64)
    write_folder(tmp_path, variables, CONFIG | {"num_hidden_layers": 1, "intermediate_size": 21}, pieces(41))
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(bytes(data.stat().st_size))  # not one checksum would hold
    with pytest.raises(ConfigError) as caught:
        read_google(tmp_path)
    told = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 7
    for words in ("[12, 13], but should have [12, 12]", "layer_1", "[20], but should have [21]", "41 pieces", "int64"):
        assert words in told


@pytest.mark.parametrize("slot", ["adam_m", "adam_v"])
def test_the_optimizers_shapes_are_checked_too(tmp_path, slot):
    variables = random_variables(with_optimizer=True)
    variables[f"bert/pooler/dense/bias/{slot}"] = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match=f"bert/pooler/dense/bias/{slot}"):
        read_google(write_folder(tmp_path, variables))


def test_a_vocabulary_shorter_than_the_table_is_a_warning(tmp_path):
    model = read_google(write_folder(tmp_path, random_variables(), vocabulary=pieces(38)))
    assert "38 pieces for a vocab_size of 40" in model.warnings[0]


def test_a_checkpoint_of_another_model_is_told_by_its_names(tmp_path):
    write_folder(tmp_path, {"dense/kernel": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match="no variable of BERT by the original's names; it has dense/kernel"):
        read_google(tmp_path)


def test_what_is_no_part_of_bert_is_left_out_by_name(tmp_path):
    model = read_google(write_folder(tmp_path, random_variables() | {"output_weights": np.zeros((3, 12), np.float32)}))
    assert model.left_out == ["output_weights"]


def test_what_a_configuration_does_not_say_is_as_in_the_original(tmp_path):
    (tmp_path / "c.json").write_text('{"vocab_size": 100}')
    config = read_google_config(tmp_path / "c.json")
    assert (config.hidden_size, config.type_vocab_size, config.hidden_act) == (768, 16, "gelu")


def test_what_the_multilingual_models_say_besides_is_kept(tmp_path):
    more = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}
    config = to_huggingface(GoogleConfig(**CONFIG, **more), "BertModel", 0)
    assert more.items() <= config.items()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("gelu", "gelu_new"), ("relu", "relu"), ("tanh", "tanh"), ("linear", "linear")]
)
def test_the_activation_is_the_one_that_the_original_computes(ours, theirs):
    config = to_huggingface(GoogleConfig(**CONFIG | {"hidden_act": ours}), "BertModel", 0)
    assert config["hidden_act"] == theirs
    back, warnings = to_google(config, "config.json")
    assert (back.hidden_act, warnings) == (ours, [])


def test_the_exact_gelu_is_written_with_a_warning():
    config, warnings = to_google(huggingface_config(hidden_act="gelu"), "config.json")
    assert config.hidden_act == "gelu"
    assert "computes the tanh form" in warnings[0]


def test_what_config_json_does_not_say_is_as_in_transformers():
    config, _ = to_google({"model_type": "bert"}, "config.json")
    assert (config.vocab_size, config.type_vocab_size, config.hidden_size) == (30_522, 2, 768)


def test_another_epsilon_is_written_with_a_warning():
    assert "1e-12 fixed" in to_google(huggingface_config(layer_norm_eps=1e-5), "config.json")[1][0]


BAD_CONFIGS = {
    "unknown key": ({"hiden_size": 12}, "hiden_size"),
    "wrong type": ({"hidden_size": "12"}, "hidden_size"),
    "a truth for a number": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "negative": ({"vocab_size": -1}, "vocab_size"),
    "zero layers": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "10^12 layers": ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
    "heads that do not divide": ({"num_attention_heads": 5}, "5 heads do not divide hidden_size 12"),
    "infinite dropout": ({"hidden_dropout_prob": float("inf")}, "hidden_dropout_prob"),
    "dropout of all": ({"attention_probs_dropout_prob": 1.0}, "attention_probs_dropout_prob"),
    "unknown activation": ({"hidden_act": "swish"}, "hidden_act"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_wrong_setting_is_named(tmp_path, case):
    """S6"""
    changes, words = BAD_CONFIGS[case]
    write_folder(tmp_path, random_variables(), CONFIG | changes)
    with pytest.raises(ConfigError, match=words):
        read_google(tmp_path)


def test_all_wrong_settings_are_named_together(tmp_path):
    changes = {key: value for values, _ in BAD_CONFIGS.values() for key, value in values.items()}
    write_folder(tmp_path, random_variables(), CONFIG | changes)
    with pytest.raises(ConfigError) as caught:
        read_google(tmp_path)
    assert len(caught.value.problems) >= 7


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000, b" " * (1 << 21)]
)
def test_a_configuration_that_is_no_object_is_refused(tmp_path, content):
    write_folder(tmp_path, random_variables())
    (tmp_path / "bert_config.json").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"bert_config\.json"):
        read_google(tmp_path)


@pytest.mark.parametrize("name", ["bert_config.json", "vocab.txt"])
def test_a_missing_file_beside_the_checkpoint_is_named(tmp_path, name):
    write_folder(tmp_path, random_variables())
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=name):
        read_google(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "roberta"}, "roberta"),
        ({"is_decoder": True}, "decoder"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "silu"}, "silu"),
        ({"hidden_act": ["gelu"]}, "gelu"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
    ],
)
def test_what_the_original_cannot_be_is_not_written(tmp_path, changes, words):
    model = read_google(write_folder(tmp_path / "a", random_variables()))
    with pytest.raises(UserError, match=words):
        write_google(tmp_path / "x.ckpt", model.config | changes, model.tensors, model.pieces)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_tensors_that_do_not_fit_are_not_written(tmp_path):
    model = read_google(write_folder(tmp_path / "a", random_variables()))
    tensors = dict(model.tensors) | {"bert.extra.weight": np.zeros(2, np.float32)}
    tensors["bert.encoder.layer.0.output.dense.weight"] = tensors["bert.encoder.layer.0.output.dense.weight"].T
    del tensors["bert.pooler.dense.bias"]
    with pytest.raises(ConfigError) as caught:
        write_google(tmp_path / "x.ckpt", model.config, tensors, pieces(41))
    assert len(caught.value.problems) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_was_written_is_a_checkpoint_with_googles_layout(tmp_path):
    model = read_google(write_folder(tmp_path / "a", random_variables()))
    write_google(tmp_path / "x.ckpt", model.config, model.tensors, model.pieces)
    bundle = Bundle(tmp_path / "x.ckpt")
    assert {name: bundle.shape(name) for name in bundle.names()} == variable_shapes(CONFIG)
