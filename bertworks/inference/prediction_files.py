"""Fine-tuned models at work on a file: predictions row by row.

Files are streamed: memory does not grow with them, and rows come out in the order in which they went in, each with
what it had: first the input's columns, then the prediction. A prediction's columns have the same names whatever the
input has, so that what reads them needs no change: a column of the input that is called like one of them, such as the
`label` of a test set, is `input_label`.
"""

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertworks.errors import UserError, counted
from bertworks.inference.ensemble import AnyTaskModel, Ensemble, open_models
from bertworks.inference.predictions import Result
from bertworks.inference.row_files import check_row_file, write_rows
from bertworks.json_files import without_surrogates
from bertworks.progress import Progress, silent
from bertworks.tasks.examples import Skipped
from bertworks.tasks.lines import file_kind
from bertworks.tasks.own import open_own
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.tables import JSON_KINDS, rows, word_of
from bertworks.tasks.task import TEST
from bertworks.text.unknown import UnknownCount

_LISTS = {"words": " ", "tags": " "}  # in a table, what divides the members of a list; of others it is |


def predict(
    model: AnyTaskModel | Sequence[AnyTaskModel],
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any] | str],
    *,
    columns: Columns | Mapping[str, Any] | None = None,
    keep: bool = True,
    device: str = "auto",
    dtype: str = "float32",
) -> list[Result]:
    """Predict for every row of a file, or of a list, with a fine-tuned model, or several that predict together.

    Args:
        model: a run folder, a model folder, or what `bw.load` gives; or a list of such.
        rows: a .csv, .tsv, .jsonl, .json or .parquet file; or a list of dicts as its rows would be, or of texts; or a
            pandas DataFrame.
        columns: which column is what, such as {"text": "review"}; without it those of training, or a guess.
        keep: whether a result has the row's own columns, too.
        device: auto, cpu, cuda or mps.
        dtype: float32, bfloat16 or float16.

    Returns:
        for each row a dict; of a classifier with label, score and scores, see docs/classification.md.
    """
    ensemble = open_models(model, device=device, dtype=dtype)
    if isinstance(rows, str | os.PathLike):
        return list(predicted_rows(ensemble, rows, columns, [], keep=keep))
    listed: Any = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise UserError(f"rows: {type(rows).__name__} where a file, or a list of dicts or of texts, is expected")
    records = [{"text": row} if isinstance(row, str) else row for row in listed]
    if not records:
        return []
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_text("".join(f"{json.dumps(_plain(record))}\n" for record in records), encoding="utf-8")
        try:
            return list(predicted_rows(ensemble, path, columns, [], keep=keep))
        except UserError as error:
            raise UserError(str(error).replace(f"{folder}{os.sep}", "")) from error


def write_predictions(
    ensemble: Ensemble,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    columns: Columns | None = None,
    progress: Progress = silent,
    *,
    keep: bool = True,
    csv_safe: bool = False,
) -> tuple[int, list[str]]:
    """Predict for every row of a file; returns how many there are, and what must be said of them.

    The ending of `out` names the form: .csv, .tsv, or .jsonl, which has the scores of all labels. `csv_safe` is for
    tables that a spreadsheet is to open: text that begins like a formula gets an apostrophe.
    """
    check_row_file(out, source, csv_safe=csv_safe)
    notes: list[str] = []
    is_table = Path(out).suffix != ".jsonl"
    found = predicted_rows(ensemble, source, columns, notes, progress, keep=keep, is_table=is_table)
    count = write_rows(out, found, csv_safe=csv_safe)
    return count, notes


def predicted_rows(
    ensemble: Ensemble,
    source: str | os.PathLike[str],
    columns: Columns | Mapping[str, Any] | None,
    notes: list[str],
    progress: Progress = silent,
    *,
    keep: bool,
    is_table: bool = False,
) -> Iterator[Result]:
    """Yield a result for every row of a file; what must be said of them is in `notes` when all have come.

    For a table all results have the same columns, a cell each, and the scores of all labels are left out.
    """
    path, task = Path(source), ensemble.task
    dataset = open_own(task.kind, {TEST: source}, columns, task.labels, remembered=task.columns, to_predict=True)
    ensemble.check_pairs(dataset.task.is_pair, str(source))
    notes.extend(dataset.notes)
    skipped, unknown, taken = Skipped(), ensemble.unknown(), dataset.task.columns
    total: float | None = None
    if progress is not silent and path.is_file():  # a pipe could not be read twice
        progress("reading", 0, None)
        total = sum(1 for _ in dataset.examples(TEST, Skipped()))  # reading costs a hundredth of predicting

    def done(count: float) -> None:
        progress("predicting", count, total, counted(int(count), "row"))

    results = _named(ensemble, dataset.examples(TEST, skipped), unknown, done)
    if is_table:
        results = map(_brief, results)
    if not keep or taken == Columns():  # whose file has a form of its own
        yield from results
    else:
        yield from _with_inputs(results, path, taken, notes, is_table=is_table)
    notes.extend(filter(None, (str(skipped) if skipped else "", unknown.said())))


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


def _with_inputs(
    results: Iterator[Result], path: Path, taken: Columns, notes: list[str], *, is_table: bool
) -> Iterator[Result]:
    """Put the columns of its row, which is read once more, before each result."""
    first = rows(path) if file_kind(path) in JSON_KINDS else islice(rows(path), 1)  # whose records may differ
    own = dict.fromkeys(name for row in first for name in row.own_names)
    echoed = {role for role in ("id", "words") if getattr(taken, role) == role}  # which predictions repeat
    names: dict[str, str] = {}
    for row, result in zip(rows(path), results, strict=True):
        if not names:
            for name in own:
                new = name
                while name not in echoed and (new in result or (new != name and new in own)):
                    new = f"input_{new}"
                names[name] = new
            if renamed := [f"{name} is {new}" for name, new in names.items() if new != name]:
                notes.append(f"{path.name} has columns with names of predictions: there {', '.join(renamed)}")
        if is_table:
            kept = {new: _cell(row.values.get(name)) for name, new in names.items()}
        else:
            kept = {names[name]: _plain(row.values[name]) for name in row.own_names}
        yield {without_surrogates(name): value for name, value in kept.items()} | result


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: dates and bytes of Parquet as text, NaN as null."""
    if isinstance(value, dict):
        return {without_surrogates(str(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return None if isinstance(value, float) else without_surrogates(str(value))


def _cell(value: Any) -> Any:
    """Return a value as a cell holds it; an object, or a list of more than words, as JSON."""
    value = _plain(value)
    if isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(part, str) for part in value)):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str | list) else word_of(value)
