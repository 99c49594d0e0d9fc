"""A task's texts as documents: every text once, in order, on a line of its own, and nothing of the labels."""

from bertworks.tasks.task import Answer, ChoiceExample, SpanExample, TagExample, TextExample, documents, words_example


def test_each_example_is_a_document():
    examples = [TextExample("0", "A b.", "C?", "yes"), TextExample("1", "A b.", None, "no")]
    assert list(documents(examples)) == [["A b.", "C?"], ["A b."]]


def test_the_same_text_in_two_examples_is_in_both():
    assert list(documents([TextExample(str(number), "A.", None, None) for number in (0, 1)])) == [["A."], ["A."]]


def test_no_text_breaks_a_line_or_a_document():
    assert list(documents([TextExample("0", " A\n\nb.\u2028 c\r", "\td ", 1.0)])) == [["A b. c", "d"]]


def test_a_text_that_is_empty_makes_no_line_and_no_document():
    examples = [TextExample("0", "", " ", "x"), TextExample("1", "a", "", "x"), ChoiceExample("2", "", ("b", ""), 0)]
    assert list(documents(examples)) == [["a"], ["b"]]


def test_ways_to_go_on_stand_below_what_they_go_on_from():
    assert list(documents([ChoiceExample("0", "a", ("b", "c", "b"), 1)])) == [["a", "b", "c"]]


def test_sentences_of_one_document_stay_together():
    tagged = [words_example(str(n), ["w", str(n)], ("O", "B-X"), document) for n, document in enumerate((4, 4, 5, 4))]
    assert list(documents(tagged)) == [["w 0", "w 1"], ["w 2"], ["w 3"]]
    assert isinstance(tagged[0], TagExample)


def test_a_context_stands_once_above_its_questions():
    def asked(question, context):
        return SpanExample("", question, context, (Answer(0, "secret"),), False)

    examples = [asked("p?", "C."), asked("q?", "C."), asked("p?", "D."), asked("r?", "C.")]
    assert list(documents(examples)) == [["C.", "p?", "q?"], ["D.", "p?"], ["C.", "r?"]]
