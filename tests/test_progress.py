"""The bar is drawn on terminals only, one at a time, and leaves nothing behind."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from terminals import CONTROL_SEQUENCE, ERASE_LINE, LINE_UP, terminal

from bertworks.processes import can_redraw, notebook_shell, notes, progress_bar, silent


def last_drawn(output: str) -> str:
    """Return the line that stood on the terminal before it was erased."""
    lines = [CONTROL_SEQUENCE.sub("", line).strip() for line in output.split("\r")]
    return [line for line in lines if line][-1]


def test_where_there_is_no_terminal_only_long_work_writes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("bertworks.processes.time.monotonic", lambda: now[0])
    with progress_bar() as progress:
        for done in range(100):
            progress("counting words", done, 100, f"{done} documents")
            now[0] += 1
        progress("merging", 3, None)
    lines = [f"counting words {done}%, {done} documents" for done in (30, 60, 90)]
    assert stream.getvalue().splitlines() == lines
    with progress_bar(quiet=True) as progress:
        assert progress is silent


def test_nothing_is_drawn_on_a_terminal_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as written, progress_bar(quiet=True) as progress:
        assert progress is silent
        progress("counting words", 1, 2)
    assert written == [""]


def test_rich_is_not_loaded_where_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with progress_bar() as progress:
        progress("counting words", 1, 2)


def test_a_terminal_shows_the_stage_and_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as written, progress_bar() as progress:
        progress("counting words", 10, 40)
    assert re.search(r"^counting words\s.*25%", last_drawn(written[0]))


def test_one_stage_is_shown_at_a_time_also_when_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for stages in (["first", "second"], ["second", "first", "second"]):
        with terminal(monkeypatch) as written, progress_bar() as progress:
            for done, stage in enumerate(stages):
                progress(stage, done, 4)
        assert "second" in last_drawn(written[0])
        assert "first" not in last_drawn(written[0])
        assert f"{25 * (len(stages) - 1)}%" in last_drawn(written[0])


def test_a_stage_of_unknown_length_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as written, progress_bar() as progress:
        progress("counting words", 3, 4)
        progress("merging counts", 2, None)
    assert "merging counts" in last_drawn(written[0])
    assert "%" not in last_drawn(written[0])


DETAIL = "12,345,678 documents, 3,457M tokens, 23.4 MB/s"


@pytest.mark.parametrize(("width", "shown"), [(120, DETAIL), (100, DETAIL), (80, DETAIL[:20]), (40, ""), (20, "")])
def test_counts_are_shown_as_far_as_they_fit_on_the_line(
    monkeypatch: pytest.MonkeyPatch, width: int, shown: str
) -> None:
    with terminal(monkeypatch, width) as written, progress_bar() as progress:
        progress("preparing", 10, 40, DETAIL)
    drawn = last_drawn(written[0])
    assert shown in drawn
    assert len(drawn) <= width
    assert written[0].count(LINE_UP) == 1, "the bar took two lines"  # the one is its end


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_the_bar_is_erased_in_the_end(monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None) -> None:
    with terminal(monkeypatch) as written:
        try:
            with progress_bar() as progress:
                progress("counting words", 1, 2)
                if error:
                    raise error
        except RuntimeError:
            assert error
    assert written[0].endswith(ERASE_LINE)


def test_a_stage_named_like_markup_or_a_control_sequence_is_drawn_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, width=140) as written, progress_bar() as progress:
        progress("reading [red]a[/] [/x]\x1b[31m", 1, 4, "in [bold]b.csv\x07")
    drawn = last_drawn(written[0])
    assert drawn.startswith("reading [red]a[/] [/x]\\u001b[31m")
    assert drawn.endswith("in [bold]b.csv\\u0007")


@pytest.mark.parametrize("of_kernel", [{"JPY_PARENT_PID": "7"}, {"TERM": "xterm-color", "GIT_PAGER": "cat"}])
def test_a_notebooks_command_draws_nothing_that_it_would_erase(monkeypatch: pytest.MonkeyPatch, of_kernel) -> None:
    for name in ("JPY_PARENT_PID", "GIT_PAGER"):
        monkeypatch.delenv(name, raising=False)
    with terminal(monkeypatch) as written:
        assert can_redraw(sys.stderr)
        for name, value in of_kernel.items():
            monkeypatch.setenv(name, value)
        assert not can_redraw(sys.stderr)
        with progress_bar() as progress:
            progress("counting words", 1, 2)
    assert written == [""]


def test_notes_go_to_standard_error_but_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert notebook_shell() is None  # IPython in a terminal
    assert notes() is sys.stderr
    shell.kernel = "a kernel"
    assert notebook_shell() is shell
    assert notes() is sys.stdout
