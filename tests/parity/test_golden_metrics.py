"""N9: the official SQuAD scripts' own results on 1,000 questions each.

The questions are other people's texts; they are read from a folder beside the repository, if there is one.
"""

import gzip
import json

import pytest
from other_texts import other_text

from bertworks.tasks.metrics import ENGLISH, is_exact, overlap_f1, score_squad1, score_squad2
from bertworks.tasks.task import Answer, SpanExample

TOLERANCE = 1e-9


def stored(name):
    path = other_text(f"golden/metrics/{name}", "questions of SQuAD")
    return json.loads(gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes())


def questions(version):
    articles = stored(f"squad_{version}_data.json.gz")["data"]
    found = [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    assert len(found) == 1_000
    return [
        SpanExample(qa["id"], qa["question"], "", tuple(Answer(0, a["text"]) for a in qa["answers"]), not qa["answers"])
        for qa in found
    ]


def test_squad_1_scores_are_those_of_the_official_script():
    expected = stored("squad_v1.1_scores.json")["scores"]
    found = score_squad1(questions("v1.1"), stored("squad_v1.1_predictions.json.gz"))
    assert found == pytest.approx(expected, abs=TOLERANCE)


def test_squad_1_scores_each_question_as_the_official_script():
    predictions = stored("squad_v1.1_predictions.json.gz")
    expected = stored("squad_v1.1_per_question.json.gz")
    for example in questions("v1.1"):
        if example.id in predictions:
            given = [(predictions[example.id], answer.text) for answer in example.answers]
            assert max(is_exact(*pair) for pair in given) == expected[example.id]["exact_match"]
            assert abs(max(overlap_f1(*pair, ENGLISH) for pair in given) - expected[example.id]["f1"]) < TOLERANCE


@pytest.mark.parametrize("threshold", [None, 1.0, 0.5, 0.25])
def test_squad_2_scores_and_best_thresholds_are_those_of_the_official_script(threshold):
    key = "no_na_prob_file" if threshold is None else f"threshold_{threshold}"
    odds = None if threshold is None else stored("squad_v2.0_na_probs.json.gz")
    predictions = stored("squad_v2.0_predictions.json.gz")
    found = score_squad2(questions("v2.0"), predictions, odds, 1.0 if threshold is None else threshold)
    assert found == pytest.approx(stored("squad_v2.0_scores.json")["scores"][key], abs=TOLERANCE)
