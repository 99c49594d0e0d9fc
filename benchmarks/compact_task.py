"""The tasks of `compact.py`, and which settings are tried on them.

The search is that of Google's compact models as far as time allows: rates 3e-4, 1e-4, 5e-5, 3e-5 with batches of 16 and
32, 4 epochs, one seed, at most 10,000 examples; the best point is run with three seeds on all examples. One axis is
ours: every layer at the same rate, or each at 0.6 of the one above, which small train sets want (docs/log.md). What
large ones want 10,000 examples cannot tell, so it is set: the same rate, and a running mean of the weights.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.finetuning.settings import Point, points_of
from bertworks.tasks import find_task
from bertworks.tasks.task import TEST

_GOLD = "test-gold"
_SQUAD_NOTE = "train: where an answer stands was found by search, 10.8 % of them stand at several places"
_QNLI_NOTE = "started from the best SQuAD 1.1 run's model, chosen on SQuAD's dev set, whose paragraphs QNLI's has too"
_SWAG_NOTE = "derived from novels, not SWAG"
_CODAH_NOTE = "fold 0 of 5"
_NSMC_NOTE = "split rebuilt, not the official one"
_KORNLI_NOTE = "train: KorNLI's dev set, as its train set cannot be had"
_WNLI_NOTE = (
    "the paper leaves it out: 65 of the first sentences of dev's 71 pairs are in train too; the larger class has 56.3"
)


class Work(NamedTuple):
    """A task to measure.

    Attributes:
        task: as `finetune` calls it.
        test: a split whose gold labels are there; "" where there is none.
        source: the work whose best model it starts from; "" for the model itself.
        is_large: whether it has so many examples that the search sees only a part of them.
        is_dev_train: whether there is only a dev set, from which it learns; a tenth of it is split off.
        note: what must be said beside its scores, besides what its files say.
    """

    task: str
    test: str = ""
    source: str = ""
    is_large: bool = False
    is_dev_train: bool = False
    note: str = ""


# The longest first, and those that others wait for: so none of them is alone at the end.
ENGLISH = {
    "squad1": Work("squad1", is_large=True, note=_SQUAD_NOTE),
    "squad2": Work("squad2", is_large=True, note=_SQUAD_NOTE),
    "snli": Work("snli", TEST, is_large=True),
    "qnli": Work("qnli", is_large=True),
    "qnli-from-squad1": Work("qnli", source="squad1", is_large=True, note=_QNLI_NOTE),
    "swag-like": Work("swag-like", is_large=True, note=_SWAG_NOTE),
    "sst2": Work("sst2", is_large=True),
    "conll2003": Work("conll2003", TEST),
    "qqp": Work("qqp", is_large=True),
    "cola": Work("cola"),
    "stsb": Work("stsb", _GOLD),
    "mrpc": Work("mrpc", _GOLD),
    "codah": Work("codah", TEST, note=_CODAH_NOTE),
    "rte": Work("rte"),
    "rte-from-snli": Work("rte", source="snli", note="started from the best SNLI run's model"),
    "wnli": Work("wnli", note=_WNLI_NOTE),
}
KOREAN = {
    "nsmc": Work("nsmc", TEST, is_large=True, note=_NSMC_NOTE),
    "korsts": Work("korsts", TEST),
    "kornli": Work("kornli", TEST, is_dev_train=True, note=_KORNLI_NOTE),
}
WORKS = ENGLISH | KOREAN


class Search(NamedTuple):
    """Which runs are made.

    Attributes:
        overrides: settings, several values being an axis.
        examples: how many the search sees at most.
        seeds: how many runs the best point has on all examples.
        notes: what is not as it should be.
    """

    overrides: tuple[str, ...]
    examples: int
    seeds: int
    notes: tuple[str, ...] = ()

    def changed(self, overrides: Sequence[str]) -> "Search":
        """Return the same with settings over its own, which is noted; the last that is said of one counts."""
        notes = (*self.notes, f"with {' '.join(overrides)}") if overrides else self.notes
        return self._replace(overrides=(*self.overrides, *overrides), notes=notes)

    def with_seeds(self, number: int) -> "Search":
        """Return the same with another number of seeds at the best setting, which is noted."""
        return self._replace(seeds=number, notes=(*self.notes, f"seeds: {number}"))

    def of(self, work: Work) -> "Search":
        """Return the same for a work: where examples are many, some of it is set."""
        return self._replace(overrides=(*self.overrides, *LARGE)) if work.is_large else self

    def on_some(self) -> tuple[str, ...]:
        """Return the settings with which points are compared: those of its own may want fewer examples still."""
        return *self.overrides, f"task.max_examples={min(self.examples, self.most_examples())}"

    def searches(self, name: str) -> list[tuple[str, ...]]:
        """Return the settings of each part of a work's search: one for each value of the first axis there is."""
        overrides = self.on_some()
        points = points_for(name, overrides)
        for key in dict.fromkeys(text.partition("=")[0] for text in overrides):
            values = dict.fromkeys(point.values.get(_last_word(key)) for point in points)
            if len(values) > 1:
                return [(*overrides, f"{key}={value}") for value in values]
        return []

    def most_examples(self) -> int:
        """Return how many examples any run may see."""
        given = [text.partition("=")[2] for text in self.overrides if text.startswith("task.max_examples=")]
        if not all(map(str.isdecimal, given)):
            raise UserError(f"task.max_examples={given[-1]}: give one number, it is no axis here")
        return int(given[-1] if given else 0) or sys.maxsize  # 0: all of them


LARGE = ("task.layer_decay=1", "task.average=0.25")
# Every checkpoint of `small` is a third of a gigabyte; a run that is asked to end writes one all the same.
FULL = Search(
    (
        "optim.lr=3e-4,1e-4,5e-5,3e-5",
        "train.batch_size=16,32",
        "task.layer_decay=1,0.6",
        "train.epochs=4",
        "train.save_every=5000",
    ),
    examples=10_000,
    seeds=3,
)
QUICK = Search(
    ("optim.lr=3e-4,1e-4", "train.batch_size=16", "train.epochs=1", "task.max_examples=100"),
    examples=50,
    seeds=2,
    notes=("tried out on 100 examples",),
)


def points_for(name: str, overrides: Sequence[str]) -> list[Point]:
    """Return the points that settings ask for, of a work."""
    return points_of(find_task(WORKS[name].task), overrides, is_grid=True)


def _last_word(key: str) -> str:
    """Return what an axis is called in a point."""
    return key.rpartition(".")[2]


def chosen(overrides: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the settings of a point: what the axes, which are named by their last word, have there."""
    keys = dict.fromkeys(text.partition("=")[0] for text in overrides)
    return [f"{key}={values[name]}" for key in keys if (name := _last_word(key)) in values]
