"""The demo's report: pictures of every stage, one file that loads nothing, and every text as text."""

import base64
import hashlib
import html
import re
from html.parser import HTMLParser

import pytest

from bertworks.demo import stages as asked
from bertworks.demo.page import cards, demo_page, paragraph, pieces, shares, text
from bertworks.demo.run import Show, Stage
from bertworks.recipe import Recipe

HOSTILE = "</style><script>alert(1)</script><b>\"'& ${style}"


class PageReader(HTMLParser):
    """Collects the elements of a page, and its text outside of styles."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.inside = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("style", "script"):
            self.texts.append(data)


def read(page):
    reader = PageReader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def page(demo):
    return demo.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(page):
    """The HTML of every stage."""
    return re.findall(r'<section aria-labelledby="stage-\d">.*?</section>', page, re.DOTALL)


def test_every_stage_has_its_section_with_its_commands_and_seconds(sections):
    assert len(sections) == 7
    for number, section in enumerate(sections, 1):
        assert f'id="stage-{number}"' in section
        assert '<pre class="command">$ bertworks ' in section
        assert re.search(r'class="took">\d+\.\d s<', section)


def test_both_trainings_are_drawn_as_curves(sections):
    captions = [re.findall(r"<figcaption>(.*?)</figcaption>", sections[place]) for place in (2, 4)]
    assert captions == [["Loss", "MLM accuracy", "NSP accuracy"], ["Loss", "Accuracy", "F1, mean of classes"]]
    for place in (2, 4):
        assert sections[place].count('class="line c1" d="M') >= 2  # a curve of what was kept aside, too


def test_the_confusion_matrix_counts_all_of_the_dev_set(sections):
    cells = re.findall(r'<td class="(?:right|wrong) s\d+" title="[^"]*">(\d+)</td>', sections[4])
    assert len(cells) == 9
    assert sum(map(int, cells)) == 60


def test_guesses_judgements_and_predictions_have_bars(sections):
    for place, texts, num_bars in ((2, asked.HELP_MASKS, 5), (3, asked.MASKS, 5), (5, asked.TO_CLASSIFY, 3)):
        articles = re.findall(r"<article>.*?</article>", sections[place])
        for one, article in zip(texts, articles, strict=False):
            assert html.escape(one) in article
            assert article.count("<rect ") == num_bars
    assert sum(second in sections[3] for _, second in asked.PAIRS) == 2
    assert all(text in sections[3] for text in asked.KOREAN_MASKS)


def test_shares_of_a_prediction_are_those_of_the_model(demo, sections):
    import bertworks as bw

    told = re.findall(r"<rect width=\"([\d.]+)\"", re.findall(r"<article>.*?</article>", sections[5])[0])
    found = bw.load(demo.folder / "tuned", device="cpu").classify([asked.TO_CLASSIFY[0]])[0]["scores"]
    assert [float(width) for width in told] == pytest.approx(
        sorted((100 * share for share in found.values()), reverse=True), abs=0.06
    )


def test_attention_is_the_page_of_all_heads_in_a_frame(sections):
    frames = [attrs for tag, attrs in read(sections[6]).elements if tag == "iframe"]
    assert len(frames) == 1
    assert frames[0]["sandbox"] == "allow-scripts"
    framed = read(frames[0]["srcdoc"])
    assert f"fine-tuned: {asked.TO_ATTEND}" in framed.texts
    assert '"numHeads":2' in frames[0]["srcdoc"]


def test_nothing_is_loaded_and_the_policy_allows_just_what_is_there(page):
    """S3"""
    reader = read(page)
    assert not [attrs for _, attrs in reader.elements if {"src", "href", "style", "onclick"} & set(attrs)]
    assert "url(" not in page
    assert "http" not in page.replace("http-equiv", "")
    policy = next(attrs["content"] for _, attrs in reader.elements if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
    framed = next(attrs["srcdoc"] for tag, attrs in reader.elements if tag == "iframe")
    inline = [*re.findall(r"<style>(.*?)</style>", page.replace(html.escape(framed), ""), re.DOTALL),
              *re.findall(r"<style>(.*?)</style>", framed, re.DOTALL),
              *re.findall(r"<script>(.*?)</script>", framed, re.DOTALL)]  # fmt: skip
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inline]
    assert len(hashes) == 3
    assert sorted(re.findall(r"'sha256-(.*?)'", policy)) == sorted(hashes)


def test_texts_are_shown_as_texts(tmp_path):
    """S3"""
    parts = text(HOSTILE) + paragraph(HOSTILE) + pieces([HOSTILE], [0]) + cards([shares([(HOSTILE, 0.5)])])
    show = Show(Recipe(), [], tmp_path, quiet=True, stages=[Stage(1, HOSTILE, [HOSTILE], 1.0, parts)])
    found = read(demo_page(show, 1.0))
    assert not [tag for tag, _ in found.elements if tag in ("script", "b")]
    assert sum(HOSTILE in one for one in found.texts) == 6


def test_marked_pieces_are_those_at_their_places():
    assert re.findall(r'<li class="marked">(.*?)</li>', pieces(["a", "b", "c", "b"], [1, 2])) == ["b", "c"]


def test_only_the_first_share_stands_out_and_only_where_it_is_the_best():
    assert shares([("a", 0.6), ("b", 0.05)]).count('class="best"') == 1
    assert "5.0%" in shares([("b", 0.05)])
    assert 'class="best"' not in shares([("follows", 0.6)], is_first_best=False)
