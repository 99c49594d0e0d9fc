"""The plan of a whole run: phases, limits, disk, cost, and what a person reads."""

import json
import math
import subprocess
import sys

import pytest

import bertworks as bw
from bertworks.config import recipe_names
from bertworks.errors import UserError
from bertworks.models.kinds import write_model
from bertworks.models.weights import write_weights
from bertworks.nn.bert import Bert
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise
from bertworks.planning.costs import GPUS
from bertworks.planning.plan import plan_text
from bertworks.recipe import load_recipe
from bertworks.train.optim import Optimizer


def plan(name, *overrides, **options):
    return bw.plan(load_recipe(name, overrides), **options)


def test_base_has_two_phases_whose_sums_are_the_runs():
    planned = plan("base")
    assert [(phase["length"], phase["steps"]) for phase in planned["phases"]] == [(128, 900_000), (512, 100_000)]
    assert planned["tokens"] == sum(phase["tokens"] for phase in planned["phases"]) == 42_598_400_000
    assert planned["time"]["training_hours"] == pytest.approx(sum(phase["hours"] for phase in planned["phases"]))
    assert planned["flops"] == pytest.approx(planned["flops_per_token"] * planned["tokens"])
    assert planned["memory"]["slice_tokens"] == 256 * 512  # the longer phase's


def test_a_share_of_0_or_1_leaves_one_phase():
    assert [phase["length"] for phase in plan("base", "data.short_share=0")["phases"]] == [512]
    short = plan("base", "data.short_share=1")
    assert [phase["length"] for phase in short["phases"]] == [128]
    assert short["memory"]["slice_tokens"] == 256 * 128


