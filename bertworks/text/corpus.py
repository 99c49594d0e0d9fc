"""Every corpus in one form: a paragraph per line, and an empty line after each document.

- **Sources.** A corpus is files, folders, patterns (`*`, `?`, `**`) or `-` for standard input. A folder gives the files
  whose ending is known, at any depth, without hidden ones and without links that lead out of it; linked folders are not
  entered, so a cycle of links ends. The vocabulary of a model or of prepared data in it is not read. A file that is
  named, or that a pattern matches as the shell would, is read whatever its ending. The list is sorted by path, so that
  neither the shell's locale nor the order of a directory changes a vocabulary made from it.
- **Kinds.** Plain text, JSON lines, a JSON list, CSV, tab-separated text, Parquet and Wikipedia dumps, packed or not.
  What a file holds is found from its name and its first bytes: JSON, Parquet and a dump are recognised under any name,
  and what is plainly no text (a PDF, a picture, an archive, a web page) is refused. The files of tasks follow the same
  rule.
- **Records.** Each JSON record or row is one document, the text of one field; it may hold newlines, and its blank lines
  end nothing. A record that cannot be read is an error with its position, since leaving it out quietly would hide that
  a corpus is not what one thinks. Tables are taken apart here for corpora and for the files of tasks alike.
- **Cost.** Memory does not grow with the corpus. Plain text is handled a megabyte at a time and costs Python nothing
  per line but the line itself.
"""

import csv
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import NoReturn

from bertworks.errors import CorruptFile, UserError, counted, shown_names
from bertworks.files import name_kind, parse_json, without_surrogates
from bertworks.text.lines import (
    BYTE_ORDER_MARK,
    COMPRESSIONS,
    MAX_RECORD_BYTES,
    PIECE_BYTES,
    STANDARD_INPUT,
    PackedFile,
    Utf8Decoder,
    check_growth,
    check_installed,
    checked_text,
    ending_of_packing,
    line_blocks,
    numbered_lines,
    open_packed,
    paragraphs,
    text_lines,
)
from bertworks.text.vocabulary import CONFIG_FILE, VOCABULARY_FILE
from bertworks.text.wikipedia import articles

_log = logging.getLogger(__name__)
KINDS = (".txt", ".jsonl", ".json", ".parquet", ".xml")
TABLES = (".csv", ".tsv")
NAMES_OF_KINDS = {
    ".txt": "plain text", ".jsonl": "JSON lines", ".json": "JSON", ".parquet": "Parquet", ".xml": "a Wikipedia dump",
    ".csv": "CSV", ".tsv": "tab-separated text",
}  # fmt: skip
_SAME_KIND = {".ndjson": ".jsonl", ".jsonlines": ".jsonl", ".tab": ".tsv"}
_OTHER_PACKINGS = frozenset(
    (".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".7z", ".rar", ".lz4", ".lzma", ".lz", ".z", ".br")
)
# What a folder may hold besides: if one of its files is not read, the user may wonder why.
_MAYBE_TEXT = frozenset(
    (*TABLES, ".json", ".md", ".rst", ".tex", ".html", ".htm", ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".hwp",
     ".hwpx", ".rtf", ".odt", ".epub", ".arrow", ".zip", ".tar", ".tgz", ".7z")
)  # fmt: skip
_MODULES = {".zst": "zstandard", ".parquet": "pyarrow"}
_NOT_TEXT = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a zip archive, as .docx, .xlsx, .hwpx, .epub and .npz are"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office or HWP document"),
    (b"{\\rtf", "an RTF document"),
    (b"%!PS", "PostScript"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"ARROW1", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF87a", "a picture"),
    (b"GIF89a", "a picture"),
    (b"\x7fELF", "a program"),
    *((bytes((0x80, version)), "a Python pickle") for version in (2, 3, 4, 5)),
)
_TAR_OFFSET, _TAR_SIGNATURE = 257, b"ustar"
_NOT_READ = (
    (b"<!doctype html", "an HTML page", "take its text out first"),
    (b"<html", "an HTML page", "take its text out first"),
    (b"<doc id=", "WikiExtractor's text with tags", "run it with --json, or name the Wikipedia dump itself"),
    (b"<?xml", "XML, but not a Wikipedia dump", "take its text out first"),
)
_TAG_BYTES = 4096
_PARQUET_TEXT = re.compile(r"(dictionary<values=)?(large_)?(string|binary)(_view)?(, .*)?")
_JSON_STRING = rb'"(?:[^"\\]|\\.)*"'
_JSON_STRING_LINE = re.compile(rb"\s*" + _JSON_STRING + rb"\s*")
_JSON_OBJECT_START = re.compile(rb"\{\s*(?:" + _JSON_STRING + rb"\s*:|\})")
_JSON_LIST_START = re.compile(rb"\[\s*(?:\{\s*" + _JSON_STRING + rb"\s*:|" + _JSON_STRING + rb"\s*,|\]\s*$)")


