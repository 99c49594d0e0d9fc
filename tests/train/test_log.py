"""Logs hold whole lines, and a run that goes on writes the log of a run that was never stopped (P1)."""

import errno
import json
import logging
import os
import random
import resource
from contextlib import closing

import pytest

from bertworks.errors import UserError
from bertworks.report.logs import StepLog, read_log, truncate_to


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write_steps(path, steps, last_step=None):
    with closing(StepLog(path, last_step)) as log:
        for step in steps:
            log.append(step, {"loss": 1 / step, "accuracy": step / 7})
            if step % 5 == 0:
                log.append(step, {"held_out_mlm": 1 / 3})


def test_every_number_comes_back_as_it_was(path):
    values = {
        "loss": 0.1 + 0.2,
        "tiny": 5e-324,
        "count": 2**60,
        "한국어": -1e-30,
        "none": None,
    }
    with closing(StepLog(path, None)) as log:
        log.append(3, values)
        assert read_log(path) == [{"step": 3, **values}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_no_word_for_is_null(path, value):
    with closing(StepLog(path, None)) as log:
        log.append(1, {"loss": value})
    assert path.read_text() == '{"step": 1, "loss": null}\n'


def test_a_line_can_be_read_at_once_by_others(path):
    with closing(StepLog(path, None)) as log:
        for step in range(1, 4):
            log.append(step, {})
            assert [record["step"] for record in read_log(path)] == list(range(1, step + 1))


def test_a_run_from_the_start_has_an_empty_log(path):
    write_steps(path, range(1, 10))
    write_steps(path, range(1, 4))
    assert [record["step"] for record in read_log(path)] == [1, 2, 3]


def test_a_run_killed_anywhere_and_resumed_writes_the_same_bytes(path):
    """P1: cut at every byte behind the checkpoint's lines, and gone on from the checkpoint."""
    write_steps(path, range(1, 9))
    reference = path.read_bytes()
    synced = reference.index(b'{"step": 6')
    for length in range(synced, len(reference) + 1):
        path.write_bytes(reference[:length])
        write_steps(path, range(6, 9), last_step=5)
        assert path.read_bytes() == reference


def test_truncating_twice_is_truncating_once_and_leaves_nothing_beside_the_file(path, tmp_path):
    write_steps(path, range(1, 13))
    truncate_to(path, 7)
    once = path.read_bytes()
    truncate_to(path, 7)
    assert path.read_bytes() == once
    assert os.listdir(tmp_path) == [path.name]


def test_no_file_is_an_empty_log(path):
    assert read_log(path) == []
    truncate_to(path, 3)
    assert not path.exists()


GARBAGE = [
    b"\x00" * 50 + b"\n",
    b"\xff\xfe\n",
    b"{}\n",
    b"[1]\n",
    b"\n",
    b'{"step": "3"}\n',
    b'{"step": true}\n',
    b'{"step": 1.0}\n',
    b"[" * 100_000 + b"\n",
    b'{"step": -1}\n',
    b'{"step": 9007199254740993}\n',
    b'{"step": 1, "loss": "0.5"}\n',
    b'{"step": 1, "loss": [0.5]}\n',
    b'{"step": 1, "loss": true}\n',
    b'{"step": 1, "loss": NaN}\n',
    b'{"step": 1, "loss": 1e999}\n',
    b'{"step": 1, "loss": 1e200}\n',
    b'{"step": 1, "loss": ' + b"9" * 200 + b"}\n",
    b'{"step": ' + b"9" * 5000 + b"}\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: str(value[:14]))
def test_a_line_that_is_none_is_passed_over_with_its_number_and_the_others_stay(path, garbage, caplog):
    write_steps(path, [1, 2])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + garbage + second)
    assert [record["step"] for record in read_log(path)] == [1, 2]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"{path}:2 is not a line of a log; skipped")
    ]
    truncate_to(path, 9)
    assert path.read_bytes() == first + second


def test_of_many_bad_lines_the_first_are_named_and_the_others_counted(path, caplog):
    write_steps(path, [1])
    path.write_bytes(path.read_bytes() + b"x\n" * 1000)
    assert [record["step"] for record in read_log(path)] == [1]
    told = [f"{path}:{number} is not a line of a log; skipped" for number in (2, 3, 4)]
    assert caplog.messages == [*told, f"{path}: skipped 997 more such lines"]


def test_a_half_line_at_the_end_is_passed_over_without_a_word(path, caplog):
    write_steps(path, [1, 2])
    whole = path.read_bytes()
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        assert [record["step"] for record in read_log(path)] == [1]
    assert caplog.records == []


def test_random_bytes_never_raise(path):
    generator = random.Random(0)
    write_steps(path, range(1, 6))
    whole = path.read_bytes()
    for _ in range(100):
        broken = bytearray(whole)
        for _ in range(generator.randrange(1, 5)):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
        path.write_bytes(broken[: generator.randrange(len(broken))])
        kept = [json.dumps(record) for record in read_log(path) if record["step"] <= 3]
        truncate_to(path, 3)
        assert [json.dumps(record) for record in read_log(path)] == kept


def test_a_full_disk_is_a_user_error_and_leaves_no_broken_line_in_the_middle(path):
    """F4: the part of a line that did not fit is written when there is room again."""
    log = StepLog(path, None)
    log.append(1, {"loss": 0.5})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: File too large"):
            log.append(2, {"loss": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append(3, {"loss": 0.125})
    log.close()
    assert [record["loss"] for record in read_log(path)] == [0.5, 0.25, 0.125]


def test_what_a_full_disk_had_no_room_for_is_on_disk_before_a_checkpoint(path):
    """F4: a checkpoint counts on the lines of all steps before it."""
    log = StepLog(path, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        with pytest.raises(UserError, match="File too large"):
            log.append(1, {"loss": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_log(path) == []
    log.sync()
    assert read_log(path) == [{"step": 1, "loss": 0.25}]
    log.close()


def test_a_log_is_on_disk_when_it_says_so(path, monkeypatch):
    synced = []
    with closing(StepLog(path, None)) as log:
        log.append(1, {})
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        log.sync()
        assert synced == [path.stat().st_ino]

        def refuse(_):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(UserError, match=r"cannot write .*: Input/output error"):
            log.sync()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.parent.rmdir()], ids=["folder", "gone"])
def test_a_log_that_cannot_be_written_is_a_user_error(tmp_path, make):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        StepLog(tmp_path / "run" / "metrics.jsonl", None)


def test_a_folder_in_place_of_a_log_cannot_be_read(path):
    path.mkdir()
    with pytest.raises(UserError, match=r"cannot read .*metrics\.jsonl: Is a directory"):
        read_log(path)
