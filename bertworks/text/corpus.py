"""Every corpus in one form: a paragraph per line, and an empty line after each document.

- **Sources.** A corpus is files, folders, patterns (`*`, `?`, `**`) or `-` for standard input. From a folder, all files
  with a known ending are read, at any depth, except hidden files and links that lead out of the folder. Linked folders
  are not entered, so cycles of links are harmless. The vocabulary of a model or of prepared data in a folder is not
  read. A file that is named, or matched by a pattern, is read whatever its ending. The list is sorted by path, so a
  vocabulary does not depend on the shell's locale or the order of a directory.
- **Kinds.** Plain text, JSON lines, a JSON list, CSV, tab-separated text, Parquet and Wikipedia dumps, compressed or
  not. The kind of a file is found from its name and its first bytes: JSON, Parquet and dumps are recognised under any
  name, and files that are clearly not text (PDFs, pictures, archives, web pages) are refused. The same rules apply to
  the files of tasks.
- **Records.** Each JSON record or row is one document: the text of one field. It may contain newlines, and its blank
  lines do not end the document. A record that cannot be read is an error with its position, because skipping it
  silently would hide that the corpus is damaged. Corpora and the files of tasks share this code for tables.
- **Cost.** Memory does not grow with the corpus. Plain text is handled in blocks of a megabyte, without Python work per
  line.
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
# Other files in a folder that may contain text; if any are skipped, a warning lists them.
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
    (b"<!doctype html", "an HTML page", "extract its text first"),
    (b"<html", "an HTML page", "extract its text first"),
    (b"<doc id=", "WikiExtractor's text with tags", "run it with --json, or name the Wikipedia dump itself"),
    (b"<?xml", "XML, but not a Wikipedia dump", "extract its text first"),
)
_TAG_BYTES = 4096
_PARQUET_TEXT = re.compile(r"(dictionary<values=)?(large_)?(string|binary)(_view)?(, .*)?")
_JSON_STRING = rb'"(?:[^"\\]|\\.)*"'
_JSON_STRING_LINE = re.compile(rb"\s*" + _JSON_STRING + rb"\s*")
_JSON_OBJECT_START = re.compile(rb"\{\s*(?:" + _JSON_STRING + rb"\s*:|\})")
_JSON_LIST_START = re.compile(rb"\[\s*(?:\{\s*" + _JSON_STRING + rb"\s*:|" + _JSON_STRING + rb"\s*,|\]\s*$)")


def form_of_name(path: Path) -> tuple[str, str]:
    """Return the kind (".txt", any other ending, or none) and the compression that a file's name suggests."""
    compression = ending_of_packing(path.name)
    kind = os.path.splitext(path.name.lower().removesuffix(compression))[1]
    return _SAME_KIND.get(kind, kind), compression


def kind_of(file: PackedFile) -> str:
    """Return the kind of an open file, from its first bytes and its name: one of KINDS and TABLES.

    Text with an unknown ending is plain text. A file that is clearly not text raises UserError.
    """
    head, (named, _) = file.head(), form_of_name(file.path)
    if head.startswith(b"PAR1") or (named == ".parquet" and not file.compression):
        if file.compression or file.path == STANDARD_INPUT:
            raise UserError(
                f"{file.path} is Parquet, which can only be read from an uncompressed file; save or unpack it first"
            )
        check_installed(file.path, _MODULES[".parquet"])
        return ".parquet"
    what = next((what for signature, what in _NOT_TEXT if head.startswith(signature)), "")
    if what or head[_TAR_OFFSET:].startswith(_TAR_SIGNATURE):
        raise UserError(f"{file.path} is {what or 'a tar archive'}, not text; extract its text first")
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
    """Return ".jsonl" for a record or a string on each line, ".json" for other JSON, "" for anything else.

    A single value on one line is both; then the name decides.
    """
    is_named = named in (".jsonl", ".json")
    if start.startswith(b"["):
        return ".json" if named == ".json" or _JSON_LIST_START.match(start) else ""
    if not start.startswith(b'"') and not _JSON_OBJECT_START.match(start):
        return ""
    lines = [line for line in start.replace(b"\r", b"\n").split(b"\n") if line and not line.isspace()]
    if start.startswith(b'"'):
        # Quoted text and tables may have such a line too; it is JSON only if every line is a JSON string.
        whole = lines[:-1] if len(start) >= PIECE_BYTES else lines
        are_strings = len(whole) > 1 and all(_JSON_STRING_LINE.fullmatch(line) for line in whole)
        return ".jsonl" if are_strings and named not in TABLES and not is_named else ""
    if lines[0].strip() == b"{":
        return ".json"  # an object over several lines
    try:
        is_record = isinstance(parse_json(lines[0].decode(errors="replace"), "the first line"), dict)
    except CorruptFile:
        is_record = len(lines) == 1 and len(start) >= PIECE_BYTES  # the record may be longer
    if len(lines) == 1 and is_record:
        return ".json" if named == ".json" else ".jsonl"
    if not is_record:
        return named if is_named else ""
    # Prose may begin with an example of JSON.
    are_records = sum(line.lstrip().startswith(b"{") for line in lines) > len(lines) // 2
    return ".jsonl" if is_named or are_records else ""


