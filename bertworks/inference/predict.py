"""Fine-tuned models at work on files and lists of rows: predictions row by row, by one model or several together.

- Several models are one `Ensemble`: the mean of what each says (`tasks/evaluation.py`). Each reads texts with its own
  tokenizer. Where a text is read in windows (tag, answer) the mean is that of single tokens, so there the models must
  have one vocabulary and one length.
- Files are streamed: memory does not grow with them, and rows come out in the order in which they went in, each with
  what it had: first the input's columns, then the prediction. A prediction's columns have the same names whatever the
  input has, so that what reads them needs no change: a column of the input that is called like one of them, such as
  the `label` of a test set, is `input_label`.
- What is written is .jsonl, .csv or .tsv, by the file's ending. In JSON lines all of a row is there; in a table lists
  are words with `|` between them. TSV has no quoting, as our own reader and most others take it: a tab or a line break
  inside a value becomes a space.
- A spreadsheet takes a cell that begins with =, +, - or @ for a formula, which can read other cells and files and send
  them elsewhere. Texts that come back from a table must be what they were, so they are written as they are, unless the
  file is for a spreadsheet (`csv_safe`): then such a cell gets an apostrophe, and the file the form that Excel writes.
  `tasks/tables.py` knows these files by their form and takes the apostrophes off.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.data.workers import prefetch_batches
from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, check_can_write, without_surrogates
from bertworks.inference.heads import Result, results_of
from bertworks.inference.model import EXAMPLES_AT_ONCE, Model, load
from bertworks.processes import ProgressCallback, silent
from bertworks.tasks.evaluation import combine_rows
from bertworks.tasks.heads import Items
from bertworks.tasks.own_files import open_own
from bertworks.tasks.tables import FORMULA, JSON_KINDS, file_kind, rows, word_of
from bertworks.tasks.task import TEST, Columns, Example, Skipped, Task
from bertworks.text.vocabulary import UnknownCount

AnyModel = str | os.PathLike[str] | Model
ENDINGS = (".jsonl", ".csv", ".tsv")
_IN_WINDOWS = ("tag", "answer")
_OF_TEXTS = ("classify", "regress", "multilabel")
_LISTS = {"words": " ", "tags": " "}  # in a table, what divides the members of a list; of others it is |
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
_MAY_SEPARATE = re.compile(r'[",\r\n;\t]')  # in a header, by which readers tell what separates cells
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|\.\d+)([eE][+-]?\d+)?%?", re.ASCII)


def open_models(models: AnyModel | Sequence[AnyModel], *, device: str = "auto", dtype: str | None = None) -> "Ensemble":
    """Open one or more fine-tuned models, as far as they are not open already."""
    listed = [models] if isinstance(models, str | os.PathLike | Model) else list(models)
    if not listed:
        raise UserError("no model is given; give at least one")
    names = [os.fspath(one) if isinstance(one, str | os.PathLike) else f"model {n}" for n, one in enumerate(listed, 1)]
    opened = [load(one, device=device, dtype=dtype) if isinstance(one, str | os.PathLike) else one for one in listed]
    for one, name in zip(opened, names, strict=True):
        if not isinstance(one, Model):
            raise UserError(f"{name} is no model; see `bertworks finetune`")
    return Ensemble(opened, names)


class Ensemble:
    """Models that were fine-tuned for the same task.

    Args:
        models: at least one.
        names: of the models, as they are opened by.

    Attributes:
        models, names: themselves.
        task: what they were fine-tuned for; its threshold for no answer is the mean of theirs.
        names_task: whether the first model's folder says so; else its head does, as far as it can.
    """

    def __init__(self, models: Sequence[Model], names: Sequence[str]) -> None:
        self.models, self.names, tasks = models, names, [model.task for model in models]
        self.task, self.names_task = tasks[0], models[0].names_task
        first, ours = models[0], self.task
        for other, theirs, name in zip(models[1:], tasks[1:], names[1:], strict=True):  # of some there is no mean
            if ours.kind != theirs.kind:
                raise UserError(
                    f"{name} was fine-tuned to {theirs.kind}, and {names[0]} to {ours.kind}; "
                    "their predictions cannot be averaged"
                )
            if ours.labels != theirs.labels:
                labels = [", ".join(task.labels)[:100] for task in (theirs, ours)]
                raise UserError(
                    f"{name} has the labels {labels[0]}, and {names[0]} {labels[1]}; an ensemble has the same ones in "
                    "the same order"
                )
            if first.names_task and other.names_task and ours.kind in _OF_TEXTS and ours.is_pair != theirs.is_pair:
                raise UserError(
                    f"of {names[0]} and {name} one was fine-tuned on pairs of texts, the other on single texts"
                )
            if ours.has_impossible != theirs.has_impossible:
                raise UserError(
                    f"of {names[0]} and {name} one was trained on questions without an answer, the other was not"
                )
            pieces = [getattr(model.tokenizer, "pieces", None) for model in (first, other)]
            if ours.kind in _IN_WINDOWS and (pieces[0] != pieces[1] or first.cut() != other.cut()):
                raise UserError(
                    f"{name} and {names[0]} cut texts into other windows; to {ours.kind} together, models must have "
                    "the same vocabulary and length"
                )
        thresholds = [task.threshold for task in tasks if task.threshold is not None]
        if thresholds:
            self.task = replace(self.task, threshold=sum(thresholds) / len(thresholds))

    def check_pairs(self, has_pairs: bool, where: str) -> None:
        """Refuse single texts for models of pairs, and pairs for models of single texts."""
        if self.names_task and self.task.kind in _OF_TEXTS and has_pairs != self.task.is_pair:
            wanted, given = ("pairs of texts", "single texts") if self.task.is_pair else ("single texts", "pairs")
            hint = "; leave the second text out with --column pair=" if has_pairs else ""
            raise UserError(f"the model was fine-tuned on {wanted}, and {where} has {given}{hint}")

    def unknown(self) -> UnknownCount:
        """Return what counts the tokens that the first model's vocabulary does not know."""
        return UnknownCount(getattr(self.models[0].tokenizer, "pieces", ()))

    def read(self, examples: Sequence[Example], task: Task) -> list[Items]:
        """Return what each model reads of examples."""
        return [model.read(examples, task) for model in self.models]

    def score(
        self, task: Task, items: Sequence[Items], done: Callable[[float], None] = lambda _: None
    ) -> tuple[list[NDArray[np.float32]], float | None]:
        """Return the scores of all models together, and a single one's loss; `items` as of `read`.

        `done` is called with the share that is finished.
        """
        count = len(self.models)
        scored = [
            model.score(task, some, lambda share, number=number: done((number + share) / count))  # type: ignore[misc]
            for number, (model, some) in enumerate(zip(self.models, items, strict=True))
        ]
        return combine_rows(task.kind, [one.rows for one in scored]), scored[0].loss if count == 1 else None


