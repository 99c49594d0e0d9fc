"""docs/troubleshooting.md tells the truth: its commands print what it says they print."""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
SHOWN = re.findall(r"^\$ bertworks (.+)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"good {number},pos\nbad {number},neg\n" for number in range(30))
    (tmp_path / "my.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    (tmp_path / "odd.csv").write_text("what they wrote,given\ngood,5\nbad,1\n", encoding="utf-8")
    (tmp_path / "one.csv").write_text("text,label\ngood,pos\nfine,pos\nbad,\n", encoding="utf-8")
    (tmp_path / "cp949.csv").write_bytes("text,label\n방이 깨끗했어요,5\n더러웠어요,1\n".encode("cp949"))
    (tmp_path / "long.txt").write_text("word " * 3_000, encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "recipe.toml").write_text("", encoding="utf-8")
    return tmp_path


def as_pattern(shown):
    """Return an expression for what is shown, in which ... stands for any text, also for lines."""
    return r"(?s)" + ".*".join(map(re.escape, shown.strip().split("..."))) + r"\s*"


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
@pytest.mark.usefixtures("files")
def test_a_command_of_the_page_prints_what_the_page_says(bertworks, monkeypatch, command, shown):
    words, _, source = command.partition(" < ")
    if source:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(source).read_bytes())))
    _, out, err = bertworks(*shlex.split(words))
    assert re.fullmatch(as_pattern(shown), out + err), out + err


def test_the_page_has_what_new_users_meet():
    assert len(SHOWN) >= 12
    assert len(re.findall(r"^### ", PAGE, re.MULTILINE)) >= 20
    for part in PAGE.split("\n### ")[1:]:
        assert "**Do.**" in part or "$ bertworks tokenize" in part
