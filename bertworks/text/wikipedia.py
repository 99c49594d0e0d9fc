"""Reads the articles of a Wikipedia dump (`...-pages-articles.xml.bz2`), and the text passages of each.

- The dump is read as a stream of XML events and no tree is built: only one article is in memory at a time. Pages of
  namespace 0 that are not redirects are kept, with their last revision. The start of a dump names the wiki's file and
  category namespaces, so links to them are removed in any language. Document type declarations are refused, because
  their entities could expand a kilobyte to gigabytes.
- Only the running text of a page is kept: no lists, tables, headings, templates or references (BERT, section 3.1). One
  pass goes from mark to mark with a stack of open elements. Text is appended to an output list; when an element that is
  not text closes, the output since it opened is discarded. Nothing is searched for twice, so the time is linear for
  every page: a million marks that never close cost the same as a million that do. An element that never closes is kept
  as text, because one missing bracket must not remove the rest of an article.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from bertworks.errors import CorruptFile, UserError
from bertworks.text.lines import cut_line

FILE_AND_CATEGORY_NAMES = frozenset(("file", "image", "category", "파일", "그림", "이미지", "분류"))

# Every alternative starts with a fixed character, so the search skips plain text fast. Quantifiers are possessive or
# bounded, so there is no backtracking.
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
    """Return the paragraphs of running text of a page.

    Args:
        wikitext: the page in MediaWiki's markup.
        dropped_links: lower-case names of namespaces whose links are removed, because they are pictures or categories.
    """
    paragraphs: list[list[str]] = [[]]
    for line in _without_markup(wikitext, dropped_links).split("\n"):
        bare = line.strip()
        # Skip lists and headings. A line that starts with a bar is left over from an unclosed table or template.
        is_text = not bare.startswith(("*", "#", ":", ";", "|", "{|")) and bare[:1] + bare[-1:] != "=="
        if cleaned := _cleaned(line) if is_text else "":
            paragraphs[-1].append(cleaned)
        elif paragraphs[-1]:
            paragraphs.append([])
    joined = [" ".join(lines) for lines in paragraphs]
    return [paragraph for paragraph in joined if any(map(str.isalnum, paragraph))]


def _cleaned(line: str) -> str:
    # Only entities with few digits are unescaped: the standard library raises on one of 5,000 digits.
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
    """An open element: its kind ("{{", "{|", "[[" or "["), and where in the output it began."""

    kind: str
    start: int
    has_bar: bool = False
    is_visible: bool = False
    is_dropped: bool = False


def _without_markup(wikitext: str, dropped_links: frozenset[str]) -> str:
    """Return the text of a page without markup, with its line breaks."""
    source = "\n" + wikitext.replace("\r\n", "\n")
    output: list[str] = []
    stack: list[_Open] = []
    num_templates, position = 0, 0
    never_closed: set[str] = set()

    def target() -> _Open | None:
        """The link, if any, whose target is being read."""
        return stack[-1] if stack and stack[-1].kind == "[[" and not stack[-1].has_bar else None

    def keep(text: str) -> None:
        if text:
            output.append(text)
        if "\n" in text:
            # An address or the target of a link cannot contain a line break, so the bracket was only a bracket.
            while stack and (stack[-1].kind == "[" or target()):
                stack.pop()

    def drop_back_to(kind: str) -> None:
        """Close the innermost element of a kind, with everything open inside it, and discard its output."""
        while (item := stack.pop()).kind != kind:
            pass
        del output[item.start :]

    def prefix(link: _Open) -> str:
        """The start of a link's target; only the start, because nested links can share a long one."""
        return output[link.start][:_MAX_PREFIX_LENGTH].lstrip() if link.start < len(output) else ""

    def is_picture_or_category(link: _Open) -> bool:
        namespace, colon, _ = prefix(link).partition(":")
        return bool(colon) and not link.is_visible and namespace.rstrip(" _").lower() in dropped_links

    while mark := (_MARK_OR_BAR if target() else _MARK).search(source, position):
        keep(source[position : mark.start()])
        kind, position = mark.lastgroup, mark.end()
        if kind == "comment":
            # If a comment never closes, the rest of the page is removed, as in MediaWiki.
            end = source.find("-->", position)
            position = len(source) if end < 0 else end + len("-->")
        elif kind == "tag":
            tag = mark[0]
            found = _TAG_NAME.search(tag)
            assert found is not None
            name = found[0].lower()
            if name in _NO_TEXT_TAGS and tag[1] != "/" and tag[-2] != "/":
                if name not in never_closed:
                    if closing := re.compile(rf"</{name}\s*+>", re.IGNORECASE).search(source, position):
                        position = closing.end()
                    else:
                        never_closed.add(name)
            elif name in _PARAGRAPH_TAGS:
                output.append("\n\n")
            elif name == "br":
                output.append(" ")
        elif kind == "open_template":
            stack.append(_Open("{{", len(output)))
            num_templates += 1
        elif kind == "close_template":
            if num_templates:
                drop_back_to("{{")
                num_templates -= 1
        elif kind == "open_table":
            keep("\n")
            stack.append(_Open("{|", len(output)))
        elif kind == "close_table":
            keep("\n")
            while stack and stack[-1].kind.startswith("["):
                stack.pop()
            if stack and stack[-1].kind == "{{":
                position -= 1  # the bar belongs to the template, and the brace begins "}}"
            elif stack:
                drop_back_to("{|")
        elif kind == "open_link":
            # With a colon in front it is a visible link to a picture or category.
            stack.append(_Open("[[", len(output), is_visible=mark[0] == "[[:"))
        elif kind == "open_url":
            stack.append(_Open("[", len(output)))
        elif kind == "bar":
            if link := target():
                link.has_bar, link.is_dropped = True, is_picture_or_category(link)
                del output[link.start :]
            else:
                output.append("|")  # the text before it contained a newline, which ended the target
        elif kind == "close_link":
            closed = stack[-1].kind if stack else ""
            if closed == "[":
                stack.pop()
                position = mark.start() + 1
            elif closed == "[[" and mark[0] == "]]":
                link = stack.pop()
                if not link.has_bar:
                    is_language = not link.is_visible and _LANGUAGE_LINK.match(prefix(link))
                    link.is_dropped = is_picture_or_category(link) or bool(is_language)
                if link.is_dropped:
                    del output[link.start :]
            elif mark[0] == "]":
                output.append("]")
    keep(source[position:])
    return "".join(output)


_MAX_ARTICLE_CHARACTERS = 64 << 20
_MAX_UNPARSED_BYTES = 16 << 20
_MAX_DEPTH = 32
_FILE_AND_CATEGORY_KEYS = ("6", "14")
_WANTED = frozenset(("ns", "text", "namespace"))


def articles(pieces: Iterator[bytes], path: Path) -> Iterator[list[str]]:
    """Yield the text passages of each article of a dump; articles without text are left out."""
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
        self._page_is_article, self._page_text = True, ""
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 16
        self._parser.StartElementHandler = self._on_start
        self._parser.EndElementHandler = self._on_end
        self._parser.CharacterDataHandler = self._on_text
        self._parser.StartDoctypeDeclHandler = self._on_doctype

    def feed(self, data: bytes, *, is_last: bool = False) -> list[str]:
        """Parse more of the dump and return the articles that are now complete."""
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

    def _on_doctype(self, *_: object) -> None:
        self._refuse("a document type declaration, which may hold entity bombs")

    def _on_start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag != "mediawiki":
            self._refuse(f"<{tag[:40]}> where <mediawiki> is expected")
        if self._depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} levels of tags")
        if tag == "page":
            self._page_is_article, self._page_text = True, ""
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
