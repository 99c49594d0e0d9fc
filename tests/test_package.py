"""What the package says of itself is true: its version, its classifiers, and that workflows run the same commands."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import bertworks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_version_is_written_once_and_the_citation_agrees():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "bertworks/__init__.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == bertworks.__version__
    assert citation["license"] == PROJECT["project"]["license"]


def test_the_changes_are_in_the_groups_that_readers_know():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    groups = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert groups
    assert {*groups} <= known
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == f"Unreleased ({bertworks.__version__})"
    outside = text.partition("\n### ")[0]
    assert "\n- " not in outside  # a line that was added to no group


def test_types_come_with_the_package():
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert (Path(bertworks.__file__).parent / "py.typed").exists()


def test_every_extra_that_a_message_or_a_page_names_is_there():
    extras = {*PROJECT["project"]["optional-dependencies"]}
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bertworks").rglob("*.py")]
    named = {
        name.strip()
        for file in files
        for found in re.findall(r"(?:bertworks|'\.)\[([a-z, ]+)\]", file.read_text(encoding="utf-8"))
        for name in found.split(",")
    }
    assert {"serve", "export", "data"} <= named
    assert named <= extras


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_commands_of_the_makefile(workflow):
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    assert all(re.fullmatch(r"make [a-z-]+", command) and command.split()[1] in targets for command in commands)


def test_all_that_is_pinned_is_pinned_exactly_and_once():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", pin) for pin in pins)
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]
    assert len(names) == len({*names})