def test_more_short_sequences_in_a_batch_are_planned_for():
    planned = plan("base", "data.short_batch=4096")
    tokens = [phase["tokens"] // phase["steps"] for phase in planned["phases"]]
    assert tokens == [4096 * 128, 256 * 512]
    assert (planned["memory"]["length"], planned["memory"]["slice_tokens"]) == (128, 4096 * 128)
    with pytest.raises(UserError, match=r"train\.slices 3 does not divide a batch of 256 x 512"):
        plan("base", "data.short_batch=768", "train.slices=3")


def test_slices_that_are_proposed_cut_batches_of_both_lengths():
    batches = ("data.short_batch=3072", "train.batch_size=512")
    way, *_ = plan("large", *batches, gpu="l4")["memory"]["ways_to_fit"]
    assert plan("large", *batches, way, gpu="l4")["memory"]["fits"]


def test_mfu_is_the_share_of_the_peak_that_training_uses():
    planned = plan("base")
    seconds = 3600 * planned["time"]["training_hours"]
    assert planned["mfu"] == pytest.approx(planned["flops"] / seconds / 989e12)
    assert 0.3 < planned["mfu"] < 0.5


def test_tokens_limit_a_run():
    planned = plan("base", "train.max_tokens=1_000_000_000")
    assert planned["phases"][0]["steps"] == planned["steps"] == math.ceil(1e9 / 32_768)
    first = 900_000 * 32_768
    into_second = plan("base", f"train.max_tokens={first + 500_000_000}")
    assert [phase["steps"] for phase in into_second["phases"]] == [900_000, math.ceil(500e6 / 131_072)]


def test_minutes_limit_a_run():
    planned = plan("mini", "train.max_minutes=30")
    assert planned["time"]["training_hours"] == pytest.approx(0.5, rel=1e-3)
    assert planned["steps"] < 1_000_000
    assert plan("mini", "train.max_minutes=1e9")["steps"] == 1_000_000


def test_by_the_clock_the_short_phase_has_its_share_of_the_time():
    planned = plan("mini", "optim.clock=true", "train.max_minutes=60", "data.short_share=0.75")
    assert [phase["hours"] for phase in planned["phases"]] == pytest.approx([0.75, 0.25], rel=1e-3)


def test_several_gpus_share_slices_and_an_update_is_made_by_each():
    one, eight = plan("large", "train.slices=8"), plan("large", "train.slices=8", gpus=8)
    faster = eight["time"]["tokens_per_second"] / one["time"]["tokens_per_second"]
    assert 5 < faster < 8
    assert eight["memory"] == one["memory"]
    assert any("Several GPUs were not measured" in note for note in eight["notes"])
    assert eight["gpu_hours"] == 8 * eight["time"]["hours"]


def test_slices_change_memory_but_hardly_the_time():
    whole, cut = plan("base"), plan("base", "train.slices=4")
    assert cut["memory"]["peak_bytes"] < 0.4 * whole["memory"]["peak_bytes"]
    assert 1 <= cut["time"]["hours"] / whole["time"]["hours"] < 1.2


def test_a_cost_needs_a_price():
    assert plan("mini")["cost"] is None
    planned = plan("mini", price=2.5)
    assert planned["cost"] == 2.5 * planned["time"]["hours"]
    assert "Cost" not in plan_text("mini", plan("mini"))
    assert plan("mini", price=0.0)["cost"] == 0
    several = plan("mini", "train.slices=4", price=2.5, gpus=4)
    assert several["cost"] == pytest.approx(4 * 2.5 * several["time"]["hours"])


def test_a_larger_vocabulary_is_a_larger_model():
    assert plan("base")["parameters"]["all"] == 110_106_428
    bigger = plan("base", vocab_size=119_547)
    assert bigger["parameters"]["all"] - 110_106_428 == (119_547 - 30_522) * 769
    assert bigger["time"]["hours"] > plan("base")["time"]["hours"]


def test_saving_often_takes_time():
    often, seldom = (
        plan("large", f"train.save_every={steps}", "train.save_minutes=1e9")["time"] for steps in (100, 10_000)
    )
    assert often["saving_hours"] == pytest.approx(100 * seldom["saving_hours"])
    assert often["hours"] == often["training_hours"] + often["saving_hours"]


def test_long_steps_are_saved_by_the_clock():
    by_steps, by_clock = (
        plan("large", "train.save_every=1000000", f"train.save_minutes={minutes}")["time"] for minutes in (1e9, 15)
    )
    one = by_steps["saving_hours"]
    assert by_clock["saving_hours"] == pytest.approx(one * by_clock["training_hours"] * 60 / 15, rel=0.01)
    assert by_clock["saving_hours"] < 0.01 * by_clock["hours"]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_checkpoint_is_as_large_as_predicted(tmp_path, positions):
    recipe = load_recipe("base", ["model.preset=2x128", f"model.positions={positions}"])
    net = Bert(preset("2x128", positions=positions), {"mlm": 0, "nsp": 2})
    initialise(net, 0.02, seed=0)
    write_model(tmp_path, net)
    write_weights(tmp_path / "optimizer.safetensors", Optimizer(net, recipe.optim).state_dict())
    disk = bw.plan(recipe)["disk"]
    assert (tmp_path / "model.safetensors").stat().st_size == pytest.approx(disk["model_bytes"], rel=0.002)
    assert (tmp_path / "optimizer.safetensors").stat().st_size == pytest.approx(disk["optimizer_bytes"], rel=0.002)
    assert disk["peak_bytes"] == 3 * disk["checkpoint_bytes"] + disk["model_bytes"]


def test_what_does_not_fit_says_so_and_how_it_would():
    planned = plan("large", gpu="a100-40")
    assert not planned["memory"]["fits"]
    for way in planned["memory"]["ways_to_fit"][:-1]:
        assert plan("large", *way.split(), gpu="a100-40")["memory"]["fits"]
    text = plan_text("large", planned)
    assert "DOES NOT FIT one A100-40's 40 GB" in text
    assert f"It fits with {planned['memory']['ways_to_fit'][0]}, or " in text
    assert plan("large")["memory"]["fits"]


def test_only_the_h200_is_called_measured():
    for name in GPUS:
        overrides = () if GPUS[name].bf16_tflops else ("train.dtype=float32",)
        (note,) = plan("base", *overrides, gpu=name)["notes"]
        assert ("was fitted to steps measured on one H200" in note) == (name == "h200")
        assert ("it was not measured" in note) == (name != "h200")
    assert "it was not measured" in plan("base", "train.dtype=float32")["notes"][0]
    assert "Without train.compile a step takes longer than this." in plan("base", "train.compile=false")["notes"]


def test_elmo_has_numbers_but_no_time():
    planned = plan("elmo", price=1.0)
    assert planned["parameters"]["all"] == 500_717_023
    assert planned["tokens"] == pytest.approx(10 * 768_648_884, rel=1e-5)
    assert (planned["time"]["hours"], planned["mfu"], planned["cost"]) == (None, None, None)
    assert "not predicted" in plan_text("elmo", planned)


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_person_reads_has_100_columns_and_every_section(name):
    for gpu, options in (("h200", {"price": 1e4}), ("rtx-3090", {}), ("l4", {}), ("cpu", {})):
        lines = plan_text(name, plan(name, gpu=gpu, **options)).splitlines()
        assert max(map(len, lines)) <= 100
        assert all(line == line.rstrip() for line in lines)
        titles = [line.split()[0] for line in lines[1:] if line and not line.startswith((" ", "Time is", "No time"))]
        assert titles == ["Network", "Run", "Memory", "Time", "Disk", *(["Cost"] if options and name != "elmo" else [])]


@pytest.mark.parametrize(
    ("overrides", "options", "said"),
    [
        ((), {"gpus": 0}, "--gpus 0 is not possible"),
        ((), {"gpus": -3}, "--gpus -3 is not possible"),
        ((), {"gpus": 8}, "8 GPUs cannot share train.slices=1; choose a multiple, such as train.slices=8"),
        ((), {"price": -1.0}, "--price -1.0 is not possible"),
        ((), {"price": math.nan}, "--price nan is not possible"),
        ((), {"price": math.inf}, "--price inf is not possible"),
        ((), {"gpu": "cpu", "gpus": 2}, "--gpus 2 is for GPUs"),
        (("model.kind=elmo", "model.preset=mini", "data.objective=bilm"), {"gpu": "t4"}, "t4 has no bf16"),
        ((), {"vocab_size": -1}, "vocab_size: -1 is too small"),
        ((), {"vocab_size": 0}, "vocab_size: 0 is too small"),
        (("train.slices=7",), {}, "train.slices 7 does not divide a batch of 256 x 128 tokens"),
        (("train.slices=512",), {}, "train.slices 512 does not divide"),
        ((f"train.max_steps={10**400}",), {}, "is too large; at most 1000000000000000"),
        ((f"train.slices={10**400}",), {}, "is too large; at most 1000000000000000"),
        (("optim.clock=true",), {}, "optim.clock needs train.max_minutes"),
    ],
)
def test_mistakes_are_user_errors(overrides, options, said):
    with pytest.raises(UserError, match=said):
        plan("base", *overrides, **options)


# -- the command


def test_the_command_prints_a_plan_or_one_object(bertworks):
    code, out, err = bertworks("plan", "base", "train.slices=2", "--gpus", 2, "--price", "2.5")
    assert (code, err) == (0, "")
    assert out.startswith("base on 2 H200s, predicted\n")
    assert "GPU hours" in out
    code, out, _ = bertworks("plan", "base", "train.slices=2", "--gpus", 2, "--price", "2.5", "--json")
    result = json.loads(out)
    assert result["recipe"] == "base"
    assert (result["gpu"], result["gpus"], result["tokens"]) == ("h200", 2, 42_598_400_000)
    assert result == {"recipe": "base"} | json.loads(json.dumps(plan("base", "train.slices=2", gpus=2, price=2.5)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bse",), "did you mean 'base'?"),
        (("base", "--gpu", "h2000"), "did you mean 'h200'?"),
        (("base", "optim.lrr=1", "train.keep=0"), "2 problems"),
        (("mini", "--gpu", "t4"), "t4 has no bf16"),
        (("nowhere.toml",), "no recipe file nowhere.toml"),
        (("continue", "train.max_steps=5"), "to plan, give a size such as model.preset=base"),
        (("mine.toml",), "mine.toml, which is like continue, takes the model's size from --from MODEL"),
    ],
)
def test_a_mistake_ends_in_a_line_or_two_and_exit_code_2(bertworks, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('like = "continue"\n')
    code, out, err = bertworks("plan", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) <= 3


def test_planning_loads_neither_torch_nor_numpy():
    program = (
        "import sys; sys.argv = ['bertworks', 'plan', 'large', '--gpu', 'l4']\n"
        "from bertworks.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'numba', 'tokenizers'} & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("large on 1 L4")
    assert ended.stderr.strip() == "[]"


@pytest.mark.parametrize("name", recipe_names())
def test_every_plan_is_strict_json(name):
    json.dumps(plan(name), allow_nan=False)


def test_python_plans_as_the_command_does_however_the_package_is_imported(bertworks):
    """The package `bertworks.planning` does not take the place of the function."""
    told = json.loads(bertworks("plan", "mini", "train.max_minutes=30", "--gpu", "a100-80", "--json")[1])
    told.pop("recipe")
    for _ in range(2):
        assert bw.plan("mini", overrides=["train.max_minutes=30"], gpu="a100-80") == told
    assert bw.plan(load_recipe("mini"))["gpu"] == "h200"
    with pytest.raises(UserError, match=r"to plan, give a size such as model\.preset=base"):
        bw.plan("continue")
