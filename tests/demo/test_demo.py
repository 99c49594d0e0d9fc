"""The demo as a person meets it: numbered stages, commands that do the same by hand, lines that any stream can have."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from importlib import resources

import pytest
from tiny_demo import TINY, in_miniature, shown

from bertworks import cli
from bertworks.demo import stages
from bertworks.demo import stages as asked
from bertworks.demo.run import Show
from bertworks.demo.stages import ask_shipped
from bertworks.recipe import load_recipe
from bertworks.train.log import Progress
from bertworks.train.trainer import Result

TITLES = ["A vocabulary", "Training data", "Pre-training", "A model trained on more", "Fine-tuning", "New sentences",
          "Attention"]  # fmt: skip


def headings(text):
    return re.findall(r"^(\d)  (\S.*)$", text, re.MULTILINE)


def commands(text):
    """The commands that were shown, a broken one in one line again."""
    return re.findall(r"^ {3}\$ (.*)$", text.replace("\\\n", " "), re.MULTILINE)


def test_stages_are_numbered_and_each_has_a_command_and_its_seconds(demo):
    found = headings(demo.text)
    assert [int(number) for number, _ in found] == list(range(1, 8))
    assert all(title.startswith(start) for (_, title), start in zip(found, TITLES, strict=True))
    for part in re.split(r"^\d  ", demo.text, flags=re.MULTILINE)[1:]:
        lines = part.strip().partition("\n\n")[0].splitlines()
        assert lines[1].startswith("   $ bertworks ")
        assert re.fullmatch(r" {3}\d+\.\d s", lines[-1])


def test_the_last_line_says_where_the_report_lies(demo):
    assert demo.text.splitlines()[-1].startswith(f"{demo.page} is the report")
    assert demo.page.is_file()


def test_results_of_every_stage_are_told(demo):
    assert "500 pieces, learned from" in demo.text
    assert "[CLS] a class" in demo.text
    assert "times as much as the tokenizers library" in demo.text
    assert "To predict: " in demo.text
    assert "   6 steps, " in demo.text
    assert "trained on tales of a cat; it fills 51% of masks correctly" in " ".join(demo.text.split())
    masks = (*asked.HELP_MASKS, *asked.MASKS, *asked.KOREAN_MASKS)
    for one in (*masks, *(second for _, second in asked.PAIRS), *asked.TO_CLASSIFY):
        assert one in demo.text
    assert re.search(r"\d+% of dev.tsv is classified correctly", demo.text)
    assert re.search(r"Layer \d, head \d of 3 x 2", demo.text)


def test_what_is_no_terminal_gets_plain_lines_of_at_most_100_columns(demo):
    lines = demo.text.replace(str(demo.folder), "bertworks-demo").split("\n")
    assert not [char for line in lines for char in line if unicodedata.category(char) == "Cc"]
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)


@pytest.fixture(scope="module")
def by_hand(demo, tmp_path_factory):
    """The folder of the demo after all of the shown commands were typed there, one process for all."""
    folder = tmp_path_factory.mktemp("by-hand") / "folder"
    shutil.copytree(demo.folder, folder)
    with in_miniature(demo.shipped) as patches:
        patches.chdir(folder)
        for command in commands(demo.text):
            patches.setattr(sys, "argv", [*shlex.split(command), *_quiet_if_possible(command)])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert ended.value.code == 0, command
    return folder


def _quiet_if_possible(command):
    return ["--quiet"] if command.split()[1] in ("vocab", "prepare", "pretrain", "finetune") else []


def test_the_shown_commands_do_the_same_by_hand(by_hand):
    pairs = {"vocab.txt": "my-vocab.txt", "data/train-00000.tokens.npy": "my-data/train-00000.tokens.npy",
             "run/model/model.safetensors": "my-run/model/model.safetensors",
             "tuned/model/model.safetensors": "my-tuned/model/model.safetensors"}  # fmt: skip
    for ours, theirs in pairs.items():
        assert (by_hand / ours).read_bytes() == (by_hand / theirs).read_bytes(), ours
    assert (by_hand / "attention.html").is_file()


def test_commands_tell_of_overrides():
    changed = ["vocab.size=300", "tokenizer.lowercase=false", "train.max_steps=3", "model.preset=a b"]
    assert stages.pretraining_command(changed).endswith("--out my-run train.max_steps=3 'model.preset=a b'")
    recipe = load_recipe("demo", changed[:3])
    told = stages.vocabulary_command(recipe)
    assert told == "bertworks vocab topics.txt --size 300 --min-count 2 --cased --out my-vocab.txt"


@pytest.fixture
def without_shipped(tmp_path):
    with in_miniature(tmp_path / "nothing"):
        yield


def test_without_a_shipped_model_it_ends_after_three_stages_with_advice_and_a_report(without_shipped, tmp_path):
    text = shown(out=tmp_path / "out")
    assert [int(number) for number, _ in headings(text)] == [1, 2, 3]
    assert "No model 'mini' comes with this version" in text
    assert "$ bertworks finetune classify --model run --train train.tsv --dev dev.tsv --out my-tuned" in text
    assert text.splitlines()[-1].startswith(str(tmp_path / "out/report.html"))
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert page.count("<h2") == 3
    assert "<iframe" not in page


def test_without_a_korean_model_the_english_one_is_asked_alone(demo, tmp_path):
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped/mini").symlink_to(demo.shipped / "mini")
    show = Show(load_recipe("demo", TINY), TINY, tmp_path / "out", quiet=True)
    written = io.StringIO()
    with in_miniature(tmp_path / "shipped"), contextlib.redirect_stdout(written):
        ask_shipped(show, tmp_path / "shipped/mini")
    assert asked.MASKS[0] in written.getvalue()
    assert asked.KOREAN not in written.getvalue()


@pytest.mark.parametrize("signal", [2, 15])
def test_an_interrupted_training_ends_the_demo_as_any_command(bertworks, monkeypatch, tmp_path, signal):
    ended = Result(Progress(step=3), "signal", {}, signal)
    monkeypatch.setattr("bertworks.train.pretrain.pretrain", lambda *_, **__: ended)
    monkeypatch.setattr("bertworks.demo.stages._ROUNDS", 1)
    code, out, _ = bertworks("demo", *TINY, "--quiet", "--out", tmp_path / "out")
    assert code == 128 + signal
    assert "report" not in out


def test_a_mistaken_setting_is_told_before_anything_is_written(bertworks, tmp_path):
    code, out, err = bertworks("demo", "vocab.sise=500", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "vocab.size" in err
    assert not (tmp_path / "out").exists()


def test_torch_and_numpy_wait_until_they_are_needed():
    program = (
        "import sys, bertworks.demo.run, bertworks.demo.page, bertworks.demo.stages\n"
        "print(sorted({'torch', 'numpy', 'numba', 'tokenizers'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_what_is_asked_fits_its_purpose():
    data = resources.files("bertworks") / "demo_data"
    labelled = (data / "train.tsv").read_text() + (data / "dev.tsv").read_text()
    assert all(sentence not in labelled for sentence in (*asked.TO_CLASSIFY, asked.TO_ATTEND))
    assert all(text.count("[MASK]") == 1 for text in (*asked.HELP_MASKS, *asked.MASKS, *asked.KOREAN_MASKS))
    quoted = (*asked.MASKS, *asked.KOREAN_MASKS, *asked.TO_CLASSIFY, asked.TO_ATTEND)
    assert all('"' not in text and "'" not in text for text in quoted)
