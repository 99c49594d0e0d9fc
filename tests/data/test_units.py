"""Where a corpus is cut depends on its text alone, and cutting loses nothing."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.data import prepare as units
from bertworks.data.prepare import cut_units
from bertworks.files import digest64

UNIT_BYTES = 40
LINES = st.text("abc 가é", min_size=1, max_size=12).filter(str.strip)  # at most 36 bytes
DOCUMENTS = st.lists(st.lists(LINES, min_size=1, max_size=12), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_units():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", UNIT_BYTES)
        yield


def corpus_text(documents):
    return "".join("\n".join(lines) + "\n\n" for lines in documents)


def cut_anywhere(text, places):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@settings(max_examples=examples(300), deadline=None)
@given(documents=DOCUMENTS, places=st.lists(st.integers(0, 10_000), max_size=30), drop=st.booleans())
def test_cuts_do_not_depend_on_how_the_text_arrives(documents, places, drop):
    text = corpus_text(documents)
    whole = list(cut_units([text], drop_duplicates=drop))
    assert list(cut_units(cut_anywhere(text, places), drop_duplicates=drop)) == whole
    assert list(cut_units(text, drop_duplicates=drop)) == whole  # character by character
    assert [unit.number for unit in whole] == list(range(len(whole)))


@settings(max_examples=examples(300), deadline=None)
@given(documents=DOCUMENTS)
def test_nothing_is_lost_and_units_end_with_documents_unless_one_is_giant(documents):
    text = corpus_text(documents).encode()
    found = list(cut_units([text.decode()]))
    assert b"".join(unit.text for unit in found) == text
    for unit in found:
        is_inside_giant = not unit.text.endswith(b"\n\n")
        assert not is_inside_giant or len(unit.documents()) == 1
        assert unit.text.endswith(b"\n")
        assert not unit.text.startswith(b"\n")
        assert len(unit.text) <= 2 * UNIT_BYTES + 1
    ordinary = [lines for lines in documents if len(corpus_text([lines]).encode()) <= 2 * UNIT_BYTES]
    whole = [document for unit in found for document in unit.documents()]
    assert all("\n".join(lines).encode() in whole for lines in ordinary)


@settings(max_examples=examples(100), deadline=None)
@given(documents=DOCUMENTS)
def test_units_are_filled(documents):
    text = corpus_text(documents).encode()
    found = list(cut_units([text.decode()]))
    end = 0
    for unit in found[:-1]:
        end += len(unit.text)
        next_document = text[end:].split(b"\n\n")[0] + b"\n\n"
        assert len(unit.text) >= UNIT_BYTES or len(unit.text + next_document) > 2 * UNIT_BYTES


def test_a_giant_document_is_cut_at_line_ends():
    lines = [f"line {number} of a long story" for number in range(50)]
    found = list(cut_units(["short\n\n", *(f"{line}\n" for line in lines), "\n", "after\n\n"]))
    assert found[0].documents() == [b"short"]
    assert len(found) > 10
    pieces = [piece for unit in found[1:] for piece in unit.documents()]
    assert b"\n".join(pieces) == "\n".join([*lines, "after"]).encode()


def test_a_document_end_across_the_limit_stays_one():
    giant = "x" * 30 + "\n" + "y" * 30 + "\n" + "z" * 17  # with its line end exactly two units
    first, *rest = cut_units([giant, "\n", "\n", "next one\n\n"])
    assert (first.text, [unit.text for unit in rest]) == (f"{giant}\n\n".encode(), [b"next one\n\n"])


def test_the_first_of_duplicates_is_kept_across_units():
    documents = [f"document {number % 7}\nline" for number in range(40)] + ["document 1"]
    found = list(cut_units((f"{document}\n\n" for document in documents), drop_duplicates=True))
    assert len(found) > 5
    kept = [document.decode() for unit in found for document in unit.documents()]
    assert kept == list(dict.fromkeys(documents))
    assert sum(unit.num_duplicates for unit in found) == len(documents) - len(kept)


def test_duplicates_stay_unless_asked():
    found = list(cut_units(["same\n\n" * 20]))
    assert sum(len(unit.documents()) for unit in found) == 20
    assert not any(unit.num_duplicates for unit in found)


def test_no_text_gives_no_units():
    assert list(cut_units([])) == []
    assert list(cut_units(["", ""])) == []


@settings(max_examples=examples(200), deadline=None)
@given(documents=DOCUMENTS, drop=st.booleans())
def test_pieces_of_a_document_that_was_cut_go_on_from_the_first(documents, drop):
    expected, first_piece = [], None
    for unit in cut_units([corpus_text(documents)]):
        expected.append(digest64(first_piece) if first_piece else b"")
        if unit.text.endswith(b"\n\n"):
            first_piece = None
        else:
            first_piece = first_piece or unit.documents()[0]
    found = list(cut_units([corpus_text(documents)], drop_duplicates=drop))
    if drop:  # a piece that was dropped takes its key with it
        expected = [key if unit.first_piece_key else b"" for key, unit in zip(expected, found, strict=True)]
    assert [unit.first_piece_key for unit in found] == expected


def test_what_follows_a_dropped_piece_does_not_follow_its_choice():
    giant = "".join(f"line {number} of a long story\n" for number in range(9)) + "\n"
    found = list(cut_units([giant, giant, "after\n\n"], drop_duplicates=True))
    assert sum(unit.num_duplicates for unit in found) > 0
    (last,) = [unit for unit in found if b"after" in unit.documents()]
    assert (last.documents(), last.first_piece_key) == ([b"after"], b"")
