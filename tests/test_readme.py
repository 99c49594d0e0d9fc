"""Both READMEs: every command is one that exists; what is marked `bash` or `python` runs in order on a fresh clone."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bertworks.cli import app
from bertworks.finetuning.settings import points_of
from bertworks.recipe import load_recipe
from bertworks.tasks import find_task
from bertworks.tasks.own_files import KINDS

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.ko.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAINED = ("finetune", "pretrain")  # which take a minute, and what they leave is not there in a quick run


def blocks(readme):
    return _BLOCK.findall((ROOT / readme).read_text(encoding="utf-8"))


def lines_of(block):
    joined = block.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def commands(readme, *languages):
    return [
        shlex.split(line.partition(" > ")[0], comments=True)
        for language, block in blocks(readme)
        if language in languages
        for line in lines_of(block)
        if line.startswith("bertworks ")
    ]


def check_names(name, params):
    """Raise UserError for a recipe, a task or a setting that does not exist."""
    overrides = params.get("overrides") or []
    if name in ("pretrain", "plan"):
        recipe = params["recipe"] or "base"  # a run that is resumed has its own
        load_recipe("base" if recipe.endswith(".toml") else recipe, overrides)
    if name == "finetune":
        task = params["task"]
        found = find_task("cola" if task in (*KINDS, "glue") else task)
        features = [] if params["features"] is None else ["task.features=last"]
        points_of(found, [*overrides, *features], is_grid=params["grid"])
    if name in ("evaluate", "texts") and params["task"] is not None:
        find_task(params["task"])


@pytest.mark.parametrize("readme", READMES)
def test_every_command_of_the_readme_exists(readme, tmp_path, monkeypatch):
    group = typer.main.get_command(app)
    found = commands(readme, "", "bash")
    assert len(found) > 40
    for _, name, *arguments in found:
        command = group.commands[name]
        with command.make_context(name, list(arguments)) as context:
            check_names(name, context.params)


def linked(folder):
    """Give a folder what of a clone the commands read."""
    for name in ("examples", "bertworks", "weights"):
        (folder / name).symlink_to(ROOT / name)


@pytest.mark.parametrize("readme", READMES)
def test_the_quick_commands_of_the_readme_run_in_order(bertworks, readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linked(tmp_path)
    from pydoc_data.topics import topics

    (tmp_path / "help.txt").write_text("\n\n".join(topics.values()))
    missing, count = set(), 0
    for _, name, *arguments in commands(readme, "bash"):
        out = arguments[arguments.index("--out") + 1] if "--out" in arguments else None
        if (name in TRAINED and "--dry-run" not in arguments) or missing & set(arguments) or name == "evaluate":
            missing |= {out} - {None}
            files = [Path(arguments[place + 1]) for place, word in enumerate(arguments) if word in ("--train", "--dev")]
            assert all(file.is_file() for file in files), arguments
            continue
        code, _, err = bertworks(name, *arguments)
        assert code == 0, (name, arguments, err)
        count += 1
    assert count > 15


@pytest.mark.nightly
@pytest.mark.parametrize("readme", READMES)
def test_all_blocks_of_the_readme_run_in_order(readme, tmp_path, monkeypatch):
    """As a person runs them: the shell's by bash, Python's in one session; but for `make`, which installs."""
    monkeypatch.chdir(tmp_path)
    linked(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "bertworks").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertworks "$@"\n')
    (tools / "bertworks").chmod(0o755)
    (tools / "python3").symlink_to(shutil.which(sys.executable))
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    options = {"text": True, "capture_output": True, "cwd": tmp_path, "env": environment}
    session = {}
    for language, block in blocks(readme):
        if language == "bash" and "make " not in block:
            done = subprocess.run(["bash", "-e"], input=block, **options)
            assert done.returncode == 0, (block, done.stderr[-2_000:])
        if language == "python" and "bert-base" not in block:  # which does not come along
            exec(compile(block, readme, "exec"), session)
