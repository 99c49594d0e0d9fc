"""A part of a train set: always the same, whatever the seed, with documents kept together."""

from bertworks.finetuning.session import some_of
from bertworks.tasks.task import TextExample, words_example

TEXTS = [TextExample(str(number), f"text {number}", None, "x") for number in range(100)]


def test_a_part_is_a_shuffle_in_the_old_order_and_smaller_parts_are_within_larger_ones():
    some, more = some_of(TEXTS, 10), some_of(TEXTS, 40)
    assert (len(some), len(more)) == (10, 40)
    assert some == [example for example in TEXTS if example in some]
    assert set(some) < set(more)
    assert some != TEXTS[:10]
    assert some_of(TEXTS, 10) == some


def test_no_limit_and_one_beyond_the_end_give_all():
    assert some_of(TEXTS, 0) == some_of(TEXTS, 100) == some_of(TEXTS, 1_000) == TEXTS


def test_sentences_of_a_document_stay_together():
    sentences = [
        words_example(f"{document}.{number}", ["a"], ("O",), document) for document in range(9) for number in range(5)
    ]
    some = some_of(sentences, 13)
    sizes = sorted(sum(sentence.document == document for sentence in some) for document in {s.document for s in some})
    assert sizes == [3, 5, 5]
    assert some_of(sentences, 45) == sentences
