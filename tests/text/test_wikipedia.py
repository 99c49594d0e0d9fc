"""Only running text comes out of wiki pages, in linear time, and only articles out of dumps."""

import bz2
import re
import time
import tracemalloc
from itertools import chain, repeat
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from corpus_lines import lines_in
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.errors import CorruptFile, UserError
from bertworks.text.corpus import Corpus
from bertworks.text.wikipedia import articles, plain_text

PATH = Path("dump.xml")


@pytest.mark.parametrize(
    ("wikitext", "passages"),
    [
        # links
        ("A [[dog]] and [[Cat|two cats]] [[run]]ning.", ["A dog and two cats running."]),
        ("See [[Wiki#History|its history]] and [[:Category:Dogs]].", ["See its history and Category:Dogs."]),
        ("[http://a.b/c?d=e a label] and [//a.b another] and [https://a.b] [1]", ["a label and another and [1]"]),
        ("[[File:a.jpg|thumb|A [[dog|hound]] {{x}} [http://a b]]] Text.", ["Text."]),
        ("[[image: a.jpg ]]Text.[[ Category : Dogs|d]]", ["Text."]),
        ("한국어[[파일:가.jpg|섬네일|[[개]]]] 문단[[분류:개]]이다.", ["한국어 문단이다."]),
        ("Text.\n[[de:Hund]]\n[[zh-min-nan:Káu]] [[fr:Chien|chien]]", ["Text.", "chien"]),
        ("[[File:a|b\n\nText [[c|d]].", ["b", "Text d."]),
        ("An [[open bracket\nand a | bar.", ["An open bracket and a | bar."]),
        # templates and tables
        ("{{Infobox\n| a = {{b|{{c}}}}\n|}}\nText{{cite|x}}.", ["Text."]),
        ("Text {{a|[[b}} goes ]] on.", ["Text goes on."]),
        ("{| class=x\n! h\n|-\n| {{a|}} [[b\n{|\n| nested\n|}\n| c\n|}\nText.", ["Text."]),
        (":{| \n| indented\n |}Text.", ["Text."]),
        ("{{box|\n{|\n| a\n|}}} Text.", ["Text."]),
        ("Before {{never closed\n| a = b\n\nText {{x}}.", ["Before never closed", "Text ."]),
        ("{|\n| never closed\n\nText.", ["Text."]),
        ("Stray }} and ]] and\n|} closers.", ["Stray and and closers."]),
        # lists and headings
        ("== Head ==\nText.\n* a\n# b\n: c\n; d\n===x===\nMore.", ["Text.", "More."]),
        ("#REDIRECT [[Dog]]", []),
        ("#넘겨주기 [[개]]", []),
        # tags
        ("A<ref>{{cite|a}} [[b]]</ref><ref name=c /><REF name='d'>x</Ref > b.", ["A b."]),
        ("A<!-- {{ <ref> \n -->b <br/>c<p>d<small>e</small> H<sub>2</sub>O", ["Ab c", "de H2O"]),
        ("<gallery>\nFile:a.jpg|x\n</gallery>T<math>a}}</math>e<nowiki>]]</nowiki>xt<code>y</code>.", ["Text."]),
        ("<timeline>a</timeline><syntaxhighlight lang='c'>b</syntaxhighlight><table><tr>c</table>Text.", ["Text."]),
        ("Text <ref>never closed, and <math>so it stays.", ["Text never closed, and so it stays."]),
        ("Text <!-- never closed", ["Text"]),
        ("a < b and c > d, 1 <2", ["a < b and c > d, 1 <2"]),
        # letters
        ("'''Bold''' and ''italic'' and '''''both''''', it's.", ["Bold and italic and both, it's."]),
        ("a&nbsp;b &amp; c &lt;ref&gt; &#44032;&#x10000; &bogus; &", ["a b & c <ref> 가\U00010000 &bogus; &"]),
        ("&#" + "9" * 6000 + "; &#xD800; x", ["&#" + "9" * 6000 + "; \ufffd x"]),
        ("__TOC__ Text __목차__ __init__.", ["Text __init__."]),
        # white space and parentheses
        ("One line\nand \t the next.\r\n\r\n\n  New  paragraph. ", ["One line and the next.", "New paragraph."]),
        ("Dog ({{lang|x}}; {{IPA|y}}) is (; b. 1950, {{c}}) (a).", ["Dog is (b. 1950) (a)."]),
        ("개（{{한자|犬}}） 는 ( , ) 동물.", ["개 는 동물."]),
        ("{{x}} .\n\n)\n\n", []),
        ("", []),
    ],
)
def test_plain_text_keeps_only_passages(wikitext, passages):
    assert plain_text(wikitext) == passages


MARKS = [
    *(
        "{{",
        "}}",
        "{|",
        "\n{|",
        "\n|}",
        "|",
        "[[",
        "]]",
        "[",
        "]",
        "[http://",
        "[http://a ",
        "[[a|",
        "[[File:a|",
        "[[:",
    ),
    *("<ref>", "</ref>", "<ref/>", "<ref ", "<", ">", "<!--", "-->", "<math>", "<table>", "<div>", "<br>", "''"),
    *("\n", "\n*", "=", "(", ")", "( ", "(,", ",", "_", "__A", "&", "&#1", "&amp;", " ", "x", "가"),
]


