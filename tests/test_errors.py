import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import ConfigError, CorruptFile, UserError, counted, did_you_mean, printable, shortened, shown
from bertworks.tasks.task import Skipped


def test_every_error_of_a_person_is_a_user_error():
    assert issubclass(CorruptFile, UserError)
    assert issubclass(ConfigError, UserError)
    assert not issubclass(UserError, ValueError | OSError)


def test_config_error_names_all_problems_a_line_each():
    error = ConfigError("my.toml", ["a: wrong", "b: worse"])
    assert str(error) == "my.toml: 2 problems\n  a: wrong\n  b: worse"
    assert error.problems == ["a: wrong", "b: worse"]


def test_one_problem_is_singular():
    assert str(ConfigError("my.toml", ["a: wrong"])).startswith("my.toml: 1 problem\n")


def test_thousands_of_problems_fill_one_screen_and_are_counted():
    error = ConfigError("my.toml", [f"key{i}: wrong" for i in range(5000)])
    lines = str(error).splitlines()
    assert lines[0] == "my.toml: 5,000 problems"
    assert lines[1] == "  key0: wrong"
    assert lines[-1] == "  ... and 4,960 more"
    assert len(lines) == 42
    assert len(error.problems) == 5000


@pytest.mark.parametrize(
    "error", [ConfigError("my.toml", ["a: wrong", "b"]), CorruptFile("x is short"), UserError("x")]
)
def test_an_error_survives_the_way_back_from_a_worker_process(error):
    # A pool sends exceptions as pickles; one that cannot be rebuilt breaks the pool and hides the message.
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_the_nearest_name_is_suggested_in_any_case_of_letters():
    assert did_you_mean("dmo", ["base", "demo"]) == " (did you mean 'demo'?)"
    assert did_you_mean("mnli", ["SST-2", "MNLI"]) == " (did you mean 'MNLI'?)"
    assert did_you_mean("DEMO", ["base", "demo"]) == " (did you mean 'demo'?)"


def test_without_a_near_name_the_known_ones_are_listed_up_to_twenty():
    assert did_you_mean("zzz", ["base", "demo"]) == " (known: base, demo)"
    many = [f"name{i}" for i in range(25)]
    assert did_you_mean("zzz", many) == f" (known: {', '.join(many[:20])}, ...)"
    assert did_you_mean("zzz", []) == ""


@given(st.text(), st.lists(st.text()))
def test_a_suggestion_is_always_a_known_name(given_name, known):
    text = did_you_mean(given_name, known)
    if text.startswith(" (did you mean "):
        assert text.removeprefix(" (did you mean ").removesuffix("?)") in [repr(name) for name in known]
    else:
        assert text == "" or text.startswith(" (known: ")


def test_a_name_of_a_million_characters_costs_nothing():
    assert did_you_mean("x" * 1_000_000, ["base", "demo"]) == " (known: base, demo)"


HOSTILE = "a\x1b[2J\r\x07\x9b31m\u202e\u2066\u2028\ud800\0\x7fz"


def test_a_message_has_nothing_that_a_terminal_obeys():
    for error in (UserError(f"no column {HOSTILE}"), CorruptFile(HOSTILE), ConfigError(HOSTILE, [HOSTILE, "b"])):
        text = str(error)
        assert all(char.isprintable() or char == "\n" for char in text), ascii(text)
        assert "\\u001b[2J" in text
        assert "\\ud800" in text


def test_a_name_with_line_breaks_makes_no_line_of_its_own():
    assert str(UserError("cannot read a\nerror: all is lost")) == "cannot read a\\nerror: all is lost"
    assert str(ConfigError("a\nb", ["c\n  d"])) == "a\\nb: 1 problem\n  c\\n  d"
    nested = UserError(f"model: {ConfigError('x', ['a: wrong', 'b: worse'])}")
    assert str(nested) == "model: x: 2 problems\n  a: wrong\n  b: worse"


def test_a_long_message_keeps_its_beginning_and_its_end():
    text = str(UserError(f"no column {'x' * 100_000}; choose another"))
    assert len(text) == 1500
    assert text.startswith("no column xxx")
    assert text.endswith("xxx; choose another")
    assert max(map(len, str(ConfigError("y" * 9999, ["x" * 9999] * 100)).splitlines())) == 240
    assert len(did_you_mean("zzz", ["x" * 9999] * 40)) < 1300
    assert len(did_you_mean("x" * 9998, ["x" * 9999])) < 100


@given(st.text(st.characters()) | st.text("\x1b\x9b\u202e\ud800\n\ta'\\"))
def test_what_is_printable_stays_and_what_is_shown_fits(text):
    assert printable(printable(text)) == printable(text)
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text
    printable(text).encode()
    assert len(shortened(text, 20)) <= 20
    assert shown(text).isprintable()
    if text.isprintable() and len(text) <= 60:
        assert printable(text) == text
        assert shown(text) == repr(text)


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [(0, ("row",), "0 rows"), (1, ("row",), "1 row"), (1234, ("new word",), "1,234 new words"),
     (1, ("query", "queries"), "1 query"), (2, ("query", "queries"), "2 queries")],
)  # fmt: skip
def test_a_count_agrees_with_its_noun(count, noun, expected):
    assert counted(count, *noun) == expected


def test_one_thing_that_is_left_out_is_told_in_the_singular():
    skipped = Skipped()
    skipped.add("rows without a label", "row 3")
    skipped.add("questions whose answer is not in the context", "q1")
    skipped.add("questions whose answer is not in the context", "q2")
    assert str(skipped) == (
        "left out: 1 row without a label (first: row 3), 2 questions whose answer is not in the context (first: q1)"
    )
