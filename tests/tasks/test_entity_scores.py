"""N9: entities as conlleval and seqeval count them, on sequences that no annotator would write."""

import gzip
import json
from pathlib import Path

import pytest
import score_references as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.tasks.metrics import entities, entity_scores

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"
TAGS = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])
SEQUENCES = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12), min_size=1, max_size=5)
TOLERANCE = 1e-9


def apart(pairs):
    return [[a for a, _ in line] for line in pairs], [[b for _, b in line] for line in pairs]


@pytest.fixture(scope="module")
def golden():
    tags = json.loads(gzip.decompress((GOLDEN / "seq_tags.json.gz").read_bytes()))
    return tags["gold"], tags["pred"], json.loads((GOLDEN / "seq_scores.json").read_text(encoding="utf-8"))


def test_500_stored_sequences_score_as_conlleval_says(golden):
    gold, predicted, expected = golden
    assert len(gold) == 500
    (found, by_type), official = entity_scores(gold, predicted), expected["conlleval"]
    for name in ("precision", "recall", "f1"):
        assert abs(found[name] - official[name]) < TOLERANCE
    assert abs(found["accuracy"] - official["correct_tags"] / official["tokens"]) < TOLERANCE
    for kind, score in official["by_type"].items():
        assert by_type[kind][:3] == pytest.approx([score["precision"], score["recall"], score["f1"]], abs=TOLERANCE)
        assert by_type[kind].support == score["tp"] + score["fn"]


@pytest.mark.parametrize(("strict", "mode"), [(False, "default_mode"), (True, "strict_mode_IOB2")])
def test_500_stored_sequences_score_as_seqeval_says(golden, strict, mode):
    gold, predicted, expected = golden
    (found, by_type), report = entity_scores(gold, predicted, strict=strict), expected[mode]["report"]
    micro, macro = report["micro avg"], report["macro avg"]
    three = [found[name] for name in ("precision", "recall", "f1")]
    assert three == pytest.approx([micro["precision"], micro["recall"], micro["f1-score"]], abs=TOLERANCE)
    assert abs(found["f1_macro"] - macro["f1-score"]) < TOLERANCE
    for kind, score in by_type.items():
        assert score == pytest.approx(list(report[kind].values()), abs=TOLERANCE)


@given(st.lists(TAGS, max_size=15))
def test_entities_are_those_of_the_official_state_machine(tags):
    assert set(entities(tags)) == slow.official_chunks(tags)


@settings(deadline=None, max_examples=100)
@given(SEQUENCES, st.booleans())
def test_any_sequences_score_as_seqeval_scores_them(pairs, strict):
    metrics = pytest.importorskip("seqeval.metrics", reason="NO COMPARISON WITH seqeval: it is not installed")
    from seqeval.scheme import IOB2

    gold, predicted = apart(pairs)
    mode = {"mode": "strict", "scheme": IOB2} if strict else {}
    found, _ = entity_scores(gold, predicted, strict=strict)
    for name in ("precision", "recall", "f1"):
        expected = getattr(metrics, f"{name}_score")(gold, predicted, zero_division=0, **mode)
        assert abs(found[name] - expected) < TOLERANCE


@pytest.mark.parametrize(
    ("tags", "lenient", "strict"),
    [
        (["O", "I-X", "I-X"], [("X", 1, 3)], []),
        (["B-X", "I-Y"], [("X", 0, 1), ("Y", 1, 2)], [("X", 0, 1)]),
        (["B-X", "B-X", "I-X"], [("X", 0, 1), ("X", 1, 3)], [("X", 0, 1), ("X", 1, 3)]),
        (["B-a-b", "I-a-b"], [("a-b", 0, 2)], [("a-b", 0, 2)]),
        ([], [], []),
    ],
)
def test_illegal_tags_start_an_entity_unless_strict(tags, lenient, strict):
    assert list(entities(tags)) == lenient
    assert list(entities(tags, strict=True)) == strict


def test_no_entities_at_all_score_nothing():
    nothing = dict.fromkeys(("precision", "recall", "f1", "f1_macro"), 0.0)
    assert entity_scores([["O", "O"]], [["O", "O"]]) == (nothing | {"accuracy": 1.0}, {})
