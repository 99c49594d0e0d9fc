"""Texts that tokenizers get wrong, as hypothesis strategies: every category of character, and the known traps."""

import sys
import unicodedata
from collections import defaultdict
from functools import cache

from hypothesis import strategies as st

# U+302E, U+1D165 and U+16FF0 combine without being accents, so canonical order moves them past each other and past
# accents; U+034F and U+0C48 are accents that stop them.
COMBINING = "\u0301\u0316\u0344\u0345\u034f\u0c48\u302e\u302f\u1b44\U00016ff0\U0001d165\U0001d16d\U0001d15f\u20dd\u0903"
SIGMA_NEIGHBOURS = "ΣΣΣσςAaα1-_.'’:·\u00ad\u200d\u0301\u0345\u02b0ⅷª漢가 \u2028\0"
CASE_SPECIALS = "İIıßẞςΣǄǅﬀŉǰΐΰẖÅKΩҐԱᾈᾼ"
SPACES_AND_CONTROLS = (
    " \t\n\r\v\f\x1c\x1f\x85\xa0\xad\u1680\u180e\u2002\u200b\u200e\u2028\u2029\u202f\u3000\ufeff\0\ufffd\x07"
)
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡§«»·¿‐–—‘’“”…、。〈〉「」！？￥\u037e\u0387\u1fef≠≮"
EMOJI = "👩👨👧🏽🇰🇷❤☕\u200d\ufe0f\ufe0e\u20e3\U000e0067\U000e007f"
CJK_BOUNDS = (
    0x3400, 0x4DC0, 0x4E00, 0xA000, 0xF900, 0xFB00, 0x20000, 0x2A6E0, 0x2A700, 0x2B740, 0x2B820, 0x2B920, 0x2CEB0,
    0x2F800, 0x2FA20,
)  # fmt: skip
CJK_EDGES = [chr(point + near) for point in CJK_BOUNDS for near in (-2, -1, 0, 1, 2)]
LOOK_ALIKES = ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[unused1]", "##ing", "##", "[mask", "[ MASK ]", "<s>"]


@cache
def points_by_category():
    points = defaultdict(list)
    for point in range(sys.maxunicode + 1):
        points[unicodedata.category(chr(point))].append(point)
    return points


@st.composite
def _any_scalar(draw):
    points = draw(st.sampled_from(sorted(points_by_category().items())))[1]
    return chr(points[draw(st.integers(0, len(points) - 1))])


def _some(chars, most=12):
    return st.lists(st.sampled_from(chars), min_size=1, max_size=most).map("".join)


_words = st.sampled_from(
    [
        "the",
        "quick",
        "fox",
        "jumping",
        "unaffable",
        "Tokenizers",
        "DON'T",
        "Café",
        "한국어",
        "가나다라",
        "東京",
        "naïve",
    ]
)
_long_words = st.tuples(_some("ab한é\u0301Σ", 4), st.sampled_from([99, 100, 101, 199, 200, 201, 202]))
_parts = st.one_of(
    st.lists(_any_scalar(), min_size=1, max_size=8).map("".join),
    _some("ae한" + COMBINING),
    _some(CJK_EDGES, 6),
    _some(SPACES_AND_CONTROLS + "ab"),
    _some(PUNCTUATION + "ab"),
    _some(CASE_SPECIALS + "ab"),
    _some(SIGMA_NEIGHBOURS),
    _some(EMOJI),
    st.sampled_from(LOOK_ALIKES),
    _words,
    st.just(" "),
)
texts = st.one_of(
    st.lists(_parts, max_size=24).map(lambda parts: "".join(parts)[:400]),
    _long_words.map(lambda word: (word[0] * word[1])[: word[1]] + " end"),
)
