"""Ids back to text: cases of English, Korean and CJK print, each given as the text it should read as."""

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks import Tokenizer
from bertworks.text.normalize import Alphabet, Rules, split_words
from bertworks.text.vocabulary import join_tokens

CASED = Alphabet(Rules(lowercase=False, strip_accents=False))

ENGLISH = [
    "Hello, world! Is it you? Yes; no: maybe…",
    "I don't think they're ours, but we've heard he'll come and she'd go; I'm sure it's Tom's.",
    "I don’t think they’re ours; it’s Tom’s.",
    "It's four o'clock, said Jeanne d'Arc to Mr. O'Brien.",
    "all of the students' books",
    "He said 'yes' and then 'no' to me, and his 'why' was 'how'.",
    'She said "yes" (loudly), and "no" after that.',
    '"Why?" he asked. "Because."',
    "‘Why?’ he asked. “Because.”",
    "Pi is 3.14, not 3.15; it rose by 2.5% to 1,234,567.",
    "In 1999, 2000, 2001 and 12, 13, 14",
    "At 10:30 on 12/25/2020, or 2020-12-25, pages 10–20.",
    "a well-known, state-of-the-art example",
    "the U.S. and the U.K., e.g. at 5 p.m. in A.D. 79.",
    "Plan B. A man came.",
    "It costs $5, €6, £7 or ₩8,000.",
    "Q&A with AT&T and R&D, but salt & pepper",
    "and/or, snake_case, me@example, @you and #1",
    "a word—like this one—or--as typed--that",
    "the war – as it was called – ended",
    "(see [1] and {2})",
    "«Oui», ¿qué? ¡no!",
    "5 + 3 = 8",
]
KOREAN = [
    "안녕하세요, 세계! 괜찮아요?",
    "서울(Seoul)은 대한민국의 수도이다.",
    "바라밀(波羅蜜)의 뜻과 《반야경》(般若經)에서는 다르다.",
    '그는 "간다"라고 말했고 "온다"는 말은 없었다.',
    "그는 '간다'고 했다.",
    "그는 “간다.”라고 하였다.",
    "‘사랑’이란 무엇인가",
    "「헌법」에서 『국어』를 〈시〉로",
    "물가가 5%로 올라 10.5%까지 갔다.",
    "서울(Seoul) 또는 부산(Busan) 등이 있다.",
    "정치·경제·사회",
    "1990~1995년, 3·1 운동, 10:30에",
    "김철수(1990년 ~ 2000년)는",
    "모델(model)이었다. 그것(it)이며 저것(that)으로부터",
]
SPACELESS = ["我爱北京天安门。", "東京は日本の首都です。", "彼は「はい」、と言った。", "漢字와 한글", "大韓民國은"]


def words_of(text):
    return [word.text for word in split_words(text, CASED)]


@pytest.mark.parametrize("text", ENGLISH + KOREAN + SPACELESS)
def test_words_read_as_they_were_printed(text):
    assert join_tokens(words_of(text)) == text


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("C. S. Lewis", "C.S. Lewis"),
        ("漢字 와", "漢字와"),
        ("word — word", "word—word"),
        ("서울 (Seoul)", "서울(Seoul)"),
    ],
)
def test_where_print_is_divided_one_form_is_taken(text, reads):
    assert join_tokens(words_of(text)) == reads


def test_pieces_join_to_words():
    assert join_tokens(["un", "##aff", "##able", ",", "token", "##izer", "##s"]) == "unaffable, tokenizers"
    assert join_tokens(["##ing", "a"]) == "##ing a"  # nothing to continue
    assert join_tokens(["a", "##"]) == "a ##"
    assert join_tokens([]) == ""


def test_special_tokens_stand_alone():
    assert join_tokens(["the", "[MASK]", "##s", "[UNK]", "."]) == "the [MASK] ##s [UNK]."


def test_hangul_letters_become_syllables_again(pieces):
    uncased = Tokenizer(pieces)
    for text in ("한국어를 공부합니다.", "서울(seoul)은 수도이다.", "값이 싸다!"):
        assert uncased.decode(uncased.encode(text).ids) == text
    syllables = "".join(map(chr, range(0xAC00, 0xD7A4)))
    assert "".join(join_tokens([unicodedata.normalize("NFD", syllable)]) for syllable in syllables) == syllables


def test_decoding_leaves_out_what_frames_a_text(pieces):
    tokenizer = Tokenizer(pieces)
    ids = [*tokenizer.encode("the fox.", "the dog?").ids, tokenizer.id_of("[PAD]"), tokenizer.id_of("[MASK]")]
    assert tokenizer.decode(ids) == "the fox. the dog? [MASK]"
    assert tokenizer.decode(ids, keep_special=True) == "[CLS] the fox. [SEP] the dog? [SEP] [PAD] [MASK]"
    assert tokenizer.decode(iter([])) == ""


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from([*"'\"’.,-–—&([)]%a9s", "##", "##a", "", "[CLS]", "가", "는", "漢", "##\u0301", "o", "123"])
    )
)
def test_any_tokens_join_and_nothing_but_spaces_is_added(tokens):
    joined = join_tokens(tokens)
    assert not joined.startswith(" ")
    assert "  " not in joined
    kept = unicodedata.normalize("NFC", joined).replace(" ", "").replace("#", "")
    given = "".join(tokens).replace("#", "")
    assert unicodedata.normalize("NFD", kept) == unicodedata.normalize("NFD", given)


@pytest.mark.parametrize(
    "tokens",
    [["'"], ["s", "'"], ['"'], ["-"], ["."], ["a", "##b"], ["a", "."], ["漢"], [")", "는"], ["##\u0301", "##\u0316"]],
)
def test_joining_takes_linear_time(alone_in_memory, tokens):
    def cpu_time(count):
        began = time.process_time()
        join_tokens(tokens * count)
        return time.process_time() - began

    assert any(cpu_time(40_000) < 8 * cpu_time(10_000) + 0.02 for _ in range(5))
