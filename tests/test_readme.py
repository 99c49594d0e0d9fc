"""Both READMEs: every command is one that exists; what is marked `bash` or `python` runs in order on a fresh clone."""

from pathlib import Path

import pytest
from document_blocks import ROOT, Reader, blocks_of, check_command, commands_of, free_port, write_program

READMES = ("README.md", "README.ko.md")
TRAINED = ("finetune", "pretrain")  # which take a minute, and what they leave is not there in a quick run


@pytest.mark.parametrize("readme", READMES)
def test_every_command_of_the_readme_exists(readme):
    found = commands_of(ROOT / readme, "", "bash")
    assert len(found) > 40
    for words in found:
        check_command(words)


@pytest.mark.parametrize("readme", READMES)
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
    assert count > 15


@pytest.mark.nightly
@pytest.mark.parametrize("readme", READMES)
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
