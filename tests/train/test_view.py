"""What a person sees of a run: true figures, on any width of terminal, seldom redrawn, and nothing left behind."""

import io
import itertools
import logging
import math
import os
import re
import sys
import time
from types import SimpleNamespace

import pytest
import typer
from rich.cells import cell_len
from terminals import CONTROL_SEQUENCE, terminal

from bertworks.recipe import TrainSettings
from bertworks.report import logs as status_module
from bertworks.report import terminal as view_module
from bertworks.report.logs import About, Status, Trace
from bertworks.report.terminal import Lines, Panel, PanelInCell, line_of, panel_of, training_view, unseen
from bertworks.train.log import Progress

HIDE_CURSOR = "\x1b[?25l"


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(status_module.time, "monotonic", clock.monotonic)
    return clock


def about(title="run, 4x256, mlm+nsp, cpu", kinds=("mlm", "nsp"), flops=(None, None), **limits):
    return About(title, TrainSettings(**{"max_steps": 1_000} | limits), kinds, *flops)


def status_after(num_lines, clock, **options):
    """A run that logs every 10 steps of 200 tokens, 20 seconds apart, of which 10 are training."""
    status = Status(about(**options), Progress())
    for number in range(1, num_lines + 1):
        clock.now += 20
        step = 10 * number
        place = Progress(step=step, tokens=200 * step, seconds=step)
        values = {
            "loss": 2 + 8 * math.exp(-step / 100),
            "mlm_accuracy": 0.25,
            "nsp_accuracy": 0.75,
            "nsp_larger_class": 0.5625,
            "memory_bytes": 4e9,
        }
        status.train(place, values)
    return status


def test_the_speed_is_that_of_the_last_lines_and_of_training_alone(clock):
    status = status_after(30, clock)
    assert status.tokens_per_second == pytest.approx(200)
    status.train(Progress(step=310, tokens=60_000 + 20_000, seconds=310), {})
    assert status.tokens_per_second == pytest.approx((9 * 2_000 + 20_000) / 100)


def test_after_a_resume_the_speed_is_of_this_start():
    """The clock of a run begins anew where its count of tokens goes on."""
    status = Status(about(), Progress(step=500, tokens=1_000_000, seconds=0.0))
    status.train(Progress(step=510, tokens=1_002_000, seconds=10.0), {})
    assert status.tokens_per_second == pytest.approx(200)


def test_the_time_left_counts_evaluations_and_saves_in(clock):
    status = status_after(30, clock)
    assert status.share == pytest.approx(0.3)
    assert status.seconds_left == pytest.approx(70 * 20)
    status.evaluate(500, {})  # which comes between two lines of training
    assert status.seconds_left == pytest.approx(50 * 20)
    assert Status(about(), Progress()).seconds_left is None


@pytest.mark.parametrize(
    ("limits", "share", "words"),
    [
        ({"max_steps": 600}, 0.5, "300 of 600 steps"),
        ({"max_tokens": 80_000}, 0.75, "step 300, 60,000 of 80,000 tokens"),
        ({"max_minutes": 6.0}, 5 / 6, "step 300, 5.0 of 6 minutes"),
        ({"max_tokens": 10}, 1.0, "step 300, 60,000 of 10 tokens"),
    ],
)
def test_progress_is_towards_the_limit_that_is_met_first(clock, limits, share, words):
    status = status_after(30, clock, **limits)
    assert status.share == pytest.approx(share)
    assert words in panel_of(status, 100).plain
    assert line_of(status).startswith(words)


def test_mfu_is_needed_over_possible_arithmetic_and_told_only_if_both_are_known(clock):
    status = status_after(30, clock, flops=(3e9, 1.5e12))
    assert status.model_flops_utilisation == pytest.approx(200 * 3e9 / 1.5e12)
    assert re.search(r"MFU +40\.0%", panel_of(status, 100).plain)
    for flops in [(None, 1e12), (3e9, None), (None, None)]:
        status = status_after(30, clock, flops=flops)
        assert status.model_flops_utilisation is None
        assert "MFU" not in panel_of(status, 100).plain


def test_a_run_that_goes_on_begins_with_the_curve_and_figures_of_its_log():
    history = [
        {"step": 10, "loss": 9.0, "mlm_accuracy": 0.1},
        {"step": 20, "loss": None, "mlm_accuracy": 0.2},
        {"step": 20, "holdout_loss": 8.5, "holdout_mlm_accuracy": 0.15},
    ]
    status = Status(about(), Progress(step=20), history)
    assert status.losses.points == [(10, 9.0)]
    assert (status.values["mlm_accuracy"], status.holdout["loss"], status.saved_step) == (0.2, 8.5, 20)


