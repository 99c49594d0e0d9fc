"""Results written row by row, to be read by a person's other tools: .jsonl, .csv or .tsv, as the file's ending says.

Rows are streamed. In JSON lines all of a row is there; in a table lists are words with `|` between them. TSV has no
quoting, as our own reader and most others take it: a tab or a line break inside a value becomes a space.
"""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bertworks.errors import UserError
from bertworks.files import atomic_write, check_can_write

ENDINGS = (".jsonl", ".csv", ".tsv")


def check_row_file(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a file whose ending says nothing, that cannot be written, or is one of the sources."""
    if Path(path).suffix not in ENDINGS:
        raise UserError(f"cannot tell the form of {path}; let it end in .csv, .tsv or .jsonl")
    check_can_write(path, *sources)


def write_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> int:
    """Write rows, all with the same columns, and return how many there are; a table without rows names `columns`."""
    ending = Path(path).suffix
    assert ending in ENDINGS, "checked before"
    count = 0
    with atomic_write(path) as stream:
        for count, row in enumerate(rows, 1):
            if ending == ".jsonl":
                stream.write(_line(row, count))
                continue
            if count == 1:
                _write_cells(stream, row, ending)
            _write_cells(stream, map(_word, row.values()), ending)
        if count == 0 and columns and ending != ".jsonl":
            _write_cells(stream, columns, ending)
    return count


def _line(row: Mapping[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        raise UserError(
            f"row {number:,}: the model's scores are not finite numbers; its weights may be broken"
        ) from None


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def _write_cells(stream: IO[str], cells: Iterable[str], ending: str) -> None:
    if ending == ".csv":
        csv.writer(stream, lineterminator="\n").writerow(cells)
    else:
        stream.write("\t".join(" ".join(cell.splitlines()).replace("\t", " ") for cell in cells) + "\n")