def predict(
    model: AnyModel | Sequence[AnyModel],
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any] | str],
    *,
    columns: Columns | Mapping[str, Any] | None = None,
    keep: bool = True,
    device: str = "auto",
    dtype: str = "auto",
) -> list[Result]:
    """Predict for every row of a file, or of a list, with a fine-tuned model, or several that predict together.

    Args:
        model: a run folder, a model folder, or what `bw.load` gives; or a list of such.
        rows: a .csv, .tsv, .jsonl, .json or .parquet file; or a list of dicts as its rows would be, or of texts; or a
            pandas DataFrame.
        columns: which column is what, such as {"text": "review"}; without it those of training, or a guess.
        keep: whether a result has the row's own columns, too.
        device: auto, cpu, cuda or mps.
        dtype: float32, bfloat16, float16 or int8; auto is bfloat16 where this processor or GPU is fast at it.

    Returns:
        for each row a dict; of a classifier with label, score and scores, see docs/classification.md.

    Example:
        >>> bw.predict("reviews-model", [{"id": "7", "text": "The film was lovely"}])
        [{'id': '7', 'text': 'The film was lovely', 'label': 'good', 'score': 0.9..., 'scores': {...}}]
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
    progress: ProgressCallback = silent,
    *,
    keep: bool = True,
    csv_safe: bool = False,
    compute: "Compute | None" = None,
) -> tuple[int, list[str]]:
    """Predict for every row of a file; returns their number, and notes on them.

    The ending of `out` names the form: .csv, .tsv, or .jsonl, which has the scores of all labels. `csv_safe` is for
    tables that a spreadsheet is to open: text that begins like a formula gets an apostrophe. Without `compute` it is
    `compute_here`; `inference/ray.py` has another.
    """
    check_row_file(out, source, csv_safe=csv_safe)
    notes: list[str] = []
    is_table = Path(out).suffix != ".jsonl"
    found = predicted_rows(ensemble, source, columns, notes, progress, keep=keep, is_table=is_table, compute=compute)
    count = write_rows(out, found, csv_safe=csv_safe)
    return count, notes


def predicted_rows(
    ensemble: Ensemble,
    source: str | os.PathLike[str],
    columns: Columns | Mapping[str, Any] | None,
    notes: list[str],
    progress: ProgressCallback = silent,
    *,
    keep: bool,
    is_table: bool = False,
    compute: "Compute | None" = None,
) -> Iterator[Result]:
    """Yield a result for every row of a file; `notes` holds the notes on them when all have come.

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

    def in_chunks() -> Iterator[list[Example]]:
        source = iter(dataset.examples(TEST, skipped))
        while some := list(islice(source, EXAMPLES_AT_ONCE)):
            yield some

    def results() -> Iterator[Result]:
        count = 0

        def done(more: float) -> None:
            progress("predicting", count + more, total, counted(int(count + more), "row"))

        for some, found, ids in (compute or compute_here)(ensemble, task, in_chunks(), done):
            count += len(some)
            unknown.add(ids)
            for example, result in zip(some, found, strict=True):
                row = {"id": example.id, **result}
                if is_table:
                    row.pop("scores", None)
                    row |= {name: sign.join(row[name]) for name, sign in _LISTS.items() if name in row}
                yield row

    if not keep or taken == Columns():  # whose file has a form of its own
        yield from results()
    else:
        yield from _with_inputs(results(), path, taken, notes, is_table=is_table)
    chosen = {model.dtype for model in ensemble.models if not model.is_exported} - {"float32"}
    dtypes = f"computed in {' and '.join(sorted(chosen))}; --dtype float32 is exact" if chosen else ""
    notes.extend(filter(None, (str(skipped) if skipped else "", unknown.warning(), dtypes)))


