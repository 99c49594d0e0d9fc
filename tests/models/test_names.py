"""The table of names: all three columns are complete, and each of ours is made of the tensors that it should be."""

import subprocess
import sys

import pytest
import torch
from google_reference import CONFIG, SIZES, random_variables, variable_shapes, write_folder

from bertworks.errors import CorruptFile
from bertworks.models.google import GoogleConfig
from bertworks.models.names import TIED, by_modern_names, huggingface_names, modern_name, parameters
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig


def our_net(**heads):
    with torch.device("meta"):
        return Bert(BertConfig(**SIZES), heads)


def test_the_table_has_every_variable_of_the_original_once():
    table = list(parameters(SIZES["num_hidden_layers"]))
    config = GoogleConfig(**CONFIG)
    found = {parameter.google: tuple(config.size(size) for size in parameter.shape) for parameter in table}
    assert found == variable_shapes(CONFIG)
    assert len({parameter.huggingface for parameter in table}) == len(table) == len(found)


def test_the_table_has_every_parameter_of_ours():
    table = list(parameters(SIZES["num_hidden_layers"]))
    assert {parameter.ours for parameter in table} == {name for name, _ in our_net(mlm=0, nsp=2).named_parameters()}


def test_the_parts_of_ours_have_its_shape_together():
    config = GoogleConfig(**CONFIG)
    by_name = {parameter.huggingface: parameter for parameter in parameters(SIZES["num_hidden_layers"])}
    for ours, tensor in our_net(mlm=0, nsp=2).named_parameters():
        parts = [by_name[name] for name in huggingface_names(ours)]
        assert all(part.ours == ours for part in parts)
        shapes = [tuple(map(config.size, part.shape[:: -1 if part.is_transposed else 1])) for part in parts]
        assert tensor.shape == (sum(shape[0] for shape in shapes), *shapes[0][1:])


def test_queries_keys_and_values_come_in_this_order():
    names = huggingface_names("blocks.11.qkv.bias")
    assert names == tuple(f"bert.encoder.layer.11.attention.self.{part}.bias" for part in ("query", "key", "value"))


@pytest.mark.parametrize(
    ("head", "theirs"),
    [("classify", "classifier"), ("tag", "classifier"), ("choose", "classifier"), ("span", "qa_outputs")],
)
def test_heads_of_fine_tuning_have_hugging_faces_names(head, theirs):
    names = [name for name, _ in our_net(**{head: 2}).named_parameters() if name.startswith("heads.")]
    assert [huggingface_names(name) for name in names] == [(f"{theirs}.weight",), (f"{theirs}.bias",)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("cls.predictions.transform.LayerNorm.beta", "cls.predictions.transform.LayerNorm.bias"),
        ("bert.pooler.dense.weight", "bert.pooler.dense.weight"),
        ("bert.gamma.dense.bias", "bert.gamma.dense.bias"),
        ("encoder.layer.3.output.LayerNorm.beta", "bert.encoder.layer.3.output.LayerNorm.bias"),
        ("embeddings.position_ids", "bert.embeddings.position_ids"),
        ("pooler.dense.bias", "bert.pooler.dense.bias"),
        ("classifier.weight", "classifier.weight"),
        ("adapter.weight", "adapter.weight"),
    ],
)
def test_old_spellings_become_those_of_today(old, new):
    assert modern_name(old) == new
    assert modern_name(new) == new


def test_a_copy_alone_stands_for_what_it_copies():
    for copy, original in TIED.items():
        assert by_modern_names({copy: 7}, "here") == {copy: 7, original: 7}
        assert by_modern_names({copy: 7, original: 8}, "here") == {copy: 7, original: 8}


def test_two_spellings_of_one_tensor_are_corrupt():
    for two in (("pooler.dense.bias", "bert.pooler.dense.bias"), ("a.LayerNorm.gamma", "a.LayerNorm.weight")):
        with pytest.raises(CorruptFile, match="here has the same tensor under two names"):
            by_modern_names(dict.fromkeys(two), "here")


def test_conversion_works_without_torch(tmp_path):
    write_folder(tmp_path / "google", random_variables())
    program = (
        "import sys; sys.modules['torch'] = None\n"  # an import of it fails
        "from bertworks.models.convert import convert\n"
        "convert('google', 'folder'); convert('folder', 'back/bert_model.ckpt')"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    data = "bert_model.ckpt.data-00000-of-00001"
    assert (tmp_path / "back" / data).read_bytes() == (tmp_path / "google" / data).read_bytes()
