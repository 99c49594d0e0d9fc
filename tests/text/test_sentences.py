"""What the sentence splitter promises: where it ends sentences, that it loses nothing, and that it is linear."""

import time
from itertools import pairwise

import pytest
import sentence_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_cases import Case, boundary_f1, parse_case
from sweeps import examples

from bertworks.text.sentences import sentence_spans, split_sentences

LEAST_F1 = 0.97
HALVES = ["HELD_OUT_ENGLISH", "TUNED_ENGLISH", "HELD_OUT_KOREAN", "TUNED_KOREAN"]
TRICKY = st.text(alphabet=".!?…。！ \n\t\u3000\"'”’)([]1aAbTheMr다요라고ㅋ~^😀\ud800", max_size=60)


def cases_named(name: str) -> list[Case]:
    cases: list[Case] = getattr(sentence_cases, name)
    return cases


@pytest.mark.parametrize("name", HALVES)
def test_boundary_f1_is_at_least_97_percent_on_every_half(name: str) -> None:
    assert boundary_f1(cases_named(name), sentence_spans) >= LEAST_F1


@pytest.mark.parametrize("name", ["ENGLISH", "KOREAN"])
def test_boundary_f1_is_not_below_that_of_pysbd(name: str) -> None:
    pysbd = pytest.importorskip("pysbd", reason="NOT COMPARED: pysbd is missing; pip install pysbd to compare with it")
    segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)

    def spans_of(text: str) -> list[tuple[int, int]]:
        return [(span.start, span.start + len(span.sent.rstrip())) for span in segmenter.segment(text)]

    assert boundary_f1(cases_named(name), sentence_spans) >= boundary_f1(cases_named(name), spans_of)


def test_the_score_counts_missed_and_false_ends() -> None:
    case = parse_case("One. | Two. | Three.")
    assert boundary_f1([case], sentence_spans) == 1.0
    assert boundary_f1([case], lambda text: [(0, 4), (5, len(text))]) == pytest.approx(2 / 3)
    assert boundary_f1([case], lambda text: [(0, end) for end in (2, 4, 9, len(text))]) == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    "marked",
    [
        # Abbreviations: some never end a sentence, some do when a sentence could start behind them.
        "Mr. Moss met Dr. Lee at St. Anne's, i.e. at church, vs. at home, approx. twice.",
        "He sued Apex Inc. | It lost. | She left the U.S. | Then she wrote to the U.S. Senate.",
        "We met at 5 p.m. Tuesday. | We left at 9 a.m. | Nobody noticed.",
        "It is No. 5 on the list. | Is it? | No. | That was Jan. 5, see Fig. 2 and Vol. IV.",
        "E. M. Ode and J.K. Ray wrote it for George F. Hill. | You and I. | Stop.",
        "Dr. Who met Mr. So vs. The Band on Sat. Jan. 5, see Fig. A there.",
        "He took vitamin C. | Birds sang. | It rose to 300 m. | Birds sang at 5 °C. | Birds sing.",
        "Bring nuts, figs, etc. | Bread etc. is there.",
        # Numbers, versions, addresses and file names.
        "Pi is 3.14. | It cost $1.50. | Use v2.0.1. | It grew by 4.5%. | That was in 1962. | 300 people came.",
        "Go to www.example.org. | Or write to a.b@example.org. | Open read.me first. | It is on http://a.example/x?y=z.",
        "It is at x.example/b. | Birds sing. | Mail it to a@b.c. | Birds sing. | Two steps: 1. Wash. | 2. Dry.",
        # Stops in runs, in quotes, in brackets, before citations, in lists.
        "Wait... what?! | Really? | Yes… | Fine!!! | the end is near.",
        '"Go away!" he said. | He said "Go." | Then he left. | "Why?" Ann asked. | She said "Why?" | Ann said nothing.',
        "(It was late.) | He came (by bus). | The [...] State (see p. 4, sic!) fell. | 'Oh.' | She sat.",
        'It ended. ... | Birds sang. | "Sing!" (Part 2) was a hit. | She called it "fine." | (He did not.)',
        "It fell.[1] | It rose.[2][3] | It stood. [4] | The end.",
        "1. First we mix. | 2. Then we bake.",
        "2.1. Data were few.",
        "He paid five dollars.|Then he left. | He uses Node.js and System.Out daily.",
        "he saw it. | it ran! | so did mr. fox. | why?",
        # Korean: endings, quotations carried on by a particle, dates, numbers, moods, missing blanks.
        "그는 갔다. | 왜 갔을까? | 몰라요. | 그렇죠! | 참가함. | 끝났음.",
        '"가자."라고 말했다. | “간다.”고 했다. | ‘왜?’라는 말이다. | "가자!" 하고 외쳤다. | "가자." | 그가 말했다.',
        '그는 "배가 고프다. 밥을 먹자."라고 말했다. | “아니다. 맞다”며 웃었다. | "왜? 언제?"라고 물었다.',
        "2020. 5. 3. 서울에서 열렸다. | 1.5배 늘었다. | 3. 2.부터이다. | 그렇다(2019년). | 존 F. 리가 썼다.",
        "그는 잤다.|그는 깼다.|정말일까?|아니에요.|네.|알겠어요.",
        "좋아요ㅋㅋㅋ | 또 올게요ㅠㅠ | 싸네요~ | 최고예요👍 | 음… 글쎄요. | 저는... 몰라요. | 갔다... | 왔다.",
        "가. 자격은 없다. | 나. 기간은 길다. | 그림 2. 지도를 보라. | 가.나.다.라 순서이다.",
        "드라마 《가자!》 1회를 봤다. | iOS를 쓴다. | e스포츠도 한다.",
        # Full-width stops need no blank.
        "你好。|我是学生！|你呢？ | “走吧。”|他说。|「行くぞ。」と言った。|彼は走った！？",
        "It is done. | 끝났다. | This is 한국어. | 그렇다.",
    ],
)
def test_sentences_end_where_a_reader_ends_them(marked: str) -> None:
    case = parse_case(marked)
    assert split_sentences(case.text) == list(case.sentences)


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\u2028", " \n\n "])
def test_a_line_break_always_ends_a_sentence(line_break: str) -> None:
    assert split_sentences(f"the Mr.{line_break}and so on,{line_break}on") == ["the Mr.", "and so on,", "on"]