def form_of_name(path: Path) -> tuple[str, str]:
    """Return what a file's name says: its kind (".txt"), which may be any ending or none, and its compression."""
    compression = ending_of_packing(path.name)
    kind = os.path.splitext(path.name.lower().removesuffix(compression))[1]
    return _SAME_KIND.get(kind, kind), compression


def kind_of(file: PackedFile) -> str:
    """Return what an open file holds, by its first bytes and its name: one of KINDS and TABLES.

    Text of an unknown ending is plain text. What is plainly not text raises UserError.
    """
    head, (named, _) = file.head(), form_of_name(file.path)
    if head.startswith(b"PAR1") or (named == ".parquet" and not file.compression):
        if file.compression or file.path == STANDARD_INPUT:
            raise UserError(f"{file.path} is Parquet, which is read from a file of its own; save or unpack it first")
        check_installed(file.path, _MODULES[".parquet"])
        return ".parquet"
    what = next((what for signature, what in _NOT_TEXT if head.startswith(signature)), "")
    if what or head[_TAR_OFFSET:].startswith(_TAR_SIGNATURE):
        raise UserError(f"{file.path} is {what or 'a tar archive'}, not text; take the text out of it first")
    start = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if start.startswith(b"<"):
        tags = start[:_TAG_BYTES].lower()
        if b"<mediawiki" in tags:
            return ".xml"
        for signature, what, advice in _NOT_READ if named != ".xml" else ():
            if tags.startswith(signature):
                raise UserError(f"{file.path} is {what}; {advice}")
    return _json_kind(start, named) or (named if named in (*KINDS, *TABLES) else ".txt")


def _json_kind(start: bytes, named: str) -> str:
    """Return ".jsonl" for a record or a string on each line, ".json" for other JSON, "" for what is plainly neither.

    One value on one line is both; the name decides.
    """
    is_named = named in (".jsonl", ".json")
    if start.startswith(b"["):
        return ".json" if named == ".json" or _JSON_LIST_START.match(start) else ""
    if not start.startswith(b'"') and not _JSON_OBJECT_START.match(start):
        return ""
    lines = [line for line in start.replace(b"\r", b"\n").split(b"\n") if line and not line.isspace()]
    if start.startswith(b'"'):
        # Text in quotes and tables with quotes have a line like that; a file of such lines alone is JSON.
        whole = lines[:-1] if len(start) >= PIECE_BYTES else lines
        are_strings = len(whole) > 1 and all(_JSON_STRING_LINE.fullmatch(line) for line in whole)
        return ".jsonl" if are_strings and named not in TABLES and not is_named else ""
    if lines[0].strip() == b"{":
        return ".json"  # an object over several lines
    try:
        is_record = isinstance(parse_json(lines[0].decode(errors="replace"), "the first line"), dict)
    except CorruptFile:
        is_record = len(lines) == 1 and len(start) >= PIECE_BYTES  # it may go on
    if len(lines) == 1 and is_record:
        return ".json" if named == ".json" else ".jsonl"
    if not is_record:
        return named if is_named else ""
    # Prose may begin with an example of JSON.
    are_records = sum(line.lstrip().startswith(b"{") for line in lines) > len(lines) // 2
    return ".jsonl" if is_named or are_records else ""


