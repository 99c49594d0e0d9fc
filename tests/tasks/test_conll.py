"""Tagged sentences: columns, documents, and every scheme of tags as IOB2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.tasks import TASKS
from bertworks.tasks.conll import read_conll, tag_labels, to_iob2
from bertworks.tasks.metrics import entities
from bertworks.tasks.task import Skipped, open_dataset

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

Japan NNP B-NP B-LOC
"""
# Prefixes of a first, a middle, a last and a single word; IOB1 has B only where an entity of the same type ends.
SCHEMES = {"IOB1": "IIII", "IOB2": "BIIB", "IOBES": "BIES", "BILOU": "BILU"}


@pytest.fixture
def conll(write, tmp_path):
    def examples(content, split="train"):
        write(f"eng.{split}", content)
        return open_dataset(TASKS["conll2003"], tmp_path).examples(split)

    return examples


def written_in(scheme, spans, length):
    """Write entities, given as (type, start, end), in a scheme of tags."""
    tags = ["O"] * length
    ends = {end: kind for kind, _, end in spans}
    for kind, start, end in spans:
        first, middle, last, single = SCHEMES[scheme]
        if scheme == "IOB1" and ends.get(start) == kind:
            first = single = "B"
        for place in range(start, end):
            prefix = single if end - start == 1 else first if place == start else last if place == end - 1 else middle
            tags[place] = f"{prefix}-{kind}"
    return tags


@st.composite
def entity_spans(draw):
    spans, place = [], 0
    for kind, gap, length in draw(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 2), st.integers(1, 3)))):
        spans.append((kind, place + gap, place + gap + length))
        place += gap + length
    return spans, place + 1


@pytest.mark.parametrize("scheme", SCHEMES)
@given(entity_spans())
def test_every_scheme_becomes_the_same_iob2(scheme, drawn):
    spans, length = drawn
    expected = written_in("IOB2", spans, length)
    assert list(to_iob2(written_in(scheme, spans, length))) == expected
    assert list(entities(expected, strict=True)) == spans


def test_lines_may_end_as_on_old_macs(conll):
    assert list(conll(CONLL.replace("\n", "\r"))) == list(conll(CONLL))


def test_words_tags_and_documents_are_read(conll):
    first, second, third = conll(CONLL)
    assert first.words == ["EU", "rejects"]
    assert first.text == "EU rejects"
    assert first.tags == ("B-ORG", "O")
    assert second.tags == ("B-PER", "I-PER")
    assert first.document == second.document != third.document
    assert [example.id for example in (first, second, third)] == ["0", "1", "2"]


def test_without_marks_every_sentence_is_a_document(conll):
    documents = [example.document for example in conll("a O\n\nb O\n\n\n\nc O")]
    assert len(set(documents)) == 3


def test_a_file_with_a_single_mark_is_split_by_sentences_and_that_is_said(write):
    path, skipped = write("a.txt", "-DOCSTART- -X- O O\n\na O\n\nb B-PER\nc O\n\nd O\n"), Skipped()
    assert [(one.text, one.document) for one in read_conll([path], skipped)] == [("a", 2), ("b c", 3), ("d", 4)]
    assert str(skipped) == "read as a document each: 3 sentences under a single -DOCSTART- (first: a.txt:3)"


def test_a_document_may_start_without_a_blank_line(conll):
    examples = list(conll("-DOCSTART- O\na O\nb O\n-DOCSTART- O\nc O\n"))
    assert [example.words for example in examples] == [["a", "b"], ["c"]]


def test_iob1_of_the_original_files_becomes_iob2(conll):
    (example,) = conll("U.N. NNP I-NP I-ORG\nofficial NN I-NP O\nEkeus NNP I-NP I-PER\nRolf NNP I-NP B-PER\n")
    assert example.tags == ("B-ORG", "O", "B-PER", "B-PER")


def test_tabs_divide_columns_and_a_no_break_space_does_not(conll):
    (example,) = conll("10\u00a0000\tB-MISC\nNT\tI-MISC\n")
    assert example.words == ["10\u00a0000", "NT"]


def test_a_file_of_words_alone_has_no_tags(write):
    (example,) = read_conll([write("words.txt", "Who\nis\nit\n")], Skipped())
    assert (example.words, example.tags) == (["Who", "is", "it"], None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lonely", "1 column where the sentence starts with 4"),
        ("a b c d B-PER", "5 columns where the sentence starts with 4"),
        ("a NN B-NP PER", "'PER' is not a tag; allowed: O, and B- or I-"),
        ("a NN B-NP B-", "'B-' is not a tag"),
        ("a NN B-NP X-PER", "'X-PER' is not a tag"),
        ("a NN B-NP B-CAT", "'B-CAT' has a type that is not known here; allowed: PER, ORG, LOC, MISC"),
        ("a NN B-NP o", "'o' is not a tag"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(conll, refusal, line, words):
    """T9: a missing column, and tags that are none."""
    told = refusal(conll(f"{CONLL}{line}\n"))
    assert "eng.train:12: " in told
    assert words in told


def test_a_table_that_is_no_file_of_tagged_words_is_told_what_is_read(write, refusal):
    told = refusal(read_conll([write("ok.csv", "text,label\na good film,pos\n")], Skipped()))
    assert "ok.csv:2: 3 columns where the sentence starts with 1; a line is a word and, last, its tag" in told
    assert ".jsonl, .json, .parquet" in told


def test_a_sentence_of_two_hundred_thousand_words_is_read(write):
    """T9: a huge sentence, as a file without blank lines is."""
    path = write("huge.txt", "word B-X\nword I-X\n" * 100_000)
    (example,) = read_conll([path], Skipped())
    assert len(example.spans) == len(example.tags) == 200_000


def test_labels_are_outside_first_then_b_and_i_of_each_type():
    assert tag_labels(["PER", "LOC"]) == ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    assert TASKS["conll2003"].labels[:3] == ("O", "B-PER", "I-PER")


def test_spans_are_the_words_inside_the_text(conll):
    for example in conll(CONLL):
        assert example.text.split(" ") == example.words
        assert len(example.spans) == len(example.tags)
