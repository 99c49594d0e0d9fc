"""Which of several endings continues a text: SWAG, sets in its form, and CODAH.

BERT reads the context as its first segment, and the start of the next sentence with one ending as its second (4.4), so
an ending here is what stands in the second segment.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bertworks.errors import UserError
from bertworks.tasks.tables import Row, rows
from bertworks.tasks.task import ChoiceExample, Defaults, Published, Skipped, Source, Task

_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH_COLUMNS = ("category", "prompt", *_SWAG_ENDINGS, "label")
_choice_task = partial(
    Task, kind="choose", is_pair=True, metrics=("accuracy",),
    defaults=Defaults(epochs=3, batch_size=16, learning_rate=2e-5),
)  # fmt: skip


def read_swag(paths: Sequence[Path], _: Skipped, *, is_labelled: bool = True) -> Iterator[ChoiceExample]:
    """Yield the examples of files in SWAG's CSV."""
    for path in paths:
        for number, row in enumerate(rows(path)):
            start = row.text("sent2")
            endings = tuple(f"{start} {row.text(ending)}".strip() for ending in _SWAG_ENDINGS)
            label = choice_of(row.word("label"), endings, row) if is_labelled else None
            yield ChoiceExample(str(number), row.text("sent1"), endings, label)


def read_codah(paths: Sequence[Path], _: Skipped) -> Iterator[ChoiceExample]:
    """Yield the examples of CODAH's files: no column names, a category first, the right ending's number last."""
    for path in paths:
        for number, row in enumerate(rows(path, _CODAH_COLUMNS)):
            endings = tuple(row.text(ending) for ending in _SWAG_ENDINGS)
            yield ChoiceExample(str(number), row.text("prompt"), endings, choice_of(row.word("label"), endings, row))


def choice_of(word: str, endings: Sequence[str], row: Row) -> int:
    """Return the number of the right ending, from 0, which is written as a number from 0 or as a letter from A."""
    number = "abcdefghijklmnopqrstuvwxyz".find(word.lower()) if len(word) == 1 else -1
    if word.isascii() and word.isdigit():
        number = int(word)
    if not 0 <= number < len(endings):
        last = len(endings) - 1
        raise UserError(
            f"{row.where}: {word[:60]!r} is not the number of an ending; allowed: 0 to {last}, or A to {chr(65 + last)}"
        )
    return number


SWAG = _choice_task(
    name="swag", title="SWAG", summary="which of four endings continues a text",
    splits={
        "train": (Source(("train.csv",), read_swag),),
        "dev": (Source(("val.csv",), read_swag),),
        "test": (Source(("test.csv",), partial(read_swag, is_labelled=False)),),
    },
    homes=("swag", "SWAG", "swag/data", "data", ""), published=Published("Table 4, dev", "81.6", "86.6"),
)  # fmt: skip

SWAG_LIKE = _choice_task(
    name="swag-like", title="SWAG-like choice from novels",
    summary="which of four sentences comes next; derived, not SWAG",
    splits={
        "train": (Source(("swag_like_train.csv",), read_swag),),
        "dev": (Source(("swag_like_val.csv",), read_swag),),
    },
    homes=("derived", "swag-like", ""),
)  # fmt: skip

_CODAH = tuple(  # the five folds of its cross-validation
    _choice_task(
        name=f"codah-{fold}" if fold else "codah", title=f"CODAH, fold {fold}",
        summary="which of four endings makes sense" if fold == 0 else f"the same, fold {fold} of 0 to 4",
        splits={
            split: (Source((f"cv_split/fold_{fold}/{split}.tsv",), read_codah),) for split in ("train", "dev", "test")
        },
        homes=("codah", "codah/data", "data", ""),
    )
    for fold in range(5)
)  # fmt: skip

SWAG_TASKS = (SWAG, SWAG_LIKE, *_CODAH)
