"""Every piece is found in the text that a person reads."""

import random

import pytest

from bertworks.text.elmo_words import WordTokenizer
from bertworks.text.gpt import GptTokenizer
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.guesses import decoded_positions


def marked(tokenizer, ids):
    """The text with every piece in brackets."""
    text, places = decoded_positions(tokenizer, ids)
    parts, done = [], 0
    for start, end in places:
        parts += [text[done:start], "<", text[start:end], ">"]
        done = end
    assert not text[done:]
    return "".join(parts)


def test_pieces_are_found_in_text_that_is_set_as_in_print():
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "don", "'", "t", "stop", "##ping", ",", "(", ")", "well", "-", "known"])
    encoded = tokenizer.encode("Don't stopping, (well-known)")
    assert marked(tokenizer, encoded.ids[1:-1]) == "<don><'><t> <stop><ping><,> <(><well><-><known><)>"


def test_a_text_that_begins_inside_a_word_says_so():
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "##quiry", "##ing", "ask", "."])
    assert marked(tokenizer, [5, 6, 7, 6, 8]) == "<##quiry><ing> <ask><ing><.>"


def test_any_ids_give_the_text_of_decode_with_each_piece_in_its_place(pieces):
    tokenizer = Tokenizer([piece for piece in pieces if piece.isascii()])
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(SPECIAL_TOKENS), len(tokenizer.pieces)) for _ in range(rng.randint(1, 20))]
        text, places = decoded_positions(tokenizer, ids)
        assert text == tokenizer.decode(ids)
        for id, (start, end) in zip(ids, places, strict=True):
            piece = tokenizer.pieces[id]
            assert text[start:end] == piece or "##" + text[start:end] == piece


def test_hangul_in_parts_is_shown_plainly():
    """Accent stripping takes syllables apart; print would join letters of two pieces to one."""
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "\u1112\u1161", "##\u11ab", "\u1100\u1173", "##\u11af", "."])
    ids = tokenizer.encode("한 글.").ids[1:-1]
    assert tokenizer.decode(ids) == "한 글."
    assert marked(tokenizer, ids) == "<\u1112\u1161><\u11ab> <\u1100\u1173><\u11af> <.>"


def test_whole_syllables_are_found():
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "한국", "##어", "##는", "쉽", "##다", "."], strip_accents=False)
    ids = tokenizer.encode("한국어는 쉽다.").ids[1:-1]
    assert marked(tokenizer, ids) == "<한국><어><는> <쉽><다><.>"


def test_pieces_of_gpt_are_found_by_the_ends_of_their_words():
    pieces = ["<unk>", "l", "o", "w", "l</w>", "o</w>", "w</w>", "lo", "low</w>"]
    tokenizer = GptTokenizer(pieces, [("l", "o"), ("lo", "w</w>")])
    ids = [pieces.index(piece) for piece in ("low</w>", "lo", "w", "o</w>", "l</w>")]
    assert marked(tokenizer, ids) == "<low> <lo><w><o> <l>"


def test_words_are_pieces():
    tokenizer = WordTokenizer(["<S>", "</S>", "<UNK>", "so", "it", "is"], Rules())
    assert marked(tokenizer, [3, 4, 5]) == "<so> <it> <is>"


@pytest.mark.parametrize("ids", [[], [1]])
def test_nothing_and_the_unknown_have_their_places_too(ids):
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "a"])
    assert marked(tokenizer, ids) == "<[UNK]>" * len(ids)
