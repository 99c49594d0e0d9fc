"""Both READMEs and the pages of all there is: commands exist, and blocks run in order on a fresh clone."""

import runpy
from pathlib import Path

import pytest
from document_blocks import ROOT, Reader, blocks_of, check_command, commands_of, free_port, write_program

READMES = ("README.md", "README.ko.md")
PAGES = (*READMES, "docs/everything.md", "docs/everything.ko.md")
TRAINED = ("finetune", "pretrain")  # which take a minute, and what they leave is not there in a quick run


@pytest.mark.parametrize("readme", PAGES)
def test_every_command_of_the_readme_exists(readme):
    found = commands_of(ROOT / readme, "", "bash")
    assert len(found) >= (10 if readme in READMES else 40)
    for words in found:
        check_command(words)


@pytest.mark.parametrize("readme", PAGES)
def test_the_quick_commands_of_the_readme_run_in_order(bertworks, readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, tmp_path, free_port())  # for the files of a clone
    from pydoc_data.topics import topics

    (tmp_path / "help.txt").write_text("\n\n".join(topics.values()))
    missing, count = set(), 0
    for _, name, *arguments in commands_of(ROOT / readme, "bash"):
        out = arguments[arguments.index("--out") + 1] if "--out" in arguments else None
        if (name in TRAINED and "--dry-run" not in arguments) or missing & set(arguments) or name == "evaluate":
            missing |= {out} - {None}
            files = [Path(arguments[place + 1]) for place, word in enumerate(arguments) if word in ("--train", "--dev")]
            assert all(file.is_file() for file in files), arguments
            continue
        code, _, err = bertworks(name, *arguments)
        assert code == 0, (name, arguments, err)
        count += 1
    assert count >= (4 if readme in READMES else 15)


@pytest.mark.nightly
@pytest.mark.parametrize("readme", PAGES)
def test_all_blocks_of_the_readme_run_in_order(readme, tmp_path, tmp_path_factory, monkeypatch):
    """As a person runs them: the shell's by bash, Python's in one session; but for `make`, which installs."""
    monkeypatch.chdir(tmp_path)
    tools = tmp_path_factory.mktemp("tools")
    write_program(tools)
    reader = Reader(tmp_path, tools, free_port())
    for block in blocks_of(ROOT / readme):
        is_left_out = "make " in block.text or "bert-base" in block.text  # which does not come along
        if block.language in ("bash", "python") and not is_left_out:
            reader.run(block)


@pytest.mark.parametrize("readme", READMES)
def test_the_readme_is_short_and_its_badges_are_true(readme):
    badges = runpy.run_path(str(ROOT / "tools" / "badges.py"))
    text = (ROOT / readme).read_text(encoding="utf-8")
    assert text.count("\n") < 200
    said = badges["badges"]()
    for name, texts in said.items():
        stored = (ROOT / "docs" / "pictures" / f"badge-{name}.svg").read_text(encoding="utf-8")
        assert stored == badges["picture"](*texts), "run tools/badges.py"
        assert f"(docs/pictures/badge-{name}.svg)" in text
    assert said["version"][1] in text