@pytest.mark.parametrize("mark", MARKS)
def test_a_page_of_one_mark_takes_linear_time(mark):
    start = time.process_time()
    plain_text(mark * (200_000 // len(mark)))
    # A second pass over what is behind each mark would take minutes; one pass takes a tenth of a second.
    assert time.process_time() - start < 3


NESTINGS = [
    *("{{ }}", "[[ ]]", "[[: ]]", "[[a| ]]", "[[File:a| ]]", "\n{| \n|}", "( )", "[http://a ]", "<ref> </ref>"),
    *("{{[[ }}", "[[ }}", "{{ ]]", "<div> </div>"),
]


@pytest.mark.parametrize("nesting", NESTINGS)
def test_deep_nesting_takes_linear_time(nesting):
    opening, closing = nesting.split(" ")
    start = time.process_time()
    plain_text(opening * 50_000 + ":" * 50_000 + " x" * 50_000 + closing * 50_000)
    assert time.process_time() - start < 3


def test_a_long_run_before_a_parenthesis_that_never_closes_takes_linear_time():
    start = time.process_time()
    plain_text("(x" + "," * 300_000 + "x")
    assert time.process_time() - start < 3


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=60).map("".join))
def test_any_mixture_of_marks_gives_passages(wikitext):
    for passage in plain_text(wikitext):
        assert passage == " ".join(passage.split()) != ""
        assert not re.search(r"\{\{|''|<ref>|\n", passage)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.text("ab.,가 😀", max_size=30),
    st.text("ab.,가 😀", max_size=30),
    st.sampled_from(["{{%s}}", "<ref>%s</ref>", "<!--%s-->", "[[File:%s]]"]),
)
def test_what_is_not_text_leaves_no_trace(text, inside, form):
    assert plain_text(text + form % inside) == plain_text(text)


def page(wikitext, namespace="0", extra=""):
    revision = f'<revision><text xml:space="preserve">{escape(wikitext)}</text></revision>'
    return f"<page><title>Title</title><ns>{namespace}</ns><id>1</id>{extra}{revision}</page>"


def dump(*pages, head=""):
    return f'<mediawiki xml:lang="en"><siteinfo>{head}</siteinfo>{"".join(pages)}</mediawiki>'.encode()


def articles_of(data, step=None):
    step = step or len(data)
    return list(articles((data[i : i + step] for i in range(0, len(data), step)), PATH))


def test_articles_are_the_pages_of_namespace_0_that_have_text():
    data = dump(
        page("First & [[foremost]].\n\nSecond."),
        page("Talk.", namespace="1"),
        page("See [[x]]", extra='<redirect title="x" />'),
        page("{{only a template}}"),
        page("Last."),
    )
    assert articles_of(data) == [["First & foremost.", "Second."], ["Last."]]
    assert articles_of(data, step=7) == articles_of(data)


def test_the_last_of_several_revisions_counts():
    data = page("Old.").replace("</page>", "") + page("New.").partition("<id>1</id>")[2]
    assert articles_of(dump(data)) == [["New."]]


def test_the_wikis_own_names_for_files_and_categories_are_dropped():
    head = '<namespaces><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace></namespaces>'
    text = "[[Datei:a.jpg|mini|ein Hund]]Text[[Kategorie:Hund]] [[File:b.jpg]][[Hilfe:x|y]]"
    assert articles_of(dump(page(text), head=head)) == [["Text y"]]


def test_a_multistream_dump_is_read_to_its_end(tmp_path):
    streams = ["<mediawiki>", *(page(f"Article {n}.") for n in range(30)), "</mediawiki>"]
    path = tmp_path / "wiki-pages-articles-multistream.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    reader = Corpus([path])
    assert list(lines_in(reader)) == list(chain.from_iterable((f"Article {n}.", "") for n in range(30)))
    assert reader.num_documents == 30


def test_a_dump_of_any_length_is_read_in_bounded_memory():
    body = page("Some words of an article. " * 400).encode()
    pieces = chain([b"<mediawiki>"], repeat(body * 20, 15), [b"</mediawiki>"])
    tracemalloc.start()
    try:
        assert sum(1 for _ in articles(pieces, PATH)) == 300
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [0, 1, 30, -1, -5, -60])
def test_a_dump_that_is_cut_off_is_corrupt(cut):
    with pytest.raises(CorruptFile, match=r"dump\.xml is not an intact XML dump"):
        articles_of(dump(page("Text."))[:cut] or b" ")


def test_a_tag_out_of_place_is_corrupt_with_its_line():
    with pytest.raises(CorruptFile, match="mismatched tag: line 3"):
        articles_of(b"<mediawiki>\n<page>\n</mediawiki>")


def test_other_xml_is_not_a_dump():
    with pytest.raises(UserError, match="not a Wikipedia dump: it has <html> where <mediawiki> is expected"):
        articles_of(b"<html><page/></html>")
