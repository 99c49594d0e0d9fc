"""Questions in SQuAD's JSON, as they should be and as they should not (T9)."""

import json
import time

import pytest

from bertworks.tasks import TASKS
from bertworks.tasks.own_files import open_own
from bertworks.tasks.squad import located_answer
from bertworks.tasks.task import NOT_LOCATED, Answer, Skipped, open_dataset

CONTEXT = "The Rhine rises in the Alps. The Rhine is long."


def question(name="q1", answers=((19, "the Alps"),), **more):
    written = [{"answer_start": start, "text": text} for start, text in answers]
    return {"id": name, "question": "Where does it rise?", "answers": written, **more}


def squad(*questions, context=CONTEXT):
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


@pytest.fixture
def dataset(write, tmp_path):
    """Gives a function that writes the same content as train and dev set of SQuAD 2.0 and opens it."""

    def open_content(content):
        for split in ("train", "dev"):
            write(f"{split}-v2.0.json", content if isinstance(content, str) else json.dumps(content))
        return open_dataset(TASKS["squad2"], tmp_path)

    return open_content


def test_questions_come_with_all_answers_and_their_places(dataset):
    content = squad(question(answers=((19, "the Alps"), (23, "Alps"))), question("q2", (), is_impossible=True))
    first, second = dataset(content).examples("dev")
    assert first.answers == (Answer(19, "the Alps"), Answer(23, "Alps"))
    assert all(first.context.startswith(answer.text, answer.start) for answer in first.answers)
    assert (first.id, first.question, first.is_impossible) == ("q1", "Where does it rise?", False)
    assert (second.answers, second.is_impossible) == ((), True)


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (((18, "the Alps"),), "at its answer_start"),
        (((-5, "long."),), "at its answer_start"),
        (((10**12, "Alps"),), "at its answer_start"),
        (((0, "the Andes"),), "in the context"),
        (((0, ""),), "in the context"),
    ],
)
def test_an_answer_that_is_not_at_its_place_is_left_out_of_training_counted_and_kept_for_scores(
    dataset, answers, place
):
    opened = dataset(squad(question(answers=answers), question("q2")))
    skipped = Skipped()
    assert [example.id for example in opened.examples("train", skipped)] == ["q2"]
    assert skipped.counts == {f"questions whose answer is not {place}": 1}
    assert [example.id for example in opened.examples("dev")] == ["q1", "q2"]


def test_an_empty_list_of_answers_says_in_squad_2_that_there_is_none_and_this_is_told(dataset):
    opened = dataset(squad(question(answers=()), question("q2", (), is_impossible=False), question("q3")))
    skipped = Skipped()
    assert {example.id: example.is_impossible for example in opened.examples("train", skipped)} == {
        "q1": True, "q3": False,
    }  # fmt: skip
    assert str(skipped) == (
        "read as impossible: 1 question with an empty list of answers (first: train-v2.0.json, example q1); left out: "
        '1 question without an answer and without "is_impossible": true (first: train-v2.0.json, example q2)'
    )


@pytest.mark.parametrize(("version", "is_impossible"), [("v2.0", True), (None, True), ("1.1", False), ("v1.1", False)])
def test_in_your_own_file_it_does_where_others_have_answers_and_its_version_is_not_1(write, version, is_impossible):
    content = squad(question("q1", ()), question("q2")) | {"version": version}
    dataset = open_own("answer", {"dev": write("a.json", json.dumps(content))})
    assert [example.is_impossible for example in dataset.examples("dev")] == [is_impossible, False]
    assert dataset.task.has_impossible == is_impossible


def test_a_file_without_any_answer_says_nothing_of_its_questions(write):
    content = json.dumps(squad(question("q1", ()), question("q2", ())))
    skipped = Skipped()
    dataset = open_own("answer", {"test": write("a.json", content)})
    assert [example.is_impossible for example in dataset.examples("test", skipped)] == [False, False]
    assert not skipped


def test_answers_of_a_file_to_predict_are_left_alone(write):
    content = json.dumps(squad(question("q1", ()), question("q2"), question("q3", (), is_impossible=True)))
    dataset, skipped = open_own("answer", {"test": write("a.json", content)}, to_predict=True), Skipped()
    assert {(example.answers, example.is_impossible) for example in dataset.examples("test", skipped)} == {((), False)}
    assert not skipped


def test_one_located_answer_of_several_is_enough(dataset):
    opened = dataset(squad(question(answers=((0, "Alps"), (23, "Alps")))))
    (example,) = opened.examples("train")
    assert [answer.start for answer in example.answers] == [NOT_LOCATED, 23]


