import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import ConfigError, CorruptFile, UserError, did_you_mean


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
