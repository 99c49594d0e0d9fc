"""Articles out of a Wikipedia dump (`...-pages-articles.xml.bz2`).

The dump is read as a stream of XML events and no tree is built: at any time one article is in memory. Kept are the
pages of namespace 0 that are not redirects; of a page with several revisions, the last. The names of the wiki's own
file and category namespaces stand at the head of its dump, so links to them go in any language. Document type
declarations are refused, and with them the entities that unpack a kilobyte to gigabytes.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from bertworks.errors import CorruptFile, UserError
from bertworks.text.lines import cut_line

# The text passages of a wiki page: no lists, tables, headings, templates, references (BERT, section 3.1).
#
# One pass over the marks of the page, from one to the next, with a stack of what is open. What is read goes to an
# output list; when something that is not text closes, the output since it opened is thrown away. Nothing is ever
# looked for twice, so the time is linear whatever the page: a million marks that never close cost the same as a
# million that do. What never closes is kept as text, since one forgotten bracket must not swallow the rest of an
# article.


FILE_AND_CATEGORY_NAMES = frozenset(("file", "image", "category", "파일", "그림", "이미지", "분류"))

# Every alternative starts with a fixed character, which lets the search skip plain text fast; quantifiers are
# possessive or bounded, so none can backtrack.
_MARKS = (
    r"(?P<comment><!--)|(?P<tag></?[A-Za-z][^<>]{0,1000}+>)"
    r"|(?P<open_template>\{\{)|(?P<close_template>\}\})"
    r"|(?P<open_table>\n[ \t:]*+\{\|)|(?P<close_table>\n[ \t]*+\|\})"
    r"|(?P<open_link>\[\[:?)|(?P<open_url>\[(?:https?:|ftp:|mailto:|//)[^\s\[\]<>{|}]*+[ \t]*+)|(?P<close_link>\]\]?)"
    r"|(?P<quotes>''++)"
)
_MARK = re.compile(_MARKS)
_MARK_OR_BAR = re.compile(_MARKS + r"|(?P<bar>\|)")
_TAG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*+")
_NO_TEXT_TAGS = frozenset((
    "ref", "references", "gallery", "math", "chem", "ce", "code", "nowiki", "pre", "source", "syntaxhighlight",
    "timeline", "score", "hiero", "imagemap", "graph", "mapframe", "maplink", "templatedata", "templatestyles",
    "table", "ul", "ol", "dl", "style", "script",
))  # fmt: skip
_PARAGRAPH_TAGS = frozenset(("p", "div", "blockquote", "center", "hr", "poem"))
_MAX_PREFIX_LENGTH = 64
_LANGUAGE_LINK = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,10})*+:")

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{1,40}__")
_EMPTY_PARENTHESES = re.compile(r" ?[(（][ ,;:/·、，；–-]*+[)）]")
_AFTER_OPEN_PARENTHESIS = re.compile(r"([(（])[ ,;、，；]++")
_BEFORE_CLOSE_PARENTHESIS = re.compile(r"(?<![ ,;、，；])[ ,;、，；]++([)）])")


def plain_text(wikitext: str, dropped_links: frozenset[str] = FILE_AND_CATEGORY_NAMES) -> list[str]:
    """Return the paragraphs of a page that are running text.

    Args:
        wikitext: the page in MediaWiki's markup.
        dropped_links: namespaces, in lower case, whose links are pictures or categories and not part of the text.
    """
    paragraphs: list[list[str]] = [[]]
    for line in _Scanner(wikitext, dropped_links).text().split("\n"):
        cleaned = "" if _is_list_or_heading(line.strip()) else _cleaned(line)
        if cleaned:
            paragraphs[-1].append(cleaned)
        elif paragraphs[-1]:
            paragraphs.append([])
    joined = [" ".join(lines) for lines in paragraphs]
    return [paragraph for paragraph in joined if any(map(str.isalnum, paragraph))]


def _is_list_or_heading(line: str) -> bool:
    # A line that starts with a bar is what an unclosed table or template leaves.
    return line.startswith(("*", "#", ":", ";", "|", "{|")) or (line.startswith("=") and line.endswith("="))


def _cleaned(line: str) -> str:
    # Only short numbers are unescaped: the standard library raises on an entity of 5,000 digits.
    line = _ENTITY.sub(lambda match: html.unescape(match[0]), line) if "&" in line else line
    line = _MAGIC_WORD.sub("", line) if "__" in line else line
    line = " ".join(line.split())
    if "(" in line or "（" in line:
        line = _EMPTY_PARENTHESES.sub("", line)
        line = _AFTER_OPEN_PARENTHESIS.sub(r"\1", line)
        line = _BEFORE_CLOSE_PARENTHESIS.sub(r"\1", line)
    return line.strip()


@dataclass(slots=True)
class _Open:
    """Something open: its kind ("{{", "{|", "[[" or "["), and where in the output it began."""

    kind: str
    start: int
    has_bar: bool = False
    is_visible: bool = False
    is_dropped: bool = False


def _is_target(item: _Open) -> bool:
    return item.kind == "[[" and not item.has_bar


class _Scanner:
    """Goes once through a page; each `_on_` method takes one kind of mark and returns where to read on."""

    def __init__(self, wikitext: str, dropped_links: frozenset[str]) -> None:
        self._source = "\n" + wikitext.replace("\r\n", "\n")
        self._dropped_links = dropped_links
        self._output: list[str] = []
        self._stack: list[_Open] = []
        self._num_open: Counter[str] = Counter()
        self._never_closed: set[str] = set()
        self._actions: dict[str, Callable[[re.Match[str]], int]] = {
            "comment": self._on_comment,
            "tag": self._on_tag,
            "open_template": self._on_open_template,
            "close_template": self._on_close_template,
            "open_table": self._on_open_table,
            "close_table": self._on_close_table,
            "open_link": self._on_open_link,
            "open_url": self._on_open_url,
            "close_link": self._on_close_link,
            "bar": self._on_bar,
            "quotes": re.Match.end,
        }

    def text(self) -> str:
        """Return the page without what is not text, its lines still apart."""
        position = 0
        while mark := self._next_mark(position):
            self._keep(self._source[position : mark.start()])
            assert mark.lastgroup is not None
            position = self._actions[mark.lastgroup](mark)
        self._keep(self._source[position:])
        return "".join(self._output)

    def _next_mark(self, position: int) -> re.Match[str] | None:
        in_target = self._stack and _is_target(self._stack[-1])
        return (_MARK_OR_BAR if in_target else _MARK).search(self._source, position)

    def _keep(self, text: str) -> None:
        if not text:
            return
        self._output.append(text)
        if "\n" in text:
            # Neither an address nor the target of a link goes over a line's end: the bracket was only a bracket.
            while self._stack and (self._stack[-1].kind == "[" or _is_target(self._stack[-1])):
                self._pop()

    def _push(self, kind: str) -> None:
        self._stack.append(_Open(kind, len(self._output)))
        self._num_open[kind] += 1

    def _pop(self) -> _Open:
        item = self._stack.pop()
        self._num_open[item.kind] -= 1
        return item

    def _drop_back_to(self, kind: str) -> None:
        """Close the innermost item of a kind, with all that was left open in it, and forget its output."""
        while (item := self._pop()).kind != kind:
            pass
        del self._output[item.start :]

    def _on_comment(self, mark: re.Match[str]) -> int:
        # The one mark whose rest goes when it never closes, as MediaWiki has it.
        end = self._source.find("-->", mark.end())
        return len(self._source) if end < 0 else end + len("-->")

    def _on_tag(self, mark: re.Match[str]) -> int:
        tag = mark[0]
        found = _TAG_NAME.search(tag)
        assert found is not None
        name = found[0].lower()
        if name in _NO_TEXT_TAGS and tag[1] != "/" and tag[-2] != "/":
            return self._end_of_block(name, mark.end())
        if name in _PARAGRAPH_TAGS:
            self._output.append("\n\n")
        elif name == "br":
            self._output.append(" ")
        return mark.end()

    def _end_of_block(self, name: str, position: int) -> int:
        if name not in self._never_closed:
            closing = re.compile(rf"</{name}\s*+>", re.IGNORECASE).search(self._source, position)
            if closing:
                return closing.end()
            self._never_closed.add(name)
        return position

    def _on_open_template(self, mark: re.Match[str]) -> int:
        self._push("{{")
        return mark.end()

    def _on_close_template(self, mark: re.Match[str]) -> int:
        if self._num_open["{{"]:
            self._drop_back_to("{{")
        return mark.end()

    def _on_open_table(self, mark: re.Match[str]) -> int:
        self._keep("\n")
        self._push("{|")
        return mark.end()

    def _on_close_table(self, mark: re.Match[str]) -> int:
        self._keep("\n")
        while self._stack and self._stack[-1].kind.startswith("["):
            self._pop()
        if self._stack and self._stack[-1].kind == "{{":
            # The bar is the template's, and the brace begins "}}".
            return mark.end() - 1
        if self._stack:
            self._drop_back_to("{|")
        return mark.end()

    def _on_open_link(self, mark: re.Match[str]) -> int:
        self._push("[[")
        # A colon in front asks for the link to a picture or category in place of the thing itself.
        self._stack[-1].is_visible = mark[0] == "[[:"
        return mark.end()

    def _on_open_url(self, mark: re.Match[str]) -> int:
        self._push("[")
        return mark.end()

    def _on_bar(self, mark: re.Match[str]) -> int:
        if not (self._stack and _is_target(self._stack[-1])):
            self._output.append("|")  # the text before it held a newline, which ended the target
            return mark.end()
        link = self._stack[-1]
        link.has_bar, link.is_dropped = True, self._is_picture_or_category(link)
        del self._output[link.start :]
        return mark.end()

    def _on_close_link(self, mark: re.Match[str]) -> int:
        kind = self._stack[-1].kind if self._stack else ""
        if kind == "[":
            self._pop()
            return mark.start() + 1
        if kind == "[[" and mark[0] == "]]":
            self._close_link(self._pop())
        elif mark[0] == "]":
            self._output.append("]")
        return mark.end()

    def _close_link(self, link: _Open) -> None:
        if not link.has_bar:
            is_language = not link.is_visible and _LANGUAGE_LINK.match(self._prefix(link))
            link.is_dropped = self._is_picture_or_category(link) or bool(is_language)
        if link.is_dropped:
            del self._output[link.start :]

    def _prefix(self, link: _Open) -> str:
        """Return the start of a link's target, and no more: nested links all share one."""
        return self._output[link.start][:_MAX_PREFIX_LENGTH].lstrip() if link.start < len(self._output) else ""

    def _is_picture_or_category(self, link: _Open) -> bool:
        namespace, colon, _ = self._prefix(link).partition(":")
        return bool(colon) and not link.is_visible and namespace.rstrip(" _").lower() in self._dropped_links


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
