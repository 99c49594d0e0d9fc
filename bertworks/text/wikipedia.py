"""Articles out of a Wikipedia dump (`...-pages-articles.xml.bz2`).

The dump is read as a stream of XML events and no tree is built: at any time one article is in memory. Kept are the
pages of namespace 0 that are not redirects; of a page with several revisions, the last. The names of the wiki's own
file and category namespaces stand at the head of its dump, so links to them go in any language. Document type
declarations are refused, and with them the entities that unpack a kilobyte to gigabytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from bertworks.errors import CorruptFile, UserError
from bertworks.text.utf8 import cut_line
from bertworks.text.wikitext import FILE_AND_CATEGORY_NAMES, plain_text

__all__ = ["articles", "plain_text"]

_MAX_ARTICLE_CHARACTERS = 64 << 20
_MAX_UNPARSED_BYTES = 16 << 20
_MAX_DEPTH = 32
_FILE_AND_CATEGORY_KEYS = ("6", "14")
_WANTED = frozenset(("ns", "text", "namespace"))


def articles(pieces: Iterator[bytes], path: Path) -> Iterator[list[str]]:
    """Yield the text passages of each article of a dump; articles without any are left out."""
    dump = _Dump(path)
    for piece in pieces:
        for wikitext in dump.feed(piece):
            passages = plain_text(wikitext, dump.dropped_links)
            if passages:
                yield [part for passage in passages for part in cut_line(passage)[0]]
    dump.feed(b"", is_last=True)


class _Dump:
    """Collects the wikitext of articles from the events of an XML parser."""

    def __init__(self, path: Path) -> None:
        self.dropped_links = FILE_AND_CATEGORY_NAMES
        self._path = path
        self._articles: list[str] = []
        self._depth = 0
        self._num_bytes_fed = 0
        self._parts: list[str] | None = None
        self._num_characters = 0
        self._namespace_key = ""
        self._forget_page()
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 16
        self._parser.StartElementHandler = self._on_start
        self._parser.EndElementHandler = self._on_end
        self._parser.CharacterDataHandler = self._on_text
        self._parser.StartDoctypeDeclHandler = self._on_doctype

    def feed(self, data: bytes, *, is_last: bool = False) -> list[str]:
        """Parse more of the dump and return the articles that it completes."""
        try:
            self._parser.Parse(data, is_last)
        except expat.ExpatError as error:
            raise CorruptFile(f"{self._path} is not an intact XML dump: {error}") from error
        self._num_bytes_fed += len(data)
        if self._num_bytes_fed - self._parser.CurrentByteIndex > _MAX_UNPARSED_BYTES:
            self._refuse(f"a single tag of more than {_MAX_UNPARSED_BYTES >> 20} MiB")
        complete, self._articles = self._articles, []
        return complete

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"{self._path} is not a Wikipedia dump: it has {reason}")

    def _forget_page(self) -> None:
        self._page_is_article = True
        self._page_text = ""

    def _on_doctype(self, *_: object) -> None:
        self._refuse("a document type declaration, which may hold entity bombs")

    def _on_start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "mediawiki":
            self._refuse(f"<{tag[:40]}> where <mediawiki> is expected")
        if self._depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} levels of tags")
        if tag == "page":
            self._forget_page()
        elif tag == "redirect":
            self._page_is_article = False
        elif tag in _WANTED:
            self._namespace_key = attributes.get("key", "")
            self._parts, self._num_characters = [], 0

    def _on_text(self, text: str) -> None:
        if self._parts is None or not self._page_is_article:
            return
        self._parts.append(text)
        self._num_characters += len(text)
        if self._num_characters > _MAX_ARTICLE_CHARACTERS:
            self._refuse(f"an article of more than {_MAX_ARTICLE_CHARACTERS >> 20} million characters")

    def _on_end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "page" and self._page_is_article:
            self._articles.append(self._page_text)
        if self._parts is None or tag not in _WANTED:
            return
        content, self._parts = "".join(self._parts), None
        if tag == "text":
            self._page_text = content
        elif tag == "ns":
            self._page_is_article = self._page_is_article and content.strip() == "0"
        elif self._namespace_key in _FILE_AND_CATEGORY_KEYS and content:
            self.dropped_links |= {content.lower()}
