"""Event files: what the logs say, once, in the form that TensorBoard reads; and no reason to end a run."""

import json
import logging
import math
import struct
import time
from contextlib import closing

import pytest

from bertworks.report.logs import METRICS_FILE, TIMING_FILE, StepLog
from bertworks.train.log import EventFile, tag_of


def crc32c_by_bits(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked_by_hand(crc):
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(content):
    """Take the framing apart, and hold every checksum against its definition."""
    found, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        (crc_of_size,) = struct.unpack_from("<I", content, at + 8)
        event = content[at + 12 : at + 12 + size]
        (crc_of_event,) = struct.unpack_from("<I", content, at + 12 + size)
        assert crc_of_size == masked_by_hand(crc32c_by_bits(content[at : at + 8]))
        assert crc_of_event == masked_by_hand(crc32c_by_bits(event))
        found.append(event)
        at += 16 + size
    assert at == len(content)
    return found


def fields(message):
    """Read a protobuf message: [(number, value)], values as the wire has them."""
    found, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or number()
        found.append((tag >> 3, message[at : at + size]))
        at += size
    return found


def scalars_of(run):
    """All scalars of a run's event file: {tag: [(step, value, time)]}."""
    *before, path = sorted((run / "tensorboard").iterdir())
    assert "tfevents" in path.name
    assert all(other.read_bytes() == b"" for other in before)
    first, second, *rest = map(dict, map(fields, records(path.read_bytes())))
    assert first[3] == b"brain.Event:2"
    assert fields(second[7]) == [(1, 1)], "a session starts"
    found = {}
    for event in rest:
        (wall_time,) = struct.unpack("<d", event[1])
        for _, value in fields(event[5]):
            parts = dict(fields(value))
            found.setdefault(parts[1].decode(), []).append(
                (event.get(2, 0), struct.unpack("<f", parts[2])[0], wall_time)
            )
    return found


def write_logs(run, steps, last_step=None):
    """Write both logs as a run does, in which a step's loss is 1 / step."""
    run.mkdir(exist_ok=True)
    with (
        closing(StepLog(run / METRICS_FILE, last_step)) as metrics,
        closing(StepLog(run / TIMING_FILE, last_step)) as timing,
    ):
        for step in steps:
            metrics.append(step, {"loss": 1 / step, "mlm_accuracy": 0.25, "lr": 1e-4, "grad_norm": 2.0})
            timing.append(step, {"time": 1.7e9 + step, "seconds": 3.0, "tokens_per_second": 500.0})
            if step % 5 == 0:
                metrics.append(step, {"holdout_loss": 2 / step})


def test_every_scalar_of_the_logs_is_there_with_its_step_value_and_time(tmp_path):
    run = tmp_path / "run"
    write_logs(run, range(1, 301))
    EventFile(run).close()
    found = scalars_of(run)
    assert sorted(found) == ["grad_norm", "holdout/loss", "lr", "tokens_per_second", "train/loss", "train/mlm_accuracy"]
    expected = [(step, pytest.approx(1 / step), 1.7e9 + step) for step in range(1, 301)]
    assert found["train/loss"] == expected
    assert [step for step, _, _ in found["holdout/loss"]] == list(range(5, 301, 5))
    assert found["tokens_per_second"][-1] == (300, 500.0, 1.7e9 + 300)


def test_what_is_appended_can_be_read_at_once_and_has_the_clocks_time(tmp_path):
    before = time.time()
    with closing(EventFile(tmp_path)) as events:
        assert scalars_of(tmp_path) == {}
        events.append(7, {"loss": 0.5, "seconds": 3.0, "memory_bytes": 10**9})
        found = scalars_of(tmp_path)
    assert sorted(found) == ["memory_bytes", "train/loss"]
    ((step, value, wall_time),) = found["train/loss"]
    assert (step, value) == (7, 0.5)
    assert before <= wall_time <= time.time()


def test_after_a_resume_every_step_is_there_once_in_a_file_of_a_later_name(tmp_path):
    run = tmp_path / "run"
    write_logs(run, range(1, 21))
    with closing(EventFile(run)) as events:
        events.append(21, {"loss": 1 / 21})
    (first,) = (run / "tensorboard").iterdir()
    for last_step in (12, 14):
        write_logs(run, range(last_step + 1, 16), last_step=last_step)
        with closing(EventFile(run)) as events:
            events.append(16, {"loss": 1 / 16})
        assert [step for step, _, _ in scalars_of(run)["train/loss"]] == list(range(1, 17))
    second, third = sorted((run / "tensorboard").iterdir())
    assert first.name < second.name < third.name


def test_what_is_no_number_is_left_out(tmp_path):
    (tmp_path / METRICS_FILE).write_text(
        "".join(
            json.dumps(line) + "\n"
            for line in ({"step": 1, "loss": None, "lr": 1.0}, {"step": 2, "loss": "text"}, {"step": 3})
        )
    )
    with closing(EventFile(tmp_path)) as events:
        events.append(4, {"loss": math.nan, "grad_norm": math.inf, "lr": 1e39})
        events.append(5, {"loss": 2})
    found = scalars_of(tmp_path)
    assert {tag: [step for step, _, _ in values] for tag, values in found.items()} == {"lr": [1], "train/loss": [5]}


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss", "train/loss"), ("nsp_accuracy", "train/nsp_accuracy"), ("holdout_mlm_loss", "holdout/mlm_loss"),
        ("lr", "lr"), ("tokens_per_second", "tokens_per_second"), ("step", None), ("time", None), ("seconds", None),
    ],
)  # fmt: skip
def test_names_are_grouped_as_tensorboard_shows_them(name, tag):
    assert tag_of(name) == tag


def test_a_folder_that_cannot_be_made_ends_no_run(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("in the way")
    with closing(EventFile(tmp_path)) as events:
        events.append(1, {"loss": 1.0})
        events.append(2, {"loss": 1.0})
    assert [(record.levelno, "continues without" in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


def test_a_disk_that_fills_up_is_told_once_and_ends_no_run(tmp_path, caplog):
    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

    events = EventFile(tmp_path)
    events._stream.close()
    events._stream = Full()
    events.append(1, {"loss": 1.0})
    events.append(2, {"loss": 1.0})
    events.close()
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'tensorboard'} cannot be written (No space left on device); the run continues without it"
    ]


def test_tensorboard_itself_reads_it_and_one_that_is_open_forgets_what_was_made_again(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="event files are compared with our own reader only: tensorboard is not installed",
    )
    run = tmp_path / "run"
    write_logs(run, range(1, 21))
    EventFile(run).close()
    watching = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert sorted(watching.Tags()["scalars"]) == sorted(scalars_of(run))
    for tag, values in scalars_of(run).items():
        assert [(event.step, event.value, event.wall_time) for event in watching.Scalars(tag)] == values
    for last_step, end in ((12, 16), (9, 18)):
        write_logs(run, range(last_step + 1, end), last_step=last_step)
        EventFile(run).close()
        watching.Reload()
        assert [event.step for event in watching.Scalars("train/loss")] == list(range(1, end))
