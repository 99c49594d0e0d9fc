"""The recipes that come with the package: each loads, says what it is, and is what its name and its table say."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from bertworks.cli.info import ORIGINS
from bertworks.config import recipe_names, recipe_origin, recipe_summary, to_toml
from bertworks.planning.costs import network_of
from bertworks.planning.plan import plan
from bertworks.recipe import load_recipe

RESULTS = Path(__file__).parents[1] / "docs/results"
MASKS = [name for name in recipe_names() if name.startswith("mask-")]
VARIANTS_OF_BASE = ["large", "tiny", "mini", "small", "medium", "no-nsp", "ltr", "rtl", "3x768", "6x768", "6x768x3",
                    "12x1024", *MASKS]  # fmt: skip


def header_of(name):
    """Return the labelled lines of a header, continued ones joined."""
    text = (resources.files("bertworks") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    comment = re.match(r"(#.*\n)+", text)[0]
    labels = re.findall(r"^# ([A-Z]\w+): +(.*(?:\n# {10}.*)*)", comment, re.MULTILINE)
    return {label: " ".join(line.lstrip("# ") for line in said.splitlines()) for label, said in labels}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_builds_a_valid_network_and_is_written_as_it_is_read(name, tmp_path):
    recipe = load_recipe(name)
    assert network_of(recipe, recipe.vocab.size).num_parameters > 1_000
    (tmp_path / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load_recipe(str(tmp_path / "recipe.toml")) == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_says_what_it_is_what_it_costs_and_how_it_is_run(name):
    header = header_of(name)
    assert {"From", "What", "Costs", "Command"} <= set(header)
    assert header["From"] == recipe_origin(name)
    assert header["From"] in ORIGINS
    start = " --from MODEL" if name == "continue" else ""
    command = "bertworks demo" if name == "demo" else f"bertworks pretrain {name}{start} --data DATA --out RUN"
    assert header["Command"] == command
    assert recipe_summary(name).endswith(".")


@pytest.mark.parametrize("name", [name for name in recipe_names() if recipe_origin(name) != "Small ones for a CPU"])
def test_a_recipe_tells_published_scores_from_measured_ones(name):
    scored = header_of(name)["Scored"]
    assert scored.startswith(("published", "nothing published"))
    assert scored.endswith("Not measured here yet.") or "(docs/results/compact.md)" in scored


def test_what_was_measured_with_a_recipe_is_what_the_results_say():
    found = json.loads((RESULTS / "small_before.json").read_text())["models"]["small-17min"]["results"]["model"]
    held_out = json.loads((RESULTS / "held_out.json").read_text())["small-17min"]
    scored = header_of("small-20min")["Scored"]
    pairs = re.findall(r"(\S+) (\d+\.\d)", scored.partition("dev sets:")[2])
    told = {name.lower().replace("-", ""): float(figure) for name, figure in pairs}
    assert set(told) == {"cola", "sst2", "mrpc", "stsb", "qnli", "rte"}
    assert told == {name: round(100 * found[name]["median"], 1) for name in told}
    accuracies = [round(100 * held_out[length]["mlm_accuracy"], 1) for length in ("128", "512")]
    assert "MLM {} % at 128 and {} % at 512".format(*accuracies) in scored


@pytest.mark.parametrize("name", ["base", "gpt", *VARIANTS_OF_BASE])
def test_the_hours_that_a_recipe_tells_are_those_that_plan_predicts(name):
    told = re.search(
        r"about ([\d.]+) hours on one H200, predicted \(`bertworks plan (\S+)`\)", header_of(name)["Costs"]
    )
    assert told[2] == name
    assert float(told[1]) == pytest.approx(plan(load_recipe(name))["time"]["hours"], rel=0.02)


def test_base_is_the_papers():
    """Appendix A.2: 42.6 billion token positions, 90 % of the steps at length 128."""
    base = load_recipe("base")
    assert (base.model.preset, base.data.objective, base.data.mask_rate) == ("base", "mlm+nsp", 0.15)
    assert (base.data.mask_share, base.data.random_share) == (0.8, 0.1)
    assert (base.optim.name, base.optim.lr, base.optim.warmup, base.optim.schedule) == ("adam", 1e-4, 10_000, "linear")
    assert (base.optim.weight_decay, base.optim.beta1, base.optim.beta2) == (0.01, 0.9, 0.999)
    assert (base.train.batch_size, base.train.max_steps, base.model.dropout) == (256, 1_000_000, 0.1)
    assert plan(base)["tokens"] == 256 * (900_000 * 128 + 100_000 * 512) == 42_598_400_000


@pytest.mark.parametrize("name", VARIANTS_OF_BASE)
def test_a_variant_differs_from_base_in_what_its_name_says_and_in_nothing_else(name):
    recipe, base = load_recipe(name), load_recipe("base")
    objectives = {"no-nsp": "mlm", "ltr": "ltr", "rtl": "rtl"}
    changes = {"data": {}, "model": {}}
    if name in objectives:
        changes["data"] = {"objective": objectives[name]}
    elif name in MASKS:
        mask, same, random = (int(share) / 100 for share in name.split("-")[1:])
        assert mask + same + random == pytest.approx(1)
        changes["data"] = {"mask_share": mask, "random_share": random}
    else:
        changes["model"] = {"preset": name}
    assert recipe == base.model_copy(
        update={section: getattr(base, section).model_copy(update=keys) for section, keys in changes.items()}
    )


def test_all_rows_of_tables_5_6_and_8_are_there():
    assert {(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)} == {
        tuple(map(int, name.split("-")[1:])) for name in MASKS
    }
    rows = {(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)}
    of_recipes = {
        (network.layers, network.width, network.heads)
        for name in ("3x768", "6x768x3", "6x768", "base", "12x1024", "large")
        for network in [network_of(load_recipe(name), 30_522)]
    }
    assert of_recipes == rows


def test_gpt_and_elmo_are_their_authors():
    gpt, elmo = load_recipe("gpt"), load_recipe("elmo")
    assert (gpt.model.kind, gpt.data.objective, gpt.data.max_length, gpt.train.batch_size) == ("gpt", "ltr", 512, 64)
    assert (gpt.optim.lr, gpt.optim.warmup, gpt.optim.schedule) == (2.5e-4, 2_000, "cosine")
    assert gpt.train.max_steps == 100 * 800_000_000 // (64 * 512)
    assert plan(gpt)["parameters"]["all"] == 116_534_784  # openai-gpt's
    assert (elmo.model.kind, elmo.model.preset, elmo.data.objective) == ("elmo", "original", "bilm")
    assert elmo.train.batch_size * elmo.data.max_length == 3 * 128 * 20
    assert elmo.train.max_steps == pytest.approx(10 * 768_648_884 / 7_680, abs=1)


def test_recipes_are_listed_by_where_they_are_from_within_100_columns(bertworks):
    code, out, _ = bertworks("recipes")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if not line.startswith(" ")] == list(ORIGINS)
    assert sorted(line.split()[0] for line in lines if line.startswith(" ")) == recipe_names()
    assert lines.index(next(line for line in lines if " 6x768x3 " in line)) < lines.index(
        next(line for line in lines if " 12x1024 " in line)
    )


def test_recipes_as_json_are_names_and_summaries(bertworks):
    assert json.loads(bertworks("recipes", "--json")[1]) == {name: recipe_summary(name) for name in recipe_names()}