def test_a_trace_of_any_length_is_bounded_and_keeps_the_shape():
    trace = Trace()
    for step in range(100_000):
        trace.add(step, 3 * step)
    assert 200 < len(trace.points) < 512
    for x, y in trace.points:
        assert y == pytest.approx(3 * x)
    assert trace.points[-1][0] > 99_000
    gaps = {later - x for (x, _), (later, _) in itertools.pairwise(trace.points)}
    assert len(gaps) == 1, "the run is shown evenly"


def test_a_loss_that_is_not_finite_is_no_point_of_the_curve(clock):
    status = status_after(3, clock)
    status.train(Progress(step=40), {"loss": math.nan})
    assert len(status.losses.points) == 3
    assert re.search(r"loss +–", panel_of(status, 100).plain)


def full_panel(clock, columns, num_lines=90, **options):
    status = status_after(num_lines, clock, **options)
    status.evaluate(900, {"holdout_loss": 2.5, "holdout_mlm_accuracy": 0.5, "holdout_nsp_accuracy": 0.875})
    status.save(900)
    return panel_of(status, columns).plain


def test_the_panel_tells_all_there_is(clock):
    text = full_panel(clock, 100)
    for pattern in (
        r"^ run, 4x256, mlm\+nsp, cpu +0:30:00$",
        r"━━.*─ +900 of 1,000 steps +90\.0% +0:03:20 left$",
        r"loss +2\.001 +2\.500",
        r"MLM +25\.0% +50\.0%",
        r"NSP +75\.0% +87\.5%",
        r" larger +56\.2% +–",
        r"speed +200 tokens/s",
        r"memory +4\.00 GB",
        r"saved +step 900",
    ):
        assert re.search(pattern, text, re.MULTILINE), pattern


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_the_loss_is_drawn_beside_the_figures(clock, columns):
    text = full_panel(clock, columns)
    assert sum("\u2801" <= char <= "\u28ff" for char in text) >= 15
    assert re.search(r"10 +900$", text.splitlines()[-1]), "the first and the last step stand below"


@pytest.mark.parametrize("columns", [2, 20, 30, 40, 59, 60, 61, 79, 80, 100, 101, 250])
@pytest.mark.parametrize("num_lines", [0, 1, 2, 50])
def test_no_line_is_longer_than_the_terminal_is_wide(clock, columns, num_lines):
    text = full_panel(clock, columns, num_lines, title="실행-한국어-위키백과 " * 5, max_steps=1_000_000)
    assert max(cell_len(line) for line in text.splitlines()) < columns


def test_the_panel_keeps_its_height_while_a_run_goes(clock):
    heights = {len(full_panel(clock, 100, num_lines).splitlines()) for num_lines in (0, 1, 2, 500)}
    assert len(heights) == 1


def test_a_language_model_has_a_row_of_its_own(clock):
    status = status_after(1, clock, kinds=("lm",))
    status.train(Progress(step=20), {"lm_accuracy": 0.5})
    assert re.search(r"LM +50\.0%", panel_of(status, 100).plain)
    assert "MLM" not in panel_of(status, 100).plain


@pytest.mark.parametrize(
    ("kind", "metrics", "dev", "rows"),
    [
        ("classify", ("accuracy", "f1_macro"), {"dev_accuracy": 0.625, "dev_f1_macro": 0.25},
         [r"accuracy +50\.0% +62\.5%", r"F1 macro +25\.0%"]),
        ("tag", ("f1", "precision", "recall"), {"dev_f1": 0.75}, [r"accuracy +50\.0% *$", r"F1 +75\.0%"]),
        ("answer", ("f1", "exact_match"), {"dev_f1": 81.25}, [r"accuracy +50\.0%", r"F1 +81\.2%", r"EM +–"]),
        ("regress", ("pearson",), {"dev_pearson": 0.875}, [r"pearson +87\.5%"]),
    ],
)  # fmt: skip
def test_of_a_task_the_dev_sets_metrics_are_shown(clock, kind, metrics, dev, rows):
    status = status_after(1, clock, kinds=(kind,))
    status.about = status.about._replace(metrics=metrics)
    status.train(Progress(step=20), {f"{kind}_accuracy": 0.5, "loss": 1.0} if kind != "regress" else {"loss": 1.0})
    height = panel_of(status, 100).plain.count("\n")
    status.evaluate(20, dev)
    # Without the curve, which stands to the right.
    text = "\n".join(line[:32].rstrip() for line in panel_of(status, 100).plain.splitlines())
    for row in rows:
        assert re.search(row, text, re.MULTILINE), row
    assert "right" not in text
    assert panel_of(status, 100).plain.count("\n") == height
    assert ("accuracy" in text) == (kind != "regress")