def find_files(sources: Sequence[str | os.PathLike[str]], without: Sequence[str | os.PathLike[str]] = ()) -> list[Path]:
    """Return the files that the sources name, absolute, sorted and each once; standard input comes last.

    Those of `without` are left out unless they are named themselves.
    """
    if not sources:
        raise UserError("no corpus was given; name files, folders, patterns, or - for standard input")
    found: list[Path] = []
    left_out = {os.path.realpath(path) for path in without}
    names = [os.fspath(source) for source in sources]
    for source in names:
        path = Path(source)
        try:
            if source == "-":
                continue
            if path.is_dir() or (not path.exists() and any(character in source for character in "*?[")):
                files = _files_of_folder(path) if path.is_dir() else _files_of_pattern(source)
                found += [path for path in files if os.path.realpath(path) not in left_out]
                continue
            if not path.exists():
                raise UserError(f"{path} does not exist")
            if not path.is_file():
                raise UserError(f"{path} is not a regular file; pipe it in and use - for standard input")
            # Absolute but not resolved: a link's name carries the ending that says how the file is read.
            found.append(Path(os.path.abspath(path)))
        except OSError as error:
            raise UserError(f"cannot read {source}: {error.strerror or error}") from error
    once: dict[str, Path] = {}
    again = [path for path in sorted(found) if once.setdefault(os.path.realpath(path), path) is not path]
    if again:
        more = f" and {len(again) - 1:,} more are" if len(again) > 1 else " is"
        _log.warning("%s%s named more than once, and read once; a copy would be read again", again[0], more)
    for path in once.values():  # refuse now what would otherwise stop the work after hours of reading
        kind, compression = form_of_name(path)
        if kind in _OTHER_PACKINGS or (kind == ".parquet" and compression):
            raise UserError(f"{path} is packed in a form that is not read; unpack it first and name what was inside")
        if not os.access(path, os.R_OK):
            raise UserError(f"cannot read {path}: permission denied")
        if module := _MODULES.get(compression or kind):
            check_installed(path, module)
    return [*once.values(), *([STANDARD_INPUT] if "-" in names else [])]


