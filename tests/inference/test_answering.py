"""`Model.answer` and the command: answers with their places, in texts of any length, or none."""

import json

import pytest
import torch
from small_models import write_small_model
from window_scores import predict_answers

import bertworks as bw
from bertworks.cli.use import _around
from bertworks.errors import UserError
from bertworks.tasks.heads import BatchLayout
from bertworks.tasks.task import SpanExample
from bertworks.tasks.windows import encode_answers

QUESTION, CONTEXT = "the cat?", "The big cats ran, far away!"
LONGER = "The dog sat on a mat, far away. " * 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("qa"), {"span": 2})


@pytest.fixture(scope="module")
def model(folder):
    return bw.load(folder, device="cpu")


def scores_of(model):
    """Start and end scores of every token, and the encoding, where all fits into one window."""
    encoding = model.tokenizer.encode(QUESTION, CONTEXT)
    with torch.no_grad():
        return encoding, model.net.heads["span"](model.net(model.pack([encoding.ids], [encoding.segment_ids])))


def test_answers_are_the_best_pairs_of_start_and_end(model):
    encoding, scores = scores_of(model)
    inside = [place for place, segment in enumerate(encoding.segment_ids) if segment][:-1]
    pairs = {
        (encoding.offsets[i][0], encoding.offsets[j][1]): float(scores[i, 0] + scores[j, 1])
        for i in inside for j in inside if i <= j
    }  # fmt: skip
    expected = sorted(pairs, key=pairs.get, reverse=True)[:5]
    found = model.answer(QUESTION, CONTEXT, top_k=5)
    assert [(one["start"], one["end"]) for one in found] == expected
    assert all(CONTEXT[one["start"] : one["end"]] == one["text"] for one in found)
    ratio = torch.tensor([pairs[expected[0]] - pairs[expected[1]]]).exp().item()
    assert found[0]["score"] / found[1]["score"] == pytest.approx(ratio, rel=1e-4)


def test_no_answer_wins_above_the_threshold_and_only_there(model):
    _, scores = scores_of(model)
    best = model.answer(QUESTION, CONTEXT)[0]
    example = SpanExample("0", QUESTION, CONTEXT, (), False)
    encoded = encode_answers(model.tokenizer, [example])
    (answered,) = predict_answers(model.net, [example], encoded, BatchLayout(torch.device("cpu")))
    odds = float(scores[0].sum()) - answered.guesses[0].score
    assert answered.null_odds == pytest.approx(odds, abs=1e-4)
    assert model.answer(QUESTION, CONTEXT, threshold=odds + 0.01)[0]["text"] == best["text"]
    nothing, second = model.answer(QUESTION, CONTEXT, threshold=odds - 0.01, top_k=2)
    assert (nothing["text"], nothing["start"], nothing["end"]) == ("", None, None)
    assert second["text"] == best["text"]
    assert nothing["score"] / second["score"] == pytest.approx(torch.tensor([odds]).exp().item(), rel=1e-3)


def test_the_threshold_of_the_folder_counts_unless_one_is_given(tmp_path):
    folder = write_small_model(tmp_path / "a", {"span": 2}, about={"threshold": -1e9})
    model = bw.load(folder, device="cpu")
    assert model.answer(QUESTION, CONTEXT)[0]["text"] == ""
    assert model.answer(QUESTION, CONTEXT, threshold=1e9)[0]["text"] != ""
    broken = write_small_model(tmp_path / "b", {"span": 2})
    (broken / "bertworks.json").write_text('{"threshold": "low"}')
    with pytest.raises(UserError, match=r"bertworks\.json: threshold: 'low' is not a number$"):
        bw.load(broken, device="cpu")


def test_long_contexts_and_questions_are_answered(model):
    """The model reads 20 tokens at once."""
    context = "the big cats sat on a small mat. 😀\n" * 50
    found = model.answer("why " * 100, context, top_k=30)
    assert 20 <= len(found) <= 30
    assert all(context[one["start"] : one["end"]] == one["text"] for one in found)
    assert sum(one["score"] for one in found) == pytest.approx(1)


