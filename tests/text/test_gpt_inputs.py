"""GPT-1's inputs: special pieces around texts, both texts of a pair cut alike, and nothing smuggled in by a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import GPT_PIECES, MERGES

from bertworks.errors import UserError
from bertworks.text.gpt import FINE_TUNING_TOKENS, GptInputs, GptTokenizer, with_special_pieces
from bertworks.text.vocabulary import CLS, SEP

INPUTS = GptInputs(with_special_pieces(GptTokenizer(GPT_PIECES, MERGES)))
TEXTS = st.lists(st.sampled_from(["the", "cat", "dog", "a"]), max_size=12).map(" ".join)


def test_missing_pieces_come_last_and_are_not_doubled():
    assert INPUTS.pieces == [*GPT_PIECES, *FINE_TUNING_TOKENS]
    assert with_special_pieces(INPUTS.tokenizer) is INPUTS.tokenizer
    some = GptTokenizer([*GPT_PIECES, "_delimiter_"], MERGES)
    assert with_special_pieces(some).pieces[-3:] == ["_delimiter_", "_start_", "_classify_"]


def test_texts_and_pairs_stand_between_special_pieces():
    alone = INPUTS.encode("the cat")
    assert alone.tokens == ["_start_", "the</w>", "cat</w>", "_classify_"]
    assert alone.segment_ids == [0, 0, 0, 0]
    (pair,) = INPUTS.encode_batch(["the cat"], ["dog"])
    assert pair.tokens == ["_start_", "the</w>", "cat</w>", "_delimiter_", "dog</w>", "_classify_"]
    assert pair.segment_ids == [0, 0, 0, 0, 1, 1]
    assert pair.offsets == [(0, 0), (0, 3), (4, 7), (0, 0), (0, 3), (0, 0)]
    assert pair.word_ids == [None, 0, 1, None, 0, None]
    assert (INPUTS.id_of(CLS), INPUTS.id_of(SEP)) == (pair.ids[0], pair.ids[3])


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS, st.integers(3, 20))
def test_a_pair_is_cut_alike_in_either_order_and_fits(first, second, length):
    (one,), (other,) = (INPUTS.encode_batch([a], [b], length) for a, b in ((first, second), (second, first)))
    whole = len(INPUTS.encode_batch([first], [second])[0])
    assert len(one) == len(other)
    assert min(whole, length) - 1 <= len(one) <= length
    assert len(one) == whole or whole > length
    middle = one.tokens.index("_delimiter_")
    turned = [one.ids[0], *one.ids[middle + 1 : -1], one.ids[middle], *one.ids[1:middle], one.ids[-1]]
    assert turned == other.ids
    assert len(INPUTS.encode_batch([first], None, length)[0]) <= length


def test_special_pieces_in_a_text_are_plain_text():
    """Nobody can write a delimiter into a text."""
    special = {INPUTS.id_of(piece) for piece in FINE_TUNING_TOKENS}
    assert not special & set(INPUTS.encode("_start_ _delimiter_ _classify_").ids[1:-1])


@pytest.mark.parametrize("pairs", [None, ["cat"]])
def test_a_length_without_room_is_a_user_error(pairs):
    with pytest.raises(UserError, match="special pieces alone take"):
        INPUTS.encode_batch(["the"], pairs, 1 if pairs is None else 2)


def test_missing_pairs_are_a_user_error():
    with pytest.raises(UserError, match="2 texts but 1 pair"):
        INPUTS.encode_batch(["a", "b"], ["c"])


def test_a_vocabulary_without_special_pieces_is_refused():
    with pytest.raises(UserError, match="_start_"):
        GptInputs(GptTokenizer(GPT_PIECES, MERGES))
