"""The tables of `make test-faults` and `make test-abuse`: what was tried, how often, and what came out.

Both have a row for each id of the reliability plan: F1 to F20 are faults, H1 to H22 what is done to a server.

A test is about a fault when it says so: by a marker, `@pytest.mark.fault("F13", trials=3)`; by the start of its name,
`test_f13_`; or by its docstring, or else its file's, that begins with ids ("F2, P3: ..."). Such tests all carry the
marker `fault` then, so `-m fault` selects them; the long ones have the marker `faults` besides, which keeps them out of
`make test`. For a server the markers are `abuse` and `abuses`. A test that tries something several times says how often
in its marker, or by `record_property("trials", n)` where it finds out only while it runs. A line below the table is
added by `record_property("fault_note", "...")`.
"""

import platform
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

FAULTS = {
    "F1": "SIGKILL at a random instant, then resume",
    "F2": "SIGKILL inside a save",
    "F3": "SIGTERM, SIGINT, SIGUSR1",
    "F4": "the disk is full",
    "F5": "read-only, missing or forbidden folders",
    "F6": "corrupt checkpoints",
    "F7": "corrupt shards",
    "F8": "shards replaced while they are read",
    "F9": "another number of ranks",
    "F10": "loader workers, killed ones too",
    "F11": "NaN and infinity",
    "F12": "a learning rate that must trip, and one that must not",
    "F13": "a rank that dies, raises or hangs",
    "F14": "out of memory",
    "F15": "clock, locale, hash seed",
    "F16": "the same run again, threads",
    "F17": "golden losses",
    "F18": "checkpoints of older versions",
    "F19": "two trainers in one folder",
    "F20": "kills on a GPU (benchmarks/faults_gpu.py)",
}
ABUSE = {
    "H1": "bodies that are too large, with and without a length, and lengths that lie",
    "H2": "a body of exactly the limit",
    "H3": "too many inputs, tokens or characters",
    "H4": "a full queue",
    "H5": "64 clients of all kinds at once",
    "H6": "500 connections of a byte every 5 seconds",
    "H7": "headers: too large, too many, ambiguous, none",
    "H8": "what is almost JSON, and fields of the wrong type",
    "H9": "compressed bodies",
    "H10": "bodies in crumbs and in chunks that lie",
    "H11": "texts against the tokenizer",
    "H12": "clients that have left",
    "H13": "SIGTERM under load",
    "H14": "a model that raises, hangs or dies",
    "H15": "health and metrics under load",
    "H16": "keys",
    "H17": "what errors and logs say",
    "H18": "the address",
    "H19": "mutated requests to all routes",
    "H20": "hours of load (here minutes)",
    "H21": "answers beside others",
    "H22": "control tokens typed in texts",
    "schemathesis": "requests made from the OpenAPI document",
}
_IDS_AT_THE_START = re.compile(r"(?:[A-Z]\d{1,2}(?:\([a-z]\))?(?:, (?:and )?| and |(?=[:.])))+")
_ID = re.compile(r"[FH]\d{1,2}|schemathesis")
_IN_NAME = re.compile(r"test_([fh]\d{1,2})_")
_ALSO_A_SCORE = "F1"  # which other tests speak of
_ABOUT_TRAINING = ("train", "faults")


def ids_of(item):
    """The faults that a test is about, and how often it tries each."""
    if marked := [*item.iter_markers("fault"), *item.iter_markers("abuse")]:
        return {marker.args[0]: marker.kwargs.get("trials", 1) for marker in marked}
    own = getattr(getattr(item, "function", None), "__doc__", None)
    named = _IN_NAME.match(item.name)
    found = [named[1].upper()] if named else _in_docstring(own or item.module.__doc__)
    if item.path.parent.name not in _ABOUT_TRAINING:
        found = [id for id in found if id != _ALSO_A_SCORE]
    return {id: 1 for id in found if id in FAULTS or id in ABUSE}


def _in_docstring(text):
    found = _IDS_AT_THE_START.match(text or "")
    return _ID.findall(found[0]) if found else []


@pytest.hookimpl(tryfirst=True)  # before markers select
def pytest_collection_modifyitems(items):
    for item in items:
        if ids := ids_of(item):
            for id in ids:
                mark = pytest.mark.fault if id in FAULTS else pytest.mark.abuse
                if not list(item.iter_markers(mark.name)):
                    item.add_marker(mark(id))
            item.user_properties.append(("fault_ids", ids))


def pytest_addoption(parser):
    parser.addoption("--fault-table", type=Path, help="write the table of faults to this file")
    parser.addoption("--abuse-table", type=Path, help="write the table of abuse to this file")


_reports = []


def pytest_runtest_logreport(report):
    _reports.append(report)


def write_table(terminalreporter, config):
    for option, *kind in (("--fault-table", FAULTS, "Faults"), ("--abuse-table", ABUSE, "Abuse of the server")):
        path = config.getoption(option)
        if path is not None:
            text = table(_reports, *kind)
            terminalreporter.write_line(text)
            path.write_text(text, encoding="utf-8")


def table(reports, known=FAULTS, title="Faults"):
    """The table as Markdown, a row for each of the known ids."""
    trials, results, seconds, notes = Counter(), defaultdict(Counter), Counter(), []
    for report in reports:
        properties = dict(report.user_properties)
        for id, count in properties.get("fault_ids", {}).items():
            seconds[id] += report.duration
            if report.when == "call" or report.outcome != "passed":
                tried = properties.get("trials", count) if report.outcome == "passed" else 1
                trials[id] += tried if report.outcome != "skipped" else 0
                results[id][_result(report)] += 1
        if report.when == "call":
            notes += [f"- {value}" for name, value in report.user_properties if name == "fault_note"]
    rows = [
        f"| {id} | {what} | {trials[id]} | {_said(results[id])} | {seconds[id]:.0f} |" for id, what in known.items()
    ]
    head = ["| id | what | trials | result | seconds |", "|---|---|---|---|---|"]
    return (
        "\n".join(
            [
                f"# {title}",
                "",
                _introduction(known),
                "",
                *head,
                *rows,
                "",
                *sorted((note for note in notes if _ID.search(note)[0] in known), key=_number),
            ]
        ).rstrip()
        + "\n"
    )


def _number(note):
    found = _ID.search(note)[0]
    return int(found[1:]) if found[1:].isdecimal() else 99


def _result(report):
    if report.outcome != "skipped":
        return report.outcome
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"skipped ({reason.removeprefix('Skipped: ')})"


def _said(results):
    failed_first = sorted(results.items(), key=lambda item: item[0] != "failed")
    parts = [f"{count} test{'s' * (count > 1)} {name}" for name, count in failed_first]
    return ", ".join(parts) or "not run here"


def _introduction(known):
    import torch

    command, trial = ("test-faults", "kill, one limit, one flipped bit") if known is FAULTS else (
        "test-abuse", "request, one connection, one signal")  # fmt: skip
    return (
        f"Written by `make {command}`. A trial is one {trial}, or one test. "
        f"{processor()}, Python {platform.python_version()}, torch {torch.__version__}."
    )


def processor():
    """The processor by its name, as far as the system tells it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