def test_an_answer_without_a_place_is_taken_where_it_first_occurs():
    assert located_answer("Rhine", None, CONTEXT) == Answer(4, "Rhine")
    assert located_answer("Rhône", None, CONTEXT) == Answer(NOT_LOCATED, "Rhône")


def test_an_id_that_comes_twice_is_refused(dataset, refusal):
    assert "two questions have the id 'q1'" in refusal(dataset(squad(question(), question())).examples("dev"))


def test_the_stand_in_for_the_train_set_is_two_files_and_says_so(write, tmp_path):
    write("squad/train-v1.1.json", json.dumps(squad(question())))
    write("derived/squad_v2_negatives.json", json.dumps(squad(question("n1", (), is_impossible=True))))
    opened = open_dataset(TASKS["squad2"], tmp_path)
    assert {example.id: example.is_impossible for example in opened.examples("train")} == {"q1": False, "n1": True}
    assert "not SQuAD 2.0's" in opened.notes[0]


WRONG = [
    ("[]", "a list where an object with 'data'"),
    ("{}", "no 'data'; there are: none"),
    ('{"data": {}}', ".data: an object where a list"),
    ('{"data": [7]}', "data[0]: a whole number where an object with 'paragraphs'"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', "data[0].paragraphs[0]: no 'context'; there are: 'qas'"),
    ('{"data": [{"paragraphs": [{"context": null, "qas": []}]}]}', "paragraphs[0].context: null where a string"),
    (squad("text"), "qas[0]: a string where an object"),
    (squad({"id": "q", "answers": []}), "qas[0]: no 'question'"),
    (squad({"question": "?", "answers": []}), "qas[0]: no 'id'"),
    (squad({"id": [1], "question": "?", "answers": []}), "qas[0].id: a list where a string"),
    (squad({"id": "q", "question": "?", "answers": {}}), "qas[0].answers: an object where a list"),
    (squad({"id": "q", "question": "?", "answers": ["x"]}), "answers[0]: a string where an object"),
    (squad({"id": "q", "question": "?", "answers": [{"text": 4}]}), "answers[0].text: a whole number where a string"),
    (
        squad({"id": "q", "question": "?", "answers": [{"text": "a", "answer_start": "4"}]}),
        "answers[0].answer_start: a string where a whole number",
    ),
    (
        squad({"id": "q", "question": "?", "answers": [{"text": "a", "answer_start": True}]}),
        "answers[0].answer_start: true or false where a whole number",
    ),
    (squad(question(is_impossible="yes")), "qas[0].is_impossible: a string where true or false"),
    ('{"data": ' + "[" * 100_000, "nested too deeply"),
    ('{"data": [' + "9" * 5_000 + "]}", "not JSON"),
    ('{"data": [], "x": NaN}', "NaN is no JSON value"),
    ('{"data": [', "not JSON"),
    ("", "not JSON"),
]


@pytest.mark.parametrize(("content", "words"), WRONG)
def test_a_wrong_type_is_told_with_its_file_and_its_place(dataset, refusal, content, words):
    told = refusal(dataset(content).examples("dev"))
    assert "dev-v2.0.json" in told
    assert words in told


def test_a_context_of_ten_megabytes_is_read_in_no_time(dataset):
    context = "word " * 2_000_000 + "end."
    opened = dataset(squad(question(answers=((10_000_000, "end."),)), context=context))
    start = time.process_time()
    (example,) = opened.examples("train")
    assert len(example.context) == 10_000_004
    assert time.process_time() - start < 2


def test_a_byte_order_mark_and_numbers_as_ids_are_read(write, tmp_path):
    write("dev-v1.1.json", "\ufeff" + json.dumps(squad(question(7))))
    (example,) = open_dataset(TASKS["squad1"], tmp_path).examples("dev")
    assert example.id == "7"


def test_an_id_may_be_called_guid_as_in_klue(write, tmp_path):
    content = squad(question())
    (asked,) = content["data"][0]["paragraphs"][0]["qas"]
    asked["guid"] = "klue-mrc-v1_train_12759" if asked.pop("id") else ""
    write("dev-v1.1.json", json.dumps(content))
    (example,) = open_dataset(TASKS["squad1"], tmp_path).examples("dev")
    assert example.id == "klue-mrc-v1_train_12759"


def test_korquad_has_the_form_of_squad(write, tmp_path):
    write("korquad/KorQuAD_v1.0_dev.json", json.dumps(squad(question())))
    assert [example.id for example in open_dataset(TASKS["korquad"], tmp_path).examples("dev")] == ["q1"]
