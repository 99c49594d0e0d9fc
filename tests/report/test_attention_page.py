"""The attention page says what the weights say, stays small, loads nothing and keeps every token in its place."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.report.attention import attention_page

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "</title></style></h1><img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "&lt;b&gt; &amp; &",
    "${script} $$ $title",
    "]]>\u2028\u2029\x00",
    "\ud800",  # a lone surrogate, how Python passes on an argument that is not UTF-8
    "한국어 العربية \u202eright to left",
]


class PageReader(HTMLParser):
    """Collects what a browser would see: the elements, and the texts of some of them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or tag
        self.texts.setdefault(self.inside, "")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data


def read(page: str) -> PageReader:
    reader = PageReader()
    reader.feed(page)
    reader.close()
    return reader


def data_of(page: str) -> dict:
    return json.loads(read(page).texts["data"])


def decoded_weights(page: str) -> NDArray[np.float64]:
    """Undo what the page's text says of itself, independently of the code that wrote it."""
    data = data_of(page)
    num_tokens = len(data["tokens"])
    layers = [np.frombuffer(base64.b64decode(layer), np.uint8) for layer in data["layers"]]
    levels = np.stack(layers).reshape(len(layers), data["numHeads"], num_tokens, num_tokens)
    return data["scale"] * (levels / 255.0) ** 2


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float32]:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def some_attentions(num_layers: int, num_heads: int, num_tokens: int, sharpness: float = 3.0) -> NDArray[np.float32]:
    shape = (num_layers, num_heads, num_tokens, num_tokens)
    return softmax(np.random.default_rng(7).normal(size=shape) * sharpness)


def page_of(tokens: list[str], title: str = "mini: a title") -> str:
    return attention_page(tokens, [0] * len(tokens), some_attentions(2, 2, len(tokens)), title)


@pytest.mark.parametrize("sharpness", [0.0, 0.1, 3.0, 50.0])
def test_the_page_holds_the_weights_within_half_a_step(sharpness):
    weights = some_attentions(3, 2, 40, sharpness)
    decoded = decoded_weights(attention_page(["x"] * 40, [0] * 40, weights, "mini"))
    half_a_step = 0.5001 / 255
    assert np.abs(np.sqrt(decoded / weights.max()) - np.sqrt(weights / weights.max())).max() <= half_a_step
    assert np.abs(decoded - weights).max() < 0.004


def test_small_weights_are_still_told_apart():
    # One head looks at one token alone, the other at all of 512: the second must not round to nothing.
    weights = np.stack([np.eye(512), np.full((512, 512), 1 / 512)])[None].astype(np.float32)
    decoded = decoded_weights(attention_page(["x"] * 512, [0] * 512, weights, "mini"))
    np.testing.assert_allclose(decoded[0, 1], 1 / 512, rtol=0.1)
    np.testing.assert_allclose(decoded[0, 0], np.eye(512), atol=1e-7)


def test_rows_are_the_tokens_that_attend():
    weights = np.zeros((1, 1, 2, 2), np.float32)
    weights[0, 0, 0, 1] = weights[0, 0, 1, 1] = 1  # both look at the second
    assert decoded_weights(attention_page(["a", "b"], [0, 1], weights, "mini")).tolist() == [[[[0, 1], [0, 1]]]]


def test_tokens_and_segments_are_in_the_page_as_given():
    tokens, segments = ["[CLS]", "한국", "##어", "[SEP]", "yes", "[SEP]"], [0, 0, 0, 0, 1, 1]
    data = data_of(attention_page(tokens, segments, some_attentions(1, 1, 6), "mini"))
    assert (data["tokens"], data["segments"]) == (tokens, segments)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_from_outside_becomes_markup(text):
    plain, hostile = read(page_of(["word"])), read(page_of([text], title=text))
    assert hostile.elements == plain.elements
    assert json.loads(hostile.texts["data"])["tokens"] == [text]
    readable = text.encode("utf-8", "replace").decode()
    assert hostile.texts["h1"] == readable
    assert hostile.texts["title"] == f"Attention: {readable}"


@given(st.lists(st.text(st.characters(), max_size=8), min_size=1, max_size=4), st.text(st.characters(), max_size=20))
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back_and_can_be_written(tokens, title):
    page = page_of(tokens, title)
    assert json.loads(read(page.encode("utf-8").decode("utf-8")).texts["data"])["tokens"] == tokens


