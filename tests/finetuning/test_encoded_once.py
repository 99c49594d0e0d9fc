"""A grid tokenizes once: each run has the bits that it has alone, and nothing is left in memory behind the last."""

import weakref

import pytest
from small_models import write_small_elmo, write_small_model
from toy_elmo_tasks import QUICK as QUICK_ELMO
from toy_elmo_tasks import write_elmo
from toy_tasks import SIZES, write_task

from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.search import GridPlan, encoded_once, search
from bertworks.tasks.heads import KINDS, Items
from bertworks.tasks.task import Cut, Task, TextExample
from bertworks.text.elmo_words import SpelledTokenizer

TASK = Task(name="some", title="some", kind="classify", splits={}, metrics=("accuracy",), labels=("a", "b"))
FEW = ("train.epochs=1", "train.batch_size=16", "train.log_every=1")


@pytest.fixture
def made(monkeypatch):
    """What has been encoded: whether to learn from, how many examples, how long; and the items, if they live."""
    calls, real = [], KINDS["classify"].encode

    def encode(examples, tokenizer, task, cut, *, is_training=False):
        items = real(examples, tokenizer, task, cut, is_training=is_training)
        calls.append(((is_training, len(examples), cut.max_length), weakref.ref(items)))
        return items

    monkeypatch.setitem(KINDS, "classify", KINDS["classify"]._replace(encode=encode))
    return calls


def write_model(folder, kind):
    return write_elmo(folder) if kind == "elmo" else write_small_model(folder, **SIZES)


@pytest.mark.parametrize("kind", ["bert", "elmo"])
def test_every_run_of_a_grid_has_the_bits_that_it_has_alone(tmp_path, made, kind):
    """With two lengths and two seeds, so that items are shared by some runs and not by others."""
    train, dev = write_task(tmp_path, "classify", num_train=64)
    few = (*(QUICK_ELMO if kind == "elmo" else ()), *FEW, "optim.lr=3e-3")
    task = {"model": write_model(tmp_path / "model", kind), "train": train, "dev": dev, "device": "cpu"}
    grid = search(
        "classify", out=tmp_path / "grid", plan=GridPlan(restarts=2), overrides=(*few, "task.max_length=6,16"), **task
    )
    assert len(grid.results["runs"]) == 4
    assert [call for call, _ in made] == [(t, n, length) for length in (6, 16) for t, n in ((True, 64), (False, 40))]
    for folder, run in grid.results["runs"].items():
        own = (f"task.max_length={run['values']['max_length']}", f"train.seed={run['seed']}")
        alone = tmp_path / "alone" / folder
        assert finetune("classify", out=alone, overrides=(*few, *own), **task).metrics == run["metrics"]
        for name in ("metrics.jsonl", "dev.json"):
            assert (tmp_path / "grid" / folder / name).read_bytes() == (alone / name).read_bytes()


def test_no_items_are_in_memory_when_a_grid_has_ended(tmp_path, made):
    train, dev = write_task(tmp_path, "classify", num_train=32)
    model = write_small_model(tmp_path / "model", **SIZES)
    overrides = (*FEW, "task.max_length=16", "optim.lr=3e-3,1e-3")
    search("classify", model=model, train=train, dev=dev, out=tmp_path / "g", overrides=overrides, device="cpu")
    assert [items() for _, items in made] == [None, None]


def texts(*some):
    return [TextExample(str(number), text, None, "a") for number, text in enumerate(some)]


def test_words_that_are_spelt_have_the_numbers_of_the_items_that_are_kept(tmp_path):
    """A run that goes on in another process meets its words anew, and must find those of its checkpoint."""
    folder = write_small_elmo(tmp_path)
    train, cut = texts("the zebra sat", "a gnu"), Cut(16)
    once = encoded_once(KINDS["classify"])
    first, second, third = (SpelledTokenizer.from_folder(folder) for _ in range(3))
    for tokenizer in (first, second):
        items = once.encode(train, tokenizer, TASK, cut, is_training=True)
        dev_items = once.encode(texts("gnu emu"), tokenizer, TASK, cut)
    assert first.met.words == second.met.words == ["<S>", "</S>", "the", "zebra", "sat", "a", "gnu", "emu"]
    assert items.digest() == KINDS["classify"].encode(train, second, TASK, cut).digest()
    # To one that has not met the train set's words, those of the dev set are not what they were to the others.
    anew = once.encode(texts("gnu emu"), third, TASK, cut)
    assert (anew.ids.tolist(), dev_items.ids.tolist()) == ([0, 2, 3, 1], [0, 6, 7, 1])


def test_items_are_made_again_for_another_cut_other_examples_or_to_learn_from():
    made = []

    def encode(examples, tokenizer, task, cut, *, is_training=False):
        made.append((len(examples), cut, is_training))
        return Items(*[None] * 6)

    once = encoded_once(KINDS["classify"]._replace(encode=encode))
    calls = [(texts("a"), Cut(8), True), (texts("a", "b"), Cut(8), True), (texts("a"), Cut(9), True),
             (texts("a"), Cut(8), False), (texts("a"), Cut(8, context="sentence"), True)]  # fmt: skip
    found = [once.encode(some, None, TASK, cut, is_training=learns) for _ in range(2) for some, cut, learns in calls]
    assert made == [(len(some), cut, learns) for some, cut, learns in calls]
    assert [id(items) for items in found[5:]] == [id(items) for items in found[:5]]
