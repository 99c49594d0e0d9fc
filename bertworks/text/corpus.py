"""Every corpus in one form: a paragraph per line, and an empty line after each document.

`Corpus` reads plain text, JSON, CSV, Parquet and Wikipedia dumps, packed or not, from files, folders, patterns or
standard input, and turns them into the form in which BERT's scripts took their text. It streams: memory does not grow
with the corpus. Plain text is handled a megabyte at a time and costs Python nothing per line but the line itself.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertworks.errors import UserError
from bertworks.text.compressed import STANDARD_INPUT, PackedFile, open_packed
from bertworks.text.records import json_documents, json_value_documents, parquet_documents, table_documents
from bertworks.text.sources import NAMES_OF_KINDS, TABLES, find_files, form_of_name, kind_of
from bertworks.text.utf8 import Utf8Decoder, text_lines
from bertworks.text.wikipedia import articles

_log = logging.getLogger(__name__)
_BLOCK_CHARACTERS = 1 << 20
_LEADING_BLANK_LINES = re.compile(r"\s*\n")
_BLANK_LINES = re.compile(r"\n\s*\n")


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
        self._said: set[str] = set()
        self._stdin_was_read = False

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the disk so far in the current pass, before any unpacking."""
        return self._finished_bytes + (self._file.bytes_read if self._file else 0)

    @property
    def num_replaced(self) -> int:
        """Lines, or records, of the current pass in which something was not UTF-8 and was replaced."""
        return self._decoder.num_replaced

    def blocks(self) -> Iterator[str]:
        r"""Yield paragraphs, and "" after each document, in blocks of about a million characters; "\n" ends every line.

        Every call is a new pass.
        """
        self._start_pass()
        for path in self.files:
            with open_packed(path) as file:
                self._finished_bytes, self._file = self.bytes_read, file
                kind = kind_of(file)
                self._say(kind, path)
                yield from self._blocks_of(file, kind)

    def _start_pass(self) -> None:
        if STANDARD_INPUT in self.files and self._stdin_was_read:
            raise UserError("standard input can be read only once; save it to a file to read it again")
        self._stdin_was_read = True
        self._decoder = Utf8Decoder(strict=self._strict)
        self._finished_bytes, self._file = 0, None
        self.num_documents = 0

    def _say(self, kind: str, path: Path) -> None:
        """Say once for each kind of file what its content is, where its name says otherwise."""
        named = form_of_name(path).kind
        if kind not in (named, ".txt", *self._said):
            self._said.add(kind)
            text = f"its text is the field {self._text_field!r}" if kind != ".xml" else "its text passages are the text"
            _log.warning("%s is read as %s, for that is what it holds; %s", path, NAMES_OF_KINDS[kind], text)

    def _blocks_of(self, file: PackedFile, kind: str) -> Iterator[str]:
        if kind == ".txt":
            return self._tidied(text_lines(file.pieces(), file.path, self._decoder))
        if kind == ".jsonl":
            return self._written(json_documents(file, self._text_field, self._decoder))
        if kind == ".json":
            return self._written(json_value_documents(file, self._text_field, self._decoder))
        if kind in TABLES:
            table = table_documents(file, self._text_field, self._decoder, is_quoted=kind == ".csv")
            return self._written(table)
        if kind == ".parquet":
            return self._written(parquet_documents(file, self._text_field, self._decoder))
        return self._written(articles(file.pieces(), file.path))

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