def test_the_data_element_cannot_be_left():
    page = page_of(HOSTILE, title="mini")
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert data.isascii()
    assert json.loads(data)["tokens"] == HOSTILE


def test_the_page_loads_nothing():
    page = page_of(["a", "b"])
    assert not re.search(r"https?:|url\(|@import|\bfetch\b|XMLHttpRequest|import\s*\(", page)
    for _, attributes in read(page).elements:
        assert not {"src", "href", "style", "onclick", "onload"} & set(attributes)


def test_the_policy_allows_our_script_and_style_alone():
    page = page_of(["a"], title="<script>alert(1)</script>")
    policy = next(a["content"] for tag, a in read(page).elements if tag == "meta" and "http-equiv" in a)
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    contents = {name: re.search(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)[1] for name in ("script", "style")}
    hashes = {
        name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in contents.items()
    }
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == f"'sha256-{hashes['script']}'"
    assert allowed["style-src"] == f"'sha256-{hashes['style']}'"


def test_the_page_is_for_people_without_scripts_too():
    reader = read(page_of(["a"], title="mini: a sentence"))
    tags = [tag for tag, _ in reader.elements]
    assert ("html", {"lang": "en"}) in reader.elements
    assert "noscript" in tags
    assert reader.texts["h1"] == "mini: a sentence"


def test_every_element_that_the_scripts_ask_for_is_there():
    page = page_of(["a"])
    asked = set(re.findall(r'element\("([a-z-]+)"\)', page))
    there = {attributes["id"] for _, attributes in read(page).elements if "id" in attributes}
    assert len(asked) > 10
    assert asked <= there


@pytest.mark.parametrize(
    ("num_layers", "num_heads", "num_tokens", "most"),
    [(12, 12, 60, 800_000), (4, 4, 512, 6_000_000), (2, 2, 8, 40_000)],
)
def test_the_page_stays_small(num_layers, num_heads, num_tokens, most):
    weights = some_attentions(num_layers, num_heads, num_tokens)
    page = attention_page(["##token"] * num_tokens, [0] * num_tokens, weights, "base")
    assert len(page.encode()) < most


def test_the_same_weights_give_the_same_page():
    assert page_of(["a", "b", "c"]) == page_of(["a", "b", "c"])


def test_all_zero_weights_are_zero():
    page = attention_page(["a"], [0], np.zeros((1, 1, 1, 1), np.float32), "mini")
    assert decoded_weights(page).tolist() == [[[[0.0]]]]


@pytest.mark.parametrize("shape", [(2, 2, 3, 4), (2, 2, 4, 3), (2, 3, 3), (2, 2, 2, 2), (1, 2, 2, 3, 3)])
def test_weights_of_another_shape_are_refused(shape):
    with pytest.raises(AssertionError):
        attention_page(["a", "b", "c"], [0, 0, 1], np.zeros(shape, np.float32), "mini")


@pytest.mark.parametrize("segments", [[0, 0], [0, 0, 0, 1], [0, 1, 2], [-1, 0, 0]])
def test_segments_that_do_not_fit_are_refused(segments):
    with pytest.raises(AssertionError, match="segment"):
        attention_page(["a", "b", "c"], segments, some_attentions(1, 1, 3), "mini")


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5])
def test_weights_of_a_damaged_model_are_a_user_error(value):
    weights = some_attentions(1, 2, 3)
    weights[0, 1, 2, 0] = value
    with pytest.raises(UserError, match="damaged"):
        attention_page(["a", "b", "c"], [0, 0, 0], weights, "mini")


def test_a_model_without_layers_is_a_user_error():
    with pytest.raises(UserError, match="0 layers"):
        attention_page(["a"], [0], np.zeros((0, 1, 1, 1), np.float32), "mini")


def test_a_page_that_no_browser_opens_is_a_user_error_that_says_how_long_a_text_may_be():
    num_tokens = 1024
    weights = np.broadcast_to(np.float32(0), (24, 16, num_tokens, num_tokens))
    with pytest.raises(UserError, match="at most 591 tokens"):
        attention_page(["a"] * num_tokens, [0] * num_tokens, weights, "large")
