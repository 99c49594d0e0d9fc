"""Results written row by row, to be read by a person's other tools: .jsonl, .csv or .tsv, as the file's ending says.

Rows are streamed. In JSON lines all of a row is there; in a table lists are words with `|` between them. TSV has no
quoting, as our own reader and most others take it: a tab or a line break inside a value becomes a space.

A spreadsheet takes a cell that begins with =, +, - or @ for a formula, which can read other cells and files and send
them elsewhere. Texts that come back from a table must be what they were, so they are written as they are, unless the
file is for a spreadsheet (`csv_safe`): then such a cell gets an apostrophe, and the file the form that Excel writes.
`tasks/tables.py` knows these files by their form and takes the apostrophes off.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.files import atomic_write, check_can_write
from bertworks.tasks.tables import FORMULA

ENDINGS = (".jsonl", ".csv", ".tsv")
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
_MAY_SEPARATE = re.compile(r'[",\r\n;\t]')  # in a header, by which readers tell what separates cells
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|\.\d+)([eE][+-]?\d+)?%?", re.ASCII)


def check_row_file(path: str | os.PathLike[str], *sources: str | os.PathLike[str], csv_safe: bool = False) -> None:
    """Refuse, before any work, a file whose ending says nothing, that cannot be written, or is one of the sources."""
    if Path(path).suffix not in ENDINGS:
        raise UserError(f"cannot tell the form of {path}; let it end in .csv, .tsv or .jsonl")
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

    def write_cells(cells: Iterable[str], *, is_header: bool = False) -> None:
        stream.write(_table_line(cells, ending, is_header=is_header, csv_safe=csv_safe))

    with atomic_write(path) as stream:
        if csv_safe:
            stream.write("\ufeff")
        for count, row in enumerate(rows, 1):
            if ending == ".jsonl":
                stream.write(_line(row, count))
                continue
            if count == 1:
                write_cells(row, is_header=True)
            write_cells(map(_word, row.values()))
        if count == 0 and columns and ending != ".jsonl":
            write_cells(columns, is_header=True)
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


def _table_line(cells: Iterable[str], ending: str, *, is_header: bool, csv_safe: bool) -> str:
    cells = [cell.replace("\0", "\ufffd") for cell in cells]  # a file with a NUL is no text for any reader
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
