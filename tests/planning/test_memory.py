"""Memory by formula: what a block keeps is what torch keeps, and settings change it as they should."""

import pytest
import torch

from bertworks.errors import UserError
from bertworks.nn.attention import pack_lengths
from bertworks.nn.bert import Block
from bertworks.nn.config import preset
from bertworks.planning import costs
from bertworks.planning.costs import MicroBatch, fewest_slices, fits, memory_of, network_of, part_of, ways_to_fit
from bertworks.recipe import load_recipe

KEPT = "activations kept"
OWNED = ("weights", "gradients", "optimizer", "bf16 copies of weights")


def network(*overrides):
    return network_of(load_recipe("base", overrides), 30_522)


def test_a_block_keeps_about_as_much_as_torch_saves_for_its_backward_pass():
    """In fp32 on a CPU, not compiled: there attention's output is kept twice, before and after it is put in order."""
    config = preset("1x128", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    block, tokens = Block(config), 64 * 8
    weights = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x_TD = torch.zeros(tokens, 128)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = block(x_TD, pack_lengths([64] * 8, "cpu"))
    assert kept.requires_grad
    widths = sum(saved.values()) / (4 * tokens * 128)
    assert costs._KEPT_WIDTHS <= widths <= costs._KEPT_WIDTHS + 1.5


def test_slices_divide_what_a_batch_takes_and_nothing_else():
    whole, quarter = (memory_of(network(), MicroBatch(tokens, True, False)) for tokens in (65_536, 16_384))
    for name in whole:
        factor = 1 if name in (*OWNED, "CUDA itself") else 4
        assert whole[name] == pytest.approx(factor * quarter[name])


def test_shards_divide_what_belongs_to_the_weights_and_nothing_else():
    alone, eighth = (memory_of(network(), MicroBatch(65_536, True, False, parts)) for parts in (1, 8))
    for name in alone:
        assert alone[name] == pytest.approx((8 if name in OWNED else 1) * eighth[name])


def test_weights_take_18_bytes_each_in_bf16_and_16_in_fp32():
    for half, num_bytes in ((True, 18), (False, 16)):
        needed = memory_of(network(), MicroBatch(512, half, False))
        assert sum(needed[name] for name in OWNED) == num_bytes * network().num_parameters


def test_recompute_keeps_one_width_of_each_block_and_two_blocks_whole():
    net = network()
    full, less = (memory_of(net, MicroBatch(65_536, True, recompute))[KEPT] for recompute in (False, True))
    assert 0.15 < less / full < 0.3
    deeper = memory_of(network("model.preset=24x768"), MicroBatch(65_536, True, True))[KEPT]
    assert deeper - less == pytest.approx(65_536 * 12 * 768 * 2)


def test_fp32_keeps_about_twice_as_much():
    half, full = (memory_of(network(), MicroBatch(65_536, is_half, False)) for is_half in (True, False))
    assert full["scores of the vocabulary"] == 2 * half["scores of the vocabulary"]
    assert 1.9 < full[KEPT] / half[KEPT] < 2


def test_a_language_model_scores_some_rows_at_a_time():
    masked, every = (
        memory_of(network(f"data.objective={name}"), MicroBatch(131_072, True, False)) for name in ("mlm", "ltr")
    )
    assert every["scores of the vocabulary"] == 8_192 * 30_522 * 4
    assert masked["scores of the vocabulary"] == pytest.approx(0.15 * 131_072 * 30_522 * 4)


@pytest.mark.parametrize("memory_gb", [24, 40, 80])
@pytest.mark.parametrize(("batch_size", "gpus"), [(256, 1), (256, 2), (240, 3)])
def test_the_fewest_slices_fit_and_fewer_do_not(memory_gb, batch_size, gpus):
    recipe = load_recipe("large", [f"train.batch_size={batch_size}", f"train.slices={gpus}"])
    net = network_of(recipe, 30_522)

    def peak(slices):
        return sum(memory_of(net, part_of(recipe, 512, gpus, slices=slices)).values())

    slices = fewest_slices(recipe, net, 512, memory_gb, gpus)
    assert fits(peak(slices), memory_gb)
    possible = [number for number in range(gpus, batch_size + 1, gpus) if batch_size % number == 0]
    assert slices in possible
    assert not any(fits(peak(fewer), memory_gb) for fewer in possible if fewer < slices)


def test_ways_to_fit_are_settings_that_make_it_fit():
    recipe = load_recipe("large")
    ways = ways_to_fit(recipe, network_of(recipe, 30_522), 512, 24, 1)
    assert ways == ["train.slices=8", "train.recompute=true train.slices=2", "--gpu h200"]
    for way in ways[:2]:
        changed = load_recipe("large", way.split())
        assert fits(sum(memory_of(network_of(changed, 30_522), part_of(changed, 512, 1)).values()), 24)


def test_shards_are_a_way_where_there_are_several_gpus():
    recipe = load_recipe("base", ["model.preset=48x4096", "train.batch_size=8", "train.slices=8"])
    net = network_of(recipe, 30_522)
    assert "train.shard=true" in ways_to_fit(recipe, net, 512, 80, 8)
    assert "train.shard=true" not in ways_to_fit(recipe, net, 512, 80, 1)


def test_where_one_sequence_is_too_much_shorter_ones_are_named():
    long = ["model.max_positions=65_536", "data.max_length=65_536", "train.batch_size=4", "train.recompute=true"]
    recipe = load_recipe("large", long)
    ways = ways_to_fit(recipe, network_of(recipe, 30_522), 65_536, 16, 1)
    assert ways == ["data.max_length=32768 train.slices=4", "--gpu l40s"]


def test_a_gpu_is_named_only_if_it_has_enough_memory():
    recipe = load_recipe("base", ["train.batch_size=128"])
    assert ways_to_fit(recipe, network_of(recipe, 30_522), 512, 24, 1)[-1] == "--gpu a100-40"
    enormous = load_recipe("base", [f"train.batch_size={10**12 + 1}"])
    assert ways_to_fit(enormous, network_of(enormous, 30_522), 512, 24, 1) == ["a smaller model.preset"]


def test_a_recurrent_network_is_not_told_to_recompute():
    recipe = load_recipe("elmo", ["train.batch_size=1024"])
    ways = ways_to_fit(recipe, network_of(recipe, 793_471), 128, 24, 1)
    assert ways[0].startswith("train.slices=")
    assert not any("recompute" in way for way in ways)


@pytest.mark.parametrize(("dropout", "pairs"), [(0.1, costs._KEPT_PAIRS_OF_CPU), (0.0, 0)])
def test_a_block_on_a_cpu_keeps_about_as_much_as_torch_saves(dropout, pairs):
    config = preset("1x128", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    block, length, count = Block(config), 64, 8
    weights = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = (storage.nbytes(), storage)  # held on to, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = block(torch.zeros(length * count, 128), pack_lengths([length] * count, "cpu"))
    assert kept.requires_grad
    part = MicroBatch(length * count, False, False, on_cpu=True, attended=length if pairs else 0)
    real = sum(size for size, _ in saved.values())
    assert 0.9 < length * count * costs.block_bytes(128, 2, part, 4) / real < (1.15 if dropout else 1.4)


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_what_the_narrowest_cgroup_leaves(tmp_path, monkeypatch, version):
    """Files as a kernel writes them, for a process in pod/box; what files take and nobody reads is given back."""
    root, own = tmp_path / "fs", tmp_path / "cgroup"
    own.write_text("9:name=systemd:/\n4:memory:/pod/box\n" if version == 1 else "0::/pod/box\n")
    top = root / "memory" if version == 1 else root
    names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    for folder, limit, used in ((top / "pod/box", "9223372036854771712", 3_000), (top / "pod", "10000", 7_000)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in zip(names, (limit if version == 1 or limit == "10000" else "max", used), strict=True):
            (folder / f"memory.{name}").write_text(f"{value}\n")
        (folder / "memory.stat").write_text("cache 90\ninactive_file 500\ntotal_inactive_file 500\n")
    monkeypatch.setattr(
        costs, "read_numbers", lambda path, real=costs.read_numbers: {} if "proc" in str(path) else real(path)
    )
    assert list(costs.free_of_cgroups(root, own)) == [10_000 - 7_000 + 500]
    if version == 2:
        (top / "pod/box/memory.high").write_text("4000\n")
        assert min(costs.free_of_cgroups(root, own)) == 4_000 - 3_000 + 500


def test_free_memory_of_this_machine_is_known_and_limited_by_ulimit(monkeypatch):
    resource = pytest.importorskip("resource")
    free = costs.free_memory()
    assert free is None or 0 < free < 1 << 50
    if free is not None:
        size = costs.read_numbers("/proc/self/status")["VmSize"]
        monkeypatch.setattr(resource, "getrlimit", lambda which: (size + 12_345_678, -1))
        assert abs(costs.free_memory() - 12_345_678) < 1 << 24


@pytest.mark.parametrize(("needed", "expected"), [(50, "nothing"), (100, "note"), (130, "note"), (150, "refusal")])
def test_a_run_is_refused_only_where_it_clearly_does_not_fit(monkeypatch, needed, expected):
    monkeypatch.setattr(costs, "free_memory", lambda: 100 * 10**9)
    notes = []
    if expected == "refusal":
        with pytest.raises(
            UserError, match=r"about 150.0 GB .* 100.0 GB are free .*; change WAYS; .*check_memory=false"
        ):
            costs.check_memory({"a step": needed * 1e9, "the program itself": 1e9}, "WAYS", notes.append)
    else:
        costs.check_memory({"a step": needed * 1e9, "the program itself": 1e9}, "WAYS", notes.append)
    assert len(notes) == (expected == "note")


def test_ways_to_fit_a_cpu_do_fit_it_and_name_no_gpu():
    recipe = load_recipe("mini", ["train.batch_size=2048"])
    net = network_of(recipe, 30_522)
    ways = ways_to_fit(recipe, net, 512, 8, 1, on_cpu=True)
    assert len(ways) == 2
    assert "gpu" not in " ".join(ways)
    for way in ways:
        changed = load_recipe("mini", ["train.batch_size=2048", *way.split()])
        assert fits(sum(memory_of(net, part_of(changed, 512, 1, on_cpu=True)).values()), 8)