def test_the_labels_of_the_curve_are_its_highest_and_lowest_loss(clock):
    for losses in ((3.0, 1.0), (1.0, 3.0), (3.0, 2.0, 1.0)):
        status = Status(about(), Progress())
        for number, loss in enumerate(losses, 1):
            status.train(Progress(step=10 * number), {"loss": loss})
        rows = panel_of(status, 100).plain.splitlines()
        assert re.search(r"held out +3\.000 ", rows[3])
        assert re.search(r" 1\.000 ", rows[-2][32:])


def test_a_line_without_a_training_loss_does_not_pretend_there_is_one(clock):
    status = Status(about(), Progress())
    status.evaluate(0, {"holdout_loss": 2.5, "holdout_mlm_accuracy": 0.5})
    assert line_of(status) == "0 of 1,000 steps; held out: loss 2.500, MLM 50.0%"


def test_where_there_is_no_terminal_a_long_silence_ends_with_a_line(clock, monkeypatch):
    """Every half minute at first, and in a run of days every twentieth of the time it has taken."""
    status, stream = status_after(3, clock), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(view_module.time, "monotonic", clock.monotonic)
    with training_view() as view:
        for _ in range(300):
            clock.now += 1
            view("train", status)
        assert stream.getvalue().count("\n") == 10
        clock.now += 36_000
        view("train", status)
        for _ in range(1_700):
            clock.now += 1
            view("train", status)
    assert stream.getvalue().count("\n") == 11
    assert "\x1b" not in stream.getvalue()


def test_days_are_told_as_days(clock):
    status = status_after(1, clock, max_steps=100_000)
    assert "2 d 07:3" in line_of(status)


def told(news, status, stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    with training_view() as view:
        for one in news:
            view(one, status)
    return stream.getvalue()


def test_where_there_is_no_terminal_every_evaluation_is_a_line(clock, monkeypatch):
    status = status_after(30, clock)
    status.evaluate(300, {"holdout_loss": 2.5, "holdout_mlm_accuracy": 0.5, "holdout_nsp_accuracy": 0.875})
    text = told(["begin", "train", "evaluate", "save", "train"], status, io.StringIO(), monkeypatch)
    assert text == (
        "300 of 1,000 steps: loss 2.398, MLM 25.0%, NSP 75.0% (larger class 56.2%); "
        "held out: loss 2.500, MLM 50.0%, NSP 87.5%; 200 tokens/s; 0:23:20 left\n"
    )


def test_without_documents_kept_aside_every_checkpoint_is_a_line(clock, monkeypatch):
    for eval_every, num_lines in ((300, 1), (301, 0)):  # before the first evaluation nobody knows yet
        status = status_after(30, clock, eval_every=eval_every)
        text = told(["begin", "train", "save", "train"], status, io.StringIO(), monkeypatch)
        assert text.count("\n") == num_lines
        assert "held out" not in text


def test_quiet_is_silent_everywhere(monkeypatch):
    with terminal(monkeypatch) as written, training_view(quiet=True) as view:
        assert view is unseen
        view("train", Status(about(), Progress()))
    assert written == [""]


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch):
    with terminal(monkeypatch) as _:
        monkeypatch.setenv("TERM", "dumb")
        with training_view() as view:
            assert isinstance(view, Lines)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("rich.console.Console.encoding", "ascii")
        with training_view() as view:
            assert isinstance(view, Lines)


def drawn_on_terminal(monkeypatch, news, status, error=None, width=100):
    """What a terminal was sent, and the lines that stand on it before and after the view ends."""
    with terminal(monkeypatch, width) as written:
        try:
            with training_view() as view:
                assert isinstance(view, Panel)
                for one in news:
                    view(one, status)
                if error:
                    raise error
        except (RuntimeError, KeyboardInterrupt):
            assert error
    return written[0]