def find_files(sources: Sequence[str | os.PathLike[str]], without: Sequence[str | os.PathLike[str]] = ()) -> list[Path]:
    """Return the files of the sources: absolute, sorted, without repetitions; standard input comes last.

    Files in `without` are left out unless a source names them directly.
    """
    if not sources:
        raise UserError("no corpus was given; give files, folders, patterns, or - for standard input")
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
            # Absolute but not resolved: the ending of the link's own name decides how the file is read.
            found.append(Path(os.path.abspath(path)))
        except OSError as error:
            raise UserError(f"cannot read {source}: {error.strerror or error}") from error
    once: dict[str, Path] = {}
    again = [path for path in sorted(found) if once.setdefault(os.path.realpath(path), path) is not path]
    if again:
        more = f" and {len(again) - 1:,} more are" if len(again) > 1 else " is"
        _log.warning("%s%s given more than once, and read once; a copy would be read again", again[0], more)
    for path in once.values():  # refuse early what would otherwise fail after hours of reading
        kind, compression = form_of_name(path)
        if kind in _OTHER_PACKINGS or (kind == ".parquet" and compression):
            raise UserError(
                f"{path} is compressed in a format that is not supported; unpack it first and give the files inside"
            )
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
        more = f"; there are {not_read}, which must be given one by one or by a pattern" if not_read else ""
        raise UserError(
            f"{folder} holds no corpus files ({', '.join(KINDS)}, also with {', '.join(COMPRESSIONS)}){more}; "
            "hidden files and links that lead out of a folder are not read"
        )
    if not_read:
        _log.warning("%s: not read: %s; if they are text, give them by name or by a pattern", folder, not_read)
    return files


def _is_json_records(path: Path) -> bool:
    """Tell whether a JSON file is JSON lines or a list, and not a single object such as settings."""
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
        # Path.glob, unlike glob.glob, does not follow links for **, which might form a cycle.
        matches = [path for path in base.glob("/".join(moving)) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{pattern} is not a usable pattern: {error}") from error
    files = [
        path for path in matches if wants_hidden or not any(p.startswith(".") for p in path.relative_to(base).parts)
    ]
    if not files:
        raise UserError(f"{pattern} matches no files")
    return files


# Rows of books can be megabytes each, and with a Parquet dictionary a small file can repeat such a row many times.
_ROWS_AT_ONCE = 128
_WHITE_SPACE = re.compile(r"[\s\ufeff]*")
_DELIMITERS = (",", ";", "\t")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # a line that Excel writes and understands
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
    """Yield the texts of the records or strings in a JSON list, or of records that follow one another.

    A record may span several lines. Memory use is that of the largest record.
    """
    find_end = json.JSONDecoder().raw_decode
    text, line, wanted, number, in_list, is_between, is_closed = "", 1, 0, 0, False, False, False
    next_line = 1
    for block in chain(line_blocks(checked_text(file.pieces(), file.path), PIECE_BYTES), [b""]):
        text += decoder.decode(block, file.path, next_line)
        next_line += block.count(b"\n")
        if block and len(text) < wanted:
            continue  # an incomplete record; parsing it again for every block would take quadratic time
        position, problem = 0, ""
        while not problem:
            start = _WHITE_SPACE.match(text, position).end()  # type: ignore[union-attr]  # it also matches the empty string
            line += text.count("\n", position, start)
            position, sign = start, text[start : start + 1]
            if not sign:
                break
            if number == 0 and not in_list and sign == "[":
                in_list, position = True, start + 1
            elif is_closed or (in_list and is_between and sign not in ",]"):
                expected = "after the end of the list" if is_closed else "where ',' or ']' is expected"
                raise UserError(f"{file.path}:{line}: not JSON: {sign!r} {expected}")
            elif in_list and sign in ",]":
                is_between, is_closed, position = False, sign == "]", start + 1
            else:
                try:
                    _, position = find_end(text, start)
                except (ValueError, RecursionError) as error:
                    problem = f"{file.path}:{line}: not JSON: {getattr(error, 'msg', error)}"
                    break
                yield paragraphs(_record_text(text[start:position], str(file.path), line, text_field, decoder))
                line += text.count("\n", start, position)
                number, is_between = number + 1, True
        text, wanted = text[position:], 2 * (len(text) - position) if problem else 0
        if problem and (not block or len(text) > MAX_RECORD_BYTES):
            raise UserError(problem)
    if in_list and not is_closed:
        raise CorruptFile(f"{file.path} ends before its JSON list does: it is cut off")


def _missing_field(where: str, text_field: str, fields: Sequence[str]) -> UserError:
    advice = "; give its name with --text-field" if fields else ""
    names = shown_names(fields)
    return UserError(f"{where}: no field {text_field!r} to take the text from; there are: {names}{advice}")


Lines = Iterator[tuple[int, str]]
Rows = Iterator[tuple[int, list[str]]]


def table_documents(
    file: PackedFile, text_field: str, decoder: Utf8Decoder, *, rows_of: Callable[[Lines, Path], Rows]
) -> Iterator[list[str]]:
    """Yield the text in each row's column `text_field` as a list of paragraphs."""
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
    """Yield the numbered rows of CSV; the delimiter is the one that separates the column names."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # for the whole process; nothing relies on the default of 128 kB
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
    names = re.sub(r'"[^"]*"', "", "".join(header))  # ignore separators inside quoted names
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
    """Yield numbered lines; if the first line contains a carriage return, carriage returns end lines too."""
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
    """Refuse columns that share a name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} columns are named {name[:40]!r}; give each a different name")