@pytest.mark.parametrize("text", ["", " ", "\n \t\n", "\u3000"])
def test_blank_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


@pytest.mark.parametrize("blank", ["  ", "\t", "\xa0", "\u3000"])
@pytest.mark.parametrize("name", ["ENGLISH", "KOREAN"])
def test_any_kind_of_blank_between_sentences_will_do(name: str, blank: str) -> None:
    cases = [Case(blank.join(case.sentences), case.sentences) for case in cases_named(name)]
    assert boundary_f1(cases, sentence_spans) >= LEAST_F1


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.one_of(TRICKY, st.text(max_size=60), st.text(st.characters(categories=["Cs", "Po", "Zs", "Lo"]), max_size=60))
)
def test_no_text_raises_and_nothing_but_white_space_is_lost(text: str) -> None:
    """T5, for sentences."""
    spans = sentence_spans(text)
    sentences = split_sentences(text)
    assert sentences == [text[start:end] for start, end in spans]
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert "".join("".join(sentences).split()) == "".join(text.split())


@given(st.lists(st.sampled_from(sentence_cases.ENGLISH + sentence_cases.KOREAN), max_size=4))
def test_paragraphs_of_a_text_do_not_change_each_other(cases: list[Case]) -> None:
    together = split_sentences("\n".join(case.text for case in cases))
    assert together == [sentence for case in cases for sentence in split_sentences(case.text)]


HOSTILE = {
    "stops": ".",
    "stops of all kinds": ".!?…",
    "spaced stops": ". ",
    "quotes": '"',
    "stops and quotes": '."',
    "open brackets": ".[1 ",
    "letters and stops": "a.b.",
    "one letter": "a",
    "one capital": "A",
    "blanks": " ",
    "line breaks": "\n ",
    "titles": "Mr. ",
    "titles and tabs": "Mr.\t",
    "initials": "J. ",
    "numbers": "1. ",
    "digits": "1.",
    "speakers": '"O?" I said ',
    "unclosed speakers": "o?” I said ",
    "open quotations": '"다. 다"고 "',
    "laughter": "ㅋ",
    "Hangul without blanks": "가.",
    "full-width stops": "。",
}


def seconds_to_split(text: str) -> float:
    start = time.process_time()
    sentence_spans(text)
    return time.process_time() - start


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_time_grows_with_length_only(unit: str) -> None:
    """T4, for sentences: twice the text takes at most 2.3 times as long, at 0.5 MB/s or more."""
    whole = unit * (250_000 // len(unit))
    # Some take a millisecond, which caches and neighbours can double; a quadratic way would take minutes.
    noise_s = 0.02
    # Both halves, so that the two times that are compared are as long and as likely to be disturbed.
    halves_s = long_s = float("inf")
    for _ in range(25):
        halves_s = min(halves_s, sum(seconds_to_split(whole[: len(whole) // 2]) for _ in range(2)))
        long_s = min(long_s, seconds_to_split(whole))
        if long_s <= 2.3 * halves_s / 2 and len(whole) / long_s >= 500_000:
            break
    assert long_s <= 2.3 * halves_s / 2 + noise_s
    assert len(whole) / long_s >= 500_000