def screen(output):
    """Play control sequences as a terminal does; returns its lines."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", output):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[J":
            lines[row:] = [lines[row][:column]]
        elif re.fullmatch(r"\x1b\[\d+A", part):
            row -= int(part[2:-1])
        elif not CONTROL_SEQUENCE.fullmatch(part):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_panel_stands_while_it_runs_and_nothing_is_left(clock, monkeypatch, error):
    output = drawn_on_terminal(monkeypatch, ["begin", "evaluate", "evaluate"], status_after(30, clock), error)
    assert "300 of 1,000 steps" in output
    assert all(not line.strip() for line in screen(output))


def test_the_cursor_is_never_hidden_for_a_run_may_be_killed(clock, monkeypatch):
    assert HIDE_CURSOR not in drawn_on_terminal(monkeypatch, ["begin", "evaluate", "train"], status_after(30, clock))


def library_logger():
    """A logger whose handler holds the error stream as it was before the panel came."""
    logger = logging.getLogger("some.library")
    logger.handlers, logger.propagate = [logging.StreamHandler(sys.stderr)], False
    return logger


@pytest.mark.parametrize(
    "write",
    [
        lambda _: sys.stderr.write("warning: something\n"),
        lambda _: typer.echo("warning: something", err=True),
        lambda _: print("warning: something", end="", file=sys.stderr),
        lambda _: [sys.stderr.write(part) for part in ("warning: ", "some", "thing\n")],
        lambda logger: logger.warning("warning: something"),
        lambda _: os.write(sys.stderr.fileno(), b"warning: something\n"),
    ],
    ids=["stderr", "echo", "half a line", "in parts", "logging", "in C"],
)
def test_what_others_write_meanwhile_stands_above_the_panel_and_stays(clock, monkeypatch, write):
    status = status_after(30, clock)
    with terminal(monkeypatch) as written:
        logger = library_logger()
        with training_view() as view:
            view("begin", status)
            write(logger)
            view("evaluate", status)
    assert [line.strip() for line in screen(written[0]) if line.strip()] == ["warning: something"]
    last = screen(written[0][: written[0].rindex("\r\x1b[J")])  # before the panel is erased in the end
    assert last[0].strip() == "warning: something" or "half a line" in str(write)
    assert [line.strip()[:3] for line in last if line.strip()].count("run") == 1, "one panel stands there"


def test_a_second_stream_that_is_no_terminal_is_left_alone_and_all_are_given_back(clock, monkeypatch, capsys):
    with terminal(monkeypatch) as _:
        before = sys.stdout, sys.stderr
        with training_view() as view:
            view("begin", status_after(3, clock))
            assert sys.stdout is before[0]
            assert sys.stderr is not before[1]
            assert (sys.stderr.fileno(), sys.stderr.encoding) == (before[1].fileno(), before[1].encoding)
            print("a result")
        assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "a result\n"


def test_a_panel_higher_than_the_terminal_is_cut(clock, monkeypatch):
    monkeypatch.setenv("LINES", "6")
    output = drawn_on_terminal(monkeypatch, ["begin", "evaluate", "evaluate"], status_after(30, clock))
    assert max(part.count("\n") for part in output.split("\x1b[J")) == 5


def test_it_is_redrawn_four_times_a_second_at_most_and_takes_half_a_percent(monkeypatch):
    now, drawings = [0.0], []

    def draw(self, status):
        drawings.append(now[0])
        now[0] += cost

    monkeypatch.setattr(view_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Panel, "_draw", draw)
    for cost, expected in ((0.0005, 4.0), (0.005, 1.0), (0.5, 0.01)):
        panel, drawings[:] = Panel(), []
        status, start = Status(about(), Progress()), now[0]
        while now[0] < start + 400:
            now[0] += 0.01
            panel("train", status)
        assert len(drawings) / 400 == pytest.approx(expected, rel=0.1)
        assert len(drawings) * cost / 400 <= 0.006


def test_a_drawing_takes_milliseconds(clock, monkeypatch):
    status = status_after(5_000, clock)
    panel_of(status, 100)
    started = time.perf_counter()
    for _ in range(20):
        panel_of(status, 100)
    assert (time.perf_counter() - started) / 20 < 0.05


def test_a_notebook_gets_one_output_which_each_drawing_replaces_and_the_last_one_stays(clock, monkeypatch):
    published = []
    module = SimpleNamespace(publish_display_data=lambda forms, **how: published.append((forms, how)))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(view_module, "notebook_shell", lambda: "a shell")
    monkeypatch.setattr(view_module.time, "monotonic", clock.monotonic)
    status = status_after(30, clock)
    with training_view() as view:
        assert isinstance(view, PanelInCell)
        for _ in range(100):
            clock.now += 0.1
            view("train", status)
        assert len(published) == 10  # once a second
        last = status_after(31, clock)
        view("train", last)
    assert len(published) == 11
    assert [how["update"] for _, how in published] == [False, *[True] * 10]
    assert len({how["transient"]["display_id"] for _, how in published}) == 1
    forms = published[-1][0]
    assert "310 of 1,000 steps" in forms["text/plain"]
    assert "310 of 1,000 steps" in forms["text/html"]
    assert forms["text/html"].startswith("<pre style=")
    assert "\x1b" not in "".join(forms.values())


def test_a_line_is_not_followed_by_the_same_line_with_an_evaluation(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(view_module.time, "monotonic", clock.monotonic)
    status = status_after(30, clock, eval_every=300)
    status.evaluate(300, {"holdout_loss": 2.5, "holdout_mlm_accuracy": 0.5})
    with training_view() as view:
        clock.now += 100
        view("train", status)
        view("evaluate", status)
    assert stream.getvalue().count("\n") == 1