@pytest.mark.parametrize("context", ["", " \n", "\x00"])
def test_an_empty_context_has_no_answer(model, context):
    assert model.answer(QUESTION, context) == []
    assert model.answer(QUESTION, context, threshold=0.0) == [{"text": "", "start": None, "end": None, "score": 1.0}]


def test_an_empty_question_is_refused_by_itself_and_logged_in_a_list(model, caplog):
    with pytest.raises(UserError, match="the question is empty; give one"):
        model.answer("", CONTEXT)
    assert model.answer([QUESTION, ""], CONTEXT)[1][0]["text"] in CONTEXT
    assert "answer: 1 of 2 texts is empty (number 2)" in caplog.text


def test_many_questions_are_answered_as_each_by_itself(model):
    questions, contexts = [QUESTION, "who sat", QUESTION], [CONTEXT, LONGER, ""]
    for both in ((questions, contexts), (QUESTION, contexts), (questions, CONTEXT)):
        pairs = [[one if isinstance(one, str) else one[number] for one in both] for number in range(3)]
        expected = [model.answer(*pair, top_k=3) for pair in pairs]
        for found, alone in zip(model.answer(*both, top_k=3), expected, strict=True):
            assert [one["text"] for one in found] == [one["text"] for one in alone]
            assert [one["score"] for one in found] == pytest.approx([one["score"] for one in alone], abs=1e-5)
    assert model.answer([], []) == []
    with pytest.raises(UserError, match="answer: 2 texts but 3 for them"):
        model.answer(questions[:2], contexts)


def test_the_command_shows_the_sentence_around_an_answer():
    text = "Nobody knows. The cat sat on a  big mat! Then it left."
    start = text.index("big mat")
    assert _around(text, start, start + 7) == "The cat sat on a [big mat]!"
    start = text.index("sat")
    assert _around(text, start, text.index("left")) == "The cat [sat on a big mat! Then it ]left."
    long = "a " * 5_000 + "cat" + " b" * 5_000
    shown = _around(long, 10_000, 10_003)
    assert shown.startswith("... a a" if shown[3] == " " else "...a a")
    assert "a [cat] b" in shown
    assert len(shown) < 250


def test_fewer_than_one_answer_is_refused(model):
    with pytest.raises(UserError, match="ask for 1 or more"):
        model.answer(QUESTION, CONTEXT, top_k=0)


def test_the_command_reads_a_context_or_a_file(bertworks, folder, model, tmp_path):
    code, out, err = bertworks("answer", folder, "--question", QUESTION, "--context", CONTEXT, "--top-k", 2, "--json")
    assert (code, err) == (0, "")
    expected = model.answer(QUESTION, CONTEXT, top_k=2)
    assert json.loads(out) == expected
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbf" + CONTEXT.encode())
    _, out, _ = bertworks("answer", folder, "--question", QUESTION, "--file", text)
    best, start, end = model.answer(QUESTION, CONTEXT)[0], expected[0]["start"], expected[0]["end"]
    around = " ".join(_around(CONTEXT, start, end).split())
    assert out == f"{best['score']:6.1%}  {best['text']}  ({start}-{end})\n        {around}\n"
    _, out, _ = bertworks("answer", folder, "--question", QUESTION, "--file", text, "--threshold", "-999")
    assert out.endswith("(no answer)\n")
    code, out, err = bertworks("answer", folder, "--question", QUESTION, "--context", "")
    assert (code, out, err) == (0, "", "there is no answer: the text is empty\n")


def test_mistakes_of_the_command_are_told(bertworks, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"caf\xe9 noir")
    for options, words in (
        ((), "--context, or a file"),
        (("--context", "a", "--file", text), "--context, or a file"),
        (("--file", tmp_path / "none"), "cannot read"),
        (("--file", text), "byte 3: not UTF-8"),
        (("--context", "\udcff"), "is not UTF-8"),
        (("--context", "a", "--threshold", "nan"), "the threshold nan is not a number; give one, such as 0"),
    ):
        code, out, err = bertworks("answer", folder, "--question", QUESTION, *options)
        assert (code, out) == (2, "")
        assert words in err