def _files_of_folder(folder: Path) -> list[Path]:
    def fail(error: OSError) -> NoReturn:
        raise UserError(f"cannot read {error.filename}: {error.strerror or error}") from error

    root, files, left_out = Path(os.path.realpath(folder)), [], Counter[str]()
    for parent, folders, names in os.walk(os.path.abspath(folder), onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            kind, compression = form_of_name(path)
            if CONFIG_FILE in names and (path.name == VOCABULARY_FILE or kind == ".json"):
                continue  # of a model
            is_corpus = kind in KINDS and not (kind == ".parquet" and compression)
            if is_corpus and (kind != ".json" or _is_json_records(path)):
                if path.is_file() and Path(os.path.realpath(path)).is_relative_to(root):
                    files.append(path)
            elif kind in _MAYBE_TEXT:
                left_out[kind + compression] += 1
    not_read = ", ".join(f"{count:,} {ending}" for ending, count in left_out.most_common())
    if not files:
        more = f"; there are {not_read}, to be named one by one or by a pattern" if not_read else ""
        raise UserError(
            f"{folder} holds no corpus files ({', '.join(KINDS)}, also with {', '.join(COMPRESSIONS)}){more}; "
            "hidden files and links that lead out of a folder are not read"
        )
    if not_read:
        _log.warning("%s: not read: %s; name them, or a pattern, if they are text", folder, not_read)
    return files


def _is_json_records(path: Path) -> bool:
    """Tell whether a JSON file is lines or a list, and not a single object as settings are."""
    if not path.is_file():
        return False
    with open_packed(path) as file:
        start = file.head().removeprefix(BYTE_ORDER_MARK).lstrip()
    return start.startswith(b"[") or _json_kind(start, ".json") == ".jsonl"


def _files_of_pattern(pattern: str) -> list[Path]:
    parts = Path(pattern).parts
    fixed = tuple(takewhile(lambda part: not any(character in part for character in "*?["), parts))
    base = Path(os.path.abspath(Path(*fixed)))
    moving = [*parts[len(fixed) :], "*"] if parts[-1] == "**" else list(parts[len(fixed) :])
    wants_hidden = any(part.startswith(".") for part in moving)
    try:
        # Path.glob, unlike glob.glob, does not let ** follow links, which may be a cycle.
        matches = [path for path in base.glob("/".join(moving)) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{pattern} is not a usable pattern: {error}") from error
    files = [
        path for path in matches if wants_hidden or not any(p.startswith(".") for p in path.relative_to(base).parts)
    ]
    if not files:
        raise UserError(f"{pattern} matches no files")
    return files


# Rows of books can be megabytes each, and a dictionary page can repeat one of them for nothing.
_ROWS_AT_ONCE = 128
_WHITE_SPACE = re.compile(r"[\s\ufeff]*")
_DELIMITERS = (",", ";", "\t")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel's own, for which Excel asks
_LINE_BREAKS = re.compile(r"\s*[\r\n]+\s*")
_MAX_HEADER_LINES = 100


def json_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield each JSON line's text as a list of paragraphs."""
    for number, line in numbered_lines(file.pieces(), file.path, decoder.decode):
        if line.strip(" \t\n\r\v\f"):
            yield paragraphs(_record_text(line, str(file.path), number, text_field, decoder))


def _record_text(written: str, where: str, line: int, text_field: str, decoder: Utf8Decoder) -> str:
    value = parse_json(written, where, line=line)
    if isinstance(value, dict) and text_field not in value:
        raise _missing_field(f"{where}:{line}", text_field, list(value))
    text = value[text_field] if isinstance(value, dict) else value
    if not isinstance(text, str):
        what = (
            f"field {text_field!r} is {name_kind(text)}, not"
            if isinstance(value, dict)
            else f"{name_kind(value)} where"
        )
        more = "" if isinstance(value, dict) else " or a record {...} is expected"
        raise UserError(f"{where}:{line}: {what} a string{more}")
    if "\ufffd" in text and "\\u" in written and without_surrogates(written) != written:
        decoder.num_replaced += 1
    return text


def json_value_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield the texts of the records, or strings, of a JSON list, or of records one after the other.

    They may go over several lines. Memory is that of the largest record.
    """
    find_end = json.JSONDecoder().raw_decode
    text, line, wanted, number, in_list, is_between, is_closed = "", 1, 0, 0, False, False, False
    next_line = 1
    for block in chain(line_blocks(checked_text(file.pieces(), file.path), PIECE_BYTES), [b""]):
        text += decoder.decode(block, file.path, next_line)
        next_line += block.count(b"\n")
        if block and len(text) < wanted:
            continue  # a record that is not whole; parsing it again for each block would take the square of its size
        place, problem = 0, ""
        while not problem:
            start = _WHITE_SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
            line += text.count("\n", place, start)
            place, sign = start, text[start : start + 1]
            if not sign:
                break
            if number == 0 and not in_list and sign == "[":
                in_list, place = True, start + 1
            elif is_closed or (in_list and is_between and sign not in ",]"):
                expected = "after the end of the list" if is_closed else "where ',' or ']' is expected"
                raise UserError(f"{file.path}:{line}: not JSON: {sign!r} {expected}")
            elif in_list and sign in ",]":
                is_between, is_closed, place = False, sign == "]", start + 1
            else:
                try:
                    _, place = find_end(text, start)
                except (ValueError, RecursionError) as error:
                    problem = f"{file.path}:{line}: not JSON: {getattr(error, 'msg', error)}"
                    break
                yield paragraphs(_record_text(text[start:place], str(file.path), line, text_field, decoder))
                line += text.count("\n", start, place)
                number, is_between = number + 1, True
        text, wanted = text[place:], 2 * (len(text) - place) if problem else 0
        if problem and (not block or len(text) > MAX_RECORD_BYTES):
            raise UserError(problem)
    if in_list and not is_closed:
        raise CorruptFile(f"{file.path} ends before its JSON list does: it is cut off")


def _missing_field(where: str, text_field: str, fields: Sequence[str]) -> UserError:
    advice = "; name it with --text-field" if fields else ""
    names = shown_names(fields)
    return UserError(f"{where}: no field {text_field!r} to take the text from; there are: {names}{advice}")


Lines = Iterator[tuple[int, str]]
Rows = Iterator[tuple[int, list[str]]]


def table_documents(
    file: PackedFile, text_field: str, decoder: Utf8Decoder, *, rows_of: Callable[[Lines, Path], Rows]
) -> Iterator[list[str]]:
    """Yield each row's text, out of the column of this name, as a list of paragraphs."""
    rows = rows_of(numbered_lines(file.pieces(), file.path, decoder.decode), file.path)
    header = header_of(rows, file.path)
    if text_field not in header:
        raise _missing_field(str(file.path), text_field, header)
    column = header.index(text_field)
    for number, cells in rows:
        yield paragraphs(fitted(cells, header, f"{file.path}:{number}")[column])


def tab_records(lines: Lines, _: Path) -> Rows:
    """Yield the numbered rows of tab-separated text, which has no quoting."""
    return ((number, line.split("\t")) for number, line in _all_lines(lines) if line)


def csv_records(lines: Lines, path: Path) -> Rows:
    """Yield the numbered rows of CSV, separated by what separates the names of the columns."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # for the whole process, but nobody counts on the 128 kB that it has else
    texts: Iterator[str] = (f"{line}\n" for _, line in _all_lines(lines))
    first, num_before, delimiter = next(texts, ""), 0, ""
    if found := _SEPARATOR_LINE.fullmatch(first.strip()):
        first, num_before, delimiter = next(texts, ""), 1, found[1]
    header = [first]
    for line in islice(texts, _MAX_HEADER_LINES):
        if "".join(header).count('"') % 2 == 0:
            texts = chain([line], texts)
            break
        header.append(line)
    names = re.sub(r'"[^"]*"', "", "".join(header))  # a separator inside a name separates nothing
    reader = csv.reader(chain(header, texts), delimiter=delimiter or max(_DELIMITERS, key=names.count), strict=True)
    while True:
        number = num_before + reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{number}: not CSV: {error}; inside quotes a quote is written twice") from error
        if record is None:
            return
        if record:
            yield number, record


def _all_lines(lines: Lines) -> Lines:
    """Yield numbered lines; a carriage return ends them too where the first has one inside."""
    ends_alone = False
    for number, line in lines:
        ends_alone = "\r" in line if number == 1 else ends_alone
        yield from enumerate(line.split("\r"), number) if ends_alone else [(number, line)]


def header_of(records: Rows, path: Path) -> list[str]:
    """Return the names of a table's columns: its first row, without the empty columns that spreadsheets add."""
    header = [_LINE_BREAKS.sub(" ", name) for name in next(records, (1, []))[1]]
    while header and not header[-1].strip():
        header.pop()
    if not any(header):
        raise UserError(f"{path} has no first line that names its columns")
    check_names(header, f"{path}:1")
    return header


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse columns of which several have the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} columns are named {name[:40]!r}; give each a name of its own")


def fitted(cells: list[str], header: Sequence[str], where: str) -> list[str]:
    """Return a row's cells, as many as there are columns: empty ones after the last column go."""
    if len(cells) != len(header) and (len(cells) < len(header) or any(map(str.strip, cells[len(header) :]))):
        columns = shown_names(header)
        raise UserError(f"{where}: {counted(len(cells), 'column')} where {len(header)} are expected: {columns}")
    return cells[: len(header)]


def parquet_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield each row's text as a list of paragraphs; a row without text is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows, bytes_out, size = 0, 0, file.path.stat().st_size
    try:
        table = pq.ParquetFile(file.path, buffer_size=PIECE_BYTES)
        schema = table.schema_arrow
        if text_field not in schema.names:
            raise _missing_field(str(file.path), text_field, schema.names)
        kind = schema.field(text_field).type
        is_dictionary, is_binary = pa.types.is_dictionary(kind), "binary" in str(kind)
        if not _PARQUET_TEXT.fullmatch(str(kind)):
            raise UserError(f"{file.path}: column {text_field!r} is of type {kind}, not string")
        # An absurd size is refused before anything is unpacked. Not the column's own size: asking pyarrow for a column
        # of damaged metadata aborts the process.
        sizes = [table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)]
        check_growth(file.path, size, sum(sizes))
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[text_field], use_threads=False):
            bytes_out += batch.nbytes
            check_growth(file.path, size, bytes_out)
            # As bytes: a Parquet string need not be UTF-8, and pyarrow would stop at one that is not.
            column = batch.column(0).dictionary_decode() if is_dictionary else batch.column(0)
            for row, text in enumerate(column.cast(pa.large_binary()).to_pylist(), start=num_rows + 1):
                if text is None:
                    continue
                num_replaced, decoded = decoder.num_replaced, decoder.decode(text, file.path, row)
                if is_binary and decoder.num_replaced > num_replaced:
                    raise UserError(f"{file.path}: row {row}: column {text_field!r} is binary, and not UTF-8 text")
                yield paragraphs(decoded)
            num_rows += batch.num_rows
            file.bytes_read = size * num_rows // table.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CorruptFile(f"{file.path} is not an intact Parquet file: {reason}") from error


