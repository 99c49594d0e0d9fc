"""What is said after the tests: the table of faults, and which tests need other people's texts."""

from types import SimpleNamespace

import other_texts
import pytest
from fault_table import FAULTS, _in_docstring, ids_of, table


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("F2, P3: at every point; F9 is something else.", ["F2"]),
        ("P2, F9: the batches.", ["F9"]),
        ("F4(a): the kernel takes a part.", ["F4"]),
        ("F15 and F16, for vocabularies: the same.", ["F15", "F16"]),
        ("F3.", ["F3"]),
        ("A checkpoint comes back: P1, P3, F6.", []),
        ("F1 is the harmonic mean of two numbers.", []),
        ("", []),
        (None, []),
    ],
)
def test_a_docstring_that_begins_with_ids_is_about_them(text, ids):
    assert _in_docstring(text) == ids


def item(name="test_x", doc=None, module_doc=None, folder="faults", marks=()):
    return SimpleNamespace(
        name=name,
        function=SimpleNamespace(__doc__=doc),
        module=SimpleNamespace(__doc__=module_doc),
        path=SimpleNamespace(parent=SimpleNamespace(name=folder)),
        iter_markers=lambda _: iter(marks),
    )


def test_a_marker_goes_before_a_name_and_a_name_before_docstrings():
    marker = SimpleNamespace(args=("F1",), kwargs={"trials": 50})
    assert ids_of(item("test_f2_x", "F3: x", marks=[marker])) == {"F1": 50}
    assert ids_of(item("test_f13_x", "F3: x")) == {"F13": 1}
    assert ids_of(item(doc="F3: x", module_doc="F4: y")) == {"F3": 1}
    assert ids_of(item(module_doc="F4, F5: y")) == {"F4": 1, "F5": 1}
    assert ids_of(item(doc="nothing", module_doc="F4: y")) == {}
    assert ids_of(item(doc="F99: unknown")) == {}


def test_f1_is_a_score_where_nothing_is_trained():
    assert ids_of(item("test_f1_is_a_mean", folder="tasks")) == {}
    assert ids_of(item(doc="F1: killed", folder="train")) == {"F1": 1}


def report(outcome="passed", when="call", longrepr=None, **properties):
    return SimpleNamespace(
        outcome=outcome, when=when, duration=2.0, longrepr=longrepr, user_properties=list(properties.items())
    )


def row_of(id, reports):
    return next(line for line in table(reports).splitlines() if line.startswith(f"| {id} "))


def test_trials_results_and_seconds_are_added_up():
    reports = [
        report(fault_ids={"F1": 50}),
        report(fault_ids={"F1": 1}, trials=7),
        report(when="setup", fault_ids={"F1": 1}),
    ]
    assert row_of("F1", reports) == f"| F1 | {FAULTS['F1']} | 57 | 2 tests passed | 6 |"
    assert row_of("F20", reports).endswith("| 0 | not run here | 0 |")


def test_a_failure_stands_first_and_a_skip_with_its_reason():
    reports = [
        report(fault_ids={"F4": 1}),
        report("failed", fault_ids={"F4": 20}),
        report("skipped", "setup", ("file", 3, "Skipped: no file system"), fault_ids={"F4": 1}),
    ]
    assert "| 2 | 1 test failed, 1 test passed, 1 test skipped (no file system) |" in row_of("F4", reports)
    assert row_of("F5", [report("failed", "setup", fault_ids={"F5": 1})]).split("|")[4].strip() == "1 test failed"


def test_notes_stand_below():
    assert table([report(fault_ids={"F16": 1}, fault_note="F16: two threads differ by 1e-7")]).endswith(
        "\n- F16: two threads differ by 1e-7\n"
    )


def test_the_summary_counts_what_needs_other_peoples_texts_and_names_them(monkeypatch, tmp_path):
    monkeypatch.setattr(other_texts, "FOLDER", tmp_path)
    (tmp_path / "there.txt").write_text("a text")
    assert other_texts.other_text("there.txt", "texts that are there") == tmp_path / "there.txt"
    reports = [SimpleNamespace(longrepr=("test.py", 1, "Skipped: needs a GPU"))]
    for what in ("articles", "articles", "questions"):
        with pytest.raises(pytest.skip.Exception) as skipped:
            other_texts.other_text("missing.txt", what)
        reports.append(SimpleNamespace(longrepr=("test.py", 1, f"Skipped: {skipped.value}")))
    said = "skipped here: 3 tests that need other people's texts (2 articles, 1 questions)"
    assert other_texts.summary_line(reports) == said
    assert other_texts.summary_line(reports[:1]) is None