def fitted(cells: list[str], header: Sequence[str], where: str) -> list[str]:
    """Return a row's cells, one for each column; empty cells after the last column are dropped."""
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
        # Refuse an absurd size before anything is unpacked. The sizes of row groups are used, not of the column: with
        # damaged metadata, asking pyarrow for a column aborts the process.
        sizes = [table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)]
        check_growth(file.path, size, sum(sizes))
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[text_field], use_threads=False):
            bytes_out += batch.nbytes
            check_growth(file.path, size, bytes_out)
            # As bytes: a Parquet string need not be valid UTF-8, and pyarrow would fail on one that is not.
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
        without: files in these folders that do not belong to the corpus, such as the vocabulary.
        strict: stop at bytes that are not UTF-8 instead of replacing them.
        text_field: the field of JSON records, or the column of CSV, TSV and Parquet files, that holds the text.

    Attributes:
        files: the files in the order in which they are read; paths are absolute and unique.
        total_bytes: the size of the files on the disk, or None with standard input.
        num_documents: the number of documents read so far in the current pass.
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
        """The number of lines or records of the current pass in which invalid UTF-8 was replaced."""
        return self._decoder.num_replaced

    @property
    def names(self) -> str:
        """The names of its first files, for messages."""
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
                    _log.warning("%s is read as %s, judging by its content; %s", path, what, text)
                yield from self._written(_READERS[kind](file, self._text_field, self._decoder))

    def _tidied(self, blocks: Iterator[str]) -> Iterator[str]:
        """Turn runs of blank lines into one empty line; end with one, and begin without one."""
        in_document = False
        for block in blocks:
            if leading := _LEADING_BLANK_LINES.match(block):
                block = "\n" * in_document + block[leading.end() :]
                self.num_documents += in_document
                in_document = False
            blank_lines = _BLANK_LINES.findall(block)
            self.num_documents += len(blank_lines)
            # Documents are nearly always separated by one empty line; then nothing is copied.
            if any(found != "\n\n" for found in blank_lines):
                block = _BLANK_LINES.sub("\n\n", block)
            if block:
                in_document = block != "\n" and not block.endswith("\n\n")
                yield block
        if in_document:
            self.num_documents += 1
            yield "\n"

    def _written(self, documents: Iterator[list[str]]) -> Iterator[str]:
        """Join documents, given as lists of paragraphs, into blocks; empty documents are skipped."""
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
    """Return a corpus unchanged, or make one from a source or several."""
    if isinstance(corpus, Corpus):
        return corpus
    return Corpus([corpus] if isinstance(corpus, str | os.PathLike) else corpus, without=without)