_READERS: dict[str, Callable[[PackedFile, str, Utf8Decoder], Iterator[list[str]]]] = {
    ".jsonl": json_documents,
    ".json": json_value_documents,
    ".csv": partial(table_documents, rows_of=csv_records),
    ".tsv": partial(table_documents, rows_of=tab_records),
    ".parquet": parquet_documents,
    ".xml": lambda file, *_: articles(file.pieces(), file.path),
}
_BLOCK_CHARACTERS = 1 << 20
_LEADING_BLANK_LINES = re.compile(r"\s*\n")
_BLANK_LINES = re.compile(r"\n\s*\n")


Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Corpus:
    """The documents of some files, as lines.

    Args:
        sources: files, folders, patterns, or `-` for standard input.
        without: files that are no text of it, such as the vocabulary, where they lie in one of its folders.
        strict: stop at bytes that are not UTF-8 instead of replacing them.
        text_field: the field of JSON records, or the column of CSV, TSV and Parquet files, that holds the text.

    Attributes:
        files: what is read, in this order; every path is absolute and there once.
        total_bytes: the size of the files on the disk, or None with standard input.
        num_documents: documents met so far in the current pass.
    """

    def __init__(
        self,
        sources: Sequence[str | os.PathLike[str]],
        *,
        without: Sequence[str | os.PathLike[str]] = (),
        strict: bool = False,
        text_field: str = "text",
    ) -> None:
        self.files = find_files(sources, without)
        self.total_bytes = None if STANDARD_INPUT in self.files else sum(path.stat().st_size for path in self.files)
        self.num_documents = 0
        self._strict = strict
        self._text_field = text_field
        self._decoder = Utf8Decoder(strict=strict)
        self._file: PackedFile | None = None
        self._finished_bytes = 0
        self._warned: set[str] = set()
        self._stdin_was_read = False

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the disk so far in the current pass, before any unpacking."""
        return self._finished_bytes + (self._file.bytes_read if self._file else 0)

    @property
    def num_replaced(self) -> int:
        """Lines, or records, of the current pass in which something was not UTF-8 and was replaced."""
        return self._decoder.num_replaced

    @property
    def names(self) -> str:
        """The first of its files, for messages."""
        more = f" and {len(self.files) - 3} more" if len(self.files) > 3 else ""
        return ", ".join(map(os.fspath, self.files[:3])) + more

    def blocks(self) -> Iterator[str]:
        r"""Yield paragraphs, and "" after each document, in blocks of about a million characters; "\n" ends every line.

        Every call is a new pass.
        """
        if STANDARD_INPUT in self.files and self._stdin_was_read:
            raise UserError("standard input can be read only once; save it to a file to read it again")
        self._stdin_was_read = True
        self._decoder = Utf8Decoder(strict=self._strict)
        self._finished_bytes, self._file = 0, None
        self.num_documents = 0
        for path in self.files:
            with open_packed(path) as file:
                self._finished_bytes, self._file = self.bytes_read, file
                kind = kind_of(file)
                if kind == ".txt":
                    yield from self._tidied(text_lines(file.pieces(), path, self._decoder))
                    continue
                if kind not in (form_of_name(path)[0], *self._warned):  # once for each kind
                    self._warned.add(kind)
                    text = "its text passages are the text"
                    if kind != ".xml":
                        text = f"its text is the field {self._text_field!r}"
                    what = NAMES_OF_KINDS[kind]
                    _log.warning("%s is read as %s, for that is what it holds; %s", path, what, text)
                yield from self._written(_READERS[kind](file, self._text_field, self._decoder))

    def _tidied(self, blocks: Iterator[str]) -> Iterator[str]:
        """Leave one empty line where there are blank ones, one at the end of the file, and none at its start."""
        in_document = False
        for block in blocks:
            if leading := _LEADING_BLANK_LINES.match(block):
                block = "\n" * in_document + block[leading.end() :]
                self.num_documents += in_document
                in_document = False
            blank_lines = _BLANK_LINES.findall(block)
            self.num_documents += len(blank_lines)
            # Nearly always the lines between documents are single and empty, and nothing has to be copied.
            if any(found != "\n\n" for found in blank_lines):
                block = _BLANK_LINES.sub("\n\n", block)
            if block:
                in_document = block != "\n" and not block.endswith("\n\n")
                yield block
        if in_document:
            self.num_documents += 1
            yield "\n"

    def _written(self, documents: Iterator[list[str]]) -> Iterator[str]:
        """Write documents, given as lists of paragraphs, into blocks; empty documents leave nothing."""
        lines: list[str] = []
        size = 0
        for document in documents:
            for line in document:
                lines.append(line)
                size += len(line) + 1
                if size >= _BLOCK_CHARACTERS:
                    yield "\n".join(lines) + "\n"
                    lines, size = [], 0
            if document:
                self.num_documents += 1
                lines.append("")
        if lines:
            yield "\n".join(lines) + "\n"


def open_corpus(corpus: Corpus | Sources, without: Sequence[str | os.PathLike[str]] = ()) -> Corpus:
    """Return a corpus as it is, or the one of a source or several."""
    if isinstance(corpus, Corpus):
        return corpus
    return Corpus([corpus] if isinstance(corpus, str | os.PathLike) else corpus, without=without)