# Computes chunks of examples of a task, in their order. Gives each with its results and the ids that the first model
# has read of it; calls a function with how many examples are computed beyond the chunks that were given.
Chunk = list[Example]
Computed = tuple[Chunk, list[Result], NDArray[Any]]
Compute = Callable[[Ensemble, Task, Iterator[Chunk], Callable[[float], None]], Iterator[Computed]]


def compute_here(
    ensemble: Ensemble, task: Task, chunks: Iterator[Chunk], done: Callable[[float], None] = lambda _: None
) -> Iterator[Computed]:
    """Compute chunks of examples in this process; see `Compute`."""
    read = ((some, ensemble.read(some, task)) for some in chunks)
    for some, items in prefetch_batches(read, 1):  # rows are read and tokenized while others are computed
        size = len(some)
        scores, _ = ensemble.score(task, items, lambda share, size=size: done(share * size))  # type: ignore[misc]
        yield some, results_of(task, some, items[0], scores), items[0].ids


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


# Results as files that other tools read.


def check_row_file(path: str | os.PathLike[str], *sources: str | os.PathLike[str], csv_safe: bool = False) -> None:
    """Refuse, before any work, a file whose ending says nothing, that cannot be written, or is one of the sources."""
    if Path(path).suffix not in ENDINGS:
        raise UserError(f"cannot tell the format of {path}; use a name that ends in .csv, .tsv or .jsonl")
    if csv_safe and Path(path).suffix == ".jsonl":
        raise UserError(f"--csv-safe is for .csv and .tsv, which spreadsheets open; {path} needs none")
    check_can_write(path, *sources)


def write_rows(
    path: str | os.PathLike[str],
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    csv_safe: bool = False,
) -> int:
    """Write rows, all with the same columns, and return how many there are; a table without rows names `columns`.

    `csv_safe` is for tables that a spreadsheet is to open: no cell is a formula there.
    """
    ending = Path(path).suffix
    assert ending in ENDINGS, "checked before"
    count = 0

    with atomic_write(path) as stream:
        if csv_safe:
            stream.write("\ufeff")
        for count, row in enumerate(rows, 1):
            if ending == ".jsonl":
                try:
                    stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                except ValueError:
                    message = f"row {count:,}: the model's scores are not finite numbers; its weights may be broken"
                    raise UserError(message) from None
                continue
            if count == 1:
                stream.write(_table_line(row, ending, is_header=True, csv_safe=csv_safe))
            stream.write(_table_line(row.values(), ending, is_header=False, csv_safe=csv_safe))
        if count == 0 and columns and ending != ".jsonl":
            stream.write(_table_line(columns, ending, is_header=True, csv_safe=csv_safe))
    return count


def _table_line(values: Iterable[Any], ending: str, *, is_header: bool, csv_safe: bool) -> str:
    words = ["|".join(map(str, one)) if isinstance(one, list | tuple) else one for one in values]
    # A file with a NUL is no text for any reader.
    cells = ["" if word is None else str(word).replace("\0", "\ufffd") for word in words]
    if ending == ".tsv":
        cells = [re.sub(r"\r\n|[\t\r\n]", " ", cell) for cell in cells]
    if csv_safe:
        cells = [f"'{cell}" if FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell for cell in cells]
    # A safe table has quotes everywhere: where a semicolon separates cells, a formula could follow one in a text.
    needs_quotes = _MAY_SEPARATE if is_header else _NEEDS_QUOTES
    if ending == ".tsv":
        is_quoted = [csv_safe and is_header] * len(cells)
    else:
        is_quoted = [csv_safe or cells == [""] or needs_quotes.search(cell) is not None for cell in cells]
    parts = [
        '"' + cell.replace('"', '""') + '"' if quoted else cell for cell, quoted in zip(cells, is_quoted, strict=True)
    ]
    return ("\t" if ending == ".tsv" else ",").join(parts) + ("\r\n" if csv_safe else "\n")
