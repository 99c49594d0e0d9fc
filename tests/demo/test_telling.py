"""Lines that the demo writes: styled for a terminal alone, broken between words, in whatever encoding there is."""

import io
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.demo.run import as_typed, bar, percent, say, shade, tell


class Stream(io.TextIOWrapper):
    """A standard output that may say that it is a terminal."""

    is_terminal = False

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def written(monkeypatch):
    """Gives a function that has `write` write to a stream of its own, and returns the text."""

    def run(write, *, is_terminal=False, encoding="utf-8", **environment):
        stream = Stream(io.BytesIO(), encoding=encoding)
        stream.is_terminal = is_terminal
        with monkeypatch.context() as patches:
            patches.setattr(sys, "stdout", stream)
            patches.delenv("NO_COLOR", raising=False)
            patches.setenv("TERM", "xterm")
            for name, value in environment.items():
                patches.setenv(name, value)
            write()
            stream.flush()
        return stream.buffer.getvalue().decode(encoding)

    return run


def test_a_terminal_gets_bold_and_faint_lines(written):
    assert written(lambda: say("head", bold=True), is_terminal=True) == "\x1b[1mhead\x1b[0m\n"
    assert written(lambda: tell("$ run", dim=True), is_terminal=True) == "\x1b[2m   $ run\x1b[0m\n"


def test_elsewhere_and_where_it_is_not_wished_lines_are_plain(written):
    for options in ({}, {"is_terminal": True, "NO_COLOR": "1"}, {"is_terminal": True, "TERM": "dumb"}):
        assert written(lambda: say("head", bold=True), **options) == "head\n"


def test_a_stream_of_ascii_gets_what_it_can_have(written):
    assert written(lambda: say("é " + shade(1.0)), encoding="ascii") == "? #\n"
    assert written(lambda: say(bar(0.5)), encoding="ascii") == "######......\n"
    assert written(lambda: say(bar(0.5))) == "██████░░░░░░\n"


def test_long_lines_are_broken_between_words_and_keep_their_indent(written):
    lines = written(lambda: tell("a\n  " + "word " * 60)).splitlines()
    assert lines[0] == "   a"
    assert all(line.startswith("     word") and len(line) <= 100 for line in lines[1:])
    assert " ".join(lines[1:]).split() == ["word"] * 60


def test_what_is_wider_than_a_line_stays_whole(written):
    assert written(lambda: tell("x" * 150)) == "   " + "x" * 150 + "\n"


@given(st.lists(st.text("ab -='", min_size=1, max_size=40), max_size=12))
def test_a_broken_command_is_the_same_command_to_a_shell(words):
    typed = as_typed(f"bertworks {shlex.join(words)}")
    assert typed.startswith("$ bertworks")
    assert shlex.split(typed.replace("\\\n", ""))[1:] == ["bertworks", *words]
    assert all(len(line) <= 97 or len(line.split()) == 1 or "'" in line for line in typed.splitlines())


def test_a_text_in_quotes_is_not_broken():
    quoted = '"' + "many words " * 10 + '"'
    assert as_typed(f"bertworks nsp mini {quoted}") == f"$ bertworks nsp mini \\\n    {quoted}"


@pytest.mark.parametrize(("share", "told"), [(1.0, "100%"), (0.0995, "10%"), (0.0994, "9.9%"), (0.0, "0.0%")])
def test_small_shares_have_a_decimal(share, told):
    assert percent(share) == told


@given(st.floats(0, 1))
def test_a_bar_is_always_as_wide_and_fuller_for_more(share):
    assert len(bar(share)) == 12
    assert bar(1.0).count(shade(1.0)) == 12
    assert bar(share).count(shade(1.0)) <= bar(min(1.0, share + 0.1)).count(shade(1.0))
