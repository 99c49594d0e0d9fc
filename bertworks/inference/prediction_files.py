"""Fine-tuned models at work on a file: predictions row by row.

Files are streamed: memory does not grow with them, and rows come out in the order in which they went in.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertworks.errors import counted
from bertworks.inference.ensemble import Ensemble
from bertworks.inference.predictions import Result
from bertworks.inference.row_files import check_row_file, write_rows
from bertworks.progress import Progress, silent
from bertworks.tasks.examples import Skipped
from bertworks.tasks.own import open_own
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.task import TEST
from bertworks.text.unknown import UnknownCount

_LISTS = {"words": " ", "tags": " "}  # in a table, what divides the members of a list; of others it is |


def write_predictions(
    ensemble: Ensemble,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    columns: Columns | None = None,
    progress: Progress = silent,
) -> tuple[int, tuple[str, ...]]:
    """Predict for every row of a file; returns how many there are, and what must be said of them.

    The ending of `out` names the form: .csv, .tsv, or .jsonl, which has the scores of all labels.
    """
    check_row_file(out, source)
    dataset = open_own(ensemble.task.kind, {TEST: source}, columns, ensemble.task.labels, to_predict=True)
    ensemble.check_pairs(dataset.task.is_pair, str(source))
    skipped, unknown = Skipped(), ensemble.unknown()
    total: float | None = None
    if progress is not silent and Path(source).is_file():  # a pipe could not be read twice
        progress("reading", 0, None)
        total = sum(1 for _ in dataset.examples(TEST, Skipped()))  # reading costs a hundredth of predicting

    def done(count: float) -> None:
        progress("predicting", count, total, counted(int(count), "row"))

    named = _named(ensemble, dataset.examples(TEST, skipped), unknown, done)
    count = write_rows(out, named if Path(out).suffix == ".jsonl" else map(_brief, named))
    return count, tuple(filter(None, (*dataset.notes, str(skipped) if skipped else "", unknown.said())))


def _named(
    ensemble: Ensemble, examples: Iterable[Any], unknown: UnknownCount, done: Callable[[float], None]
) -> Iterator[Result]:
    """Put the id of its example before each result, and count what the vocabulary does not know."""
    ids: deque[str] = deque()

    def watched() -> Iterator[Any]:
        for example in examples:
            ids.append(example.id)
            yield example

    for result in ensemble.results(watched(), lambda items: unknown.add(items.ids), done):
        yield {"id": ids.popleft(), **result}


def _brief(result: Result) -> Result:
    row = {name: value for name, value in result.items() if name != "scores"}
    return row | {name: separator.join(row[name]) for name, separator in _LISTS.items() if name in row}
