"""The command as a person or a script meets it: help, results, and one clear line for every mistake."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import bertworks as bw
from bertworks import __version__, cli
from bertworks.recipe import Recipe
from bertworks.text.vocabulary import read_vocabulary

CORPUS = "low lower lowest\nnew newer newest\n\nwide wider widest, no wiser!\n" * 5


def run(*arguments, stdin=None):
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "bertworks", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS, encoding="utf-8")
    return path


def test_help_loads_neither_torch_nor_numpy_nor_pydantic():
    program = (
        "import sys; sys.argv = ['bertworks', '--help']\n"
        "from bertworks.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'numba', 'pydantic', 'tokenizers'} & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "vocab" in ended.stdout
    assert ended.stderr.strip() == "[]"


def test_help_lists_commands_in_the_order_of_a_models_life(bertworks):
    _, out, _ = bertworks("--help")
    groups = out.partition("\nText and data:\n")[2].partition("First steps:")[0]
    names = [line.split()[0] for line in groups.splitlines() if line.startswith("  ") and line[2:3].strip()]
    assert names == [
        "vocab", "texts", "prepare", "inspect", "tokenize", "plan", "pretrain", "report", "finetune", "search",
        "glue", "evaluate", "predict", "convert", "export", "fill", "nsp", "classify", "tag", "answer", "choose",
        "embed", "features", "attend", "serve", "reproduce", "recipes", "tasks", "models", "settings", "demo",
    ]  # fmt: skip
    assert "..." not in out.partition("Options:")[2]
    told = "".join(out.split())  # a line may end within fine-tuned
    for command in cli.app.registered_commands:
        assert "".join(command.callback.__doc__.split("\n\n")[0].split()) in told


def test_every_command_has_a_help_of_its_own(bertworks):
    for command in cli.app.registered_commands:
        code, out, err = bertworks(command.callback.__name__, "--help")
        assert (code, err) == (0, "")
        assert command.callback.__doc__.split(".")[0][:40] in out


def test_settings_are_listed_with_default_range_and_help(bertworks):
    rows = json.loads(bertworks("settings", "--json")[1])
    assert {row["setting"]: row["default"] for row in rows} == {
        f"{section}.{key}": value for section, settings in Recipe() for key, value in settings
    }
    by_name = {row["setting"]: row for row in rows}
    assert by_name["optim.beta1"]["allowed"] == "a number, at least 0, less than 1"
    assert by_name["train.dtype"]["allowed"] == "auto, float32, bfloat16"
    assert [name for name, row in by_name.items() if not row["help"].endswith(".")] == []
    code, out, err = bertworks("settings", "train")
    assert (code, err) == (0, "")
    assert out.startswith("train.max_steps=1000000            a whole number, at least 1\n    Steps after which a run")
    assert "\ntrain.max_tokens  (not set)        a whole number" in out
    assert "optim." not in out
    assert bertworks("settings", "pretrain", "train") == (code, out, err)
    assert bertworks("settings", "pretrain")[1] == bertworks("settings")[1]
    assert "\nmodel.preset=base   " in bertworks("settings", "pretrain")[1]
    assert "\nmodel.preset=large   " in bertworks("settings", "pretrain", "large")[1]


@pytest.mark.parametrize(("name", "max_length"), [("sst2", 128), ("SQuAD1", 384), ("answer", 384), ("classify", 128)])
def test_settings_of_a_task_have_the_defaults_of_its_fine_tuning(bertworks, name, max_length):
    rows = json.loads(bertworks("settings", name, "--json")[1])
    assert all(row["help"].endswith(".") for row in rows)
    found = {row["setting"]: row["default"] for row in rows}
    assert (found["task.max_length"], found["optim.warmup"]) == (max_length, 0.1)
    assert 2 <= found["train.epochs"] <= 4
    assert json.loads(bertworks("settings", "finetune", name, "--json")[1]) == rows


def test_settings_of_nothing_name_the_nearest(bertworks):
    assert bertworks("settings", "trian")[2] == (
        "error: 'trian' is neither a section of a recipe (did you mean 'train'?) nor a task\n"
    )
    assert "did you mean 'sst2'?" in bertworks("settings", "sstt")[2]
    assert "did you mean 'sst2'?" in bertworks("settings", "finetune", "sstt")[2]
    assert "did you mean 'finetune'?" in bertworks("settings", "finetunes")[2]
    assert "did you mean 'large'?" in bertworks("settings", "pretrain", "larg")[2]
    assert "neither pretrain nor finetune (did you mean 'finetune'?)" in bertworks("settings", "tune", "sst2")[2]
    assert bertworks("settings", "finetune") == bertworks("settings", "finetune", "classify")


def test_version_is_the_packages(bertworks):
    assert bertworks("--version") == (0, f"bertworks {__version__}\n", "")


def test_no_command_shows_the_help(bertworks):
    code, out, err = bertworks()
    assert code in (0, 2)
    assert "First steps:" in out + err


def test_vocab_writes_a_vocabulary_that_the_tokenizer_opens(bertworks, corpus, tmp_path):
    code, out, err = bertworks("vocab", corpus, "--out", tmp_path / "v.txt", "--size", 100, "--min-count", 2)
    assert code == 0
    pieces = read_vocabulary(tmp_path / "v.txt")
    assert {"[PAD]", "[UNK]", "new", "low"} <= set(pieces)
    assert f"{len(pieces)} pieces" in out
    assert "warning: the text gives only" in err
    assert bertworks("tokenize", "--vocab", tmp_path / "v.txt", "New LOW") == (0, "new low\n", "")


def test_vocab_json_is_one_object_and_quiet_prints_nothing(bertworks, corpus, tmp_path):
    options = ("vocab", corpus, "--out", tmp_path / "v.txt", "--size", 100, "--min-count", 2)
    code, out, _ = bertworks(*options, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["documents"] == 6
    assert result["words"] == 65
    assert result["pieces"] == len(read_vocabulary(tmp_path / "v.txt"))
    code, out, _ = bertworks(*options, "--quiet")
    assert (code, out) == (0, "")


def test_vocab_makes_a_folder_for_gpt_that_tokenize_opens(bertworks, corpus, tmp_path):
    options = ("--algorithm", "gpt-bpe", "--size", 100, "--min-count", 2)
    code, out, _ = bertworks("vocab", corpus, "--out", tmp_path / "gpt", *options)
    assert code == 0
    assert f"{tmp_path / 'gpt'}: " in out
    assert {path.name for path in (tmp_path / "gpt").iterdir()} == {
        "vocab.json",
        "merges.txt",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    pieces = json.loads((tmp_path / "gpt" / "vocab.json").read_text(encoding="utf-8"))
    assert list(pieces)[-3:] == ["_start_", "_delimiter_", "_classify_"]
    assert bertworks("tokenize", "--vocab", tmp_path / "gpt", "New LOW,") == (0, "new</w> low</w> ,</w>\n", "")
    before = (tmp_path / "gpt" / "merges.txt").read_bytes()
    assert bertworks("vocab", corpus, "--out", tmp_path / "gpt", *options, "--quiet")[0] == 0  # again, in its place
    assert (tmp_path / "gpt" / "merges.txt").read_bytes() == before


def test_vocab_makes_a_list_of_words(bertworks, corpus, tmp_path):
    options = ("--algorithm", "words", "--size", 100, "--min-count", 5, "--cased", "--quiet")
    assert bertworks("vocab", corpus, "--out", tmp_path / "w.txt", *options)[0] == 0
    words = read_vocabulary(tmp_path / "w.txt", unknown="<UNK>")
    assert words[:3] == ["<S>", "</S>", "<UNK>"]
    assert set(words[3:]) == {"low", "lower", "lowest", "new", "newer", "newest", "wide", "wider", "widest", ",", "no",
                              "wiser", "!"}  # fmt: skip
    assert bertworks("tokenize", "--vocab", tmp_path / "w.txt", "--cased", "new Low!") == (0, "new <UNK> !\n", "")


def test_vocab_for_gpt_does_not_write_over_a_file(bertworks, corpus, tmp_path):
    code, _, err = bertworks("vocab", corpus, "--out", corpus, "--algorithm", "gpt-bpe")
    assert code == 2
    assert "it is a file, and gpt-bpe makes a folder" in err
    code, _, err = bertworks("vocab", corpus, "--out", tmp_path / "no" / "gpt", "--algorithm", "gpt-bpe")
    assert code == 2
    assert "does not exist" in err
    assert corpus.read_text(encoding="utf-8") == CORPUS


@pytest.mark.parametrize("algorithm", ["gpt-bpe", "words"])
def test_vocab_has_unused_pieces_only_for_bert(bertworks, corpus, tmp_path, algorithm):
    code, _, err = bertworks("vocab", corpus, "--out", tmp_path / "v", "--algorithm", algorithm, "--unused", 5)
    assert code == 2
    assert f"a vocabulary of {algorithm} has no unused pieces" in err


def test_vocab_reads_standard_input(tmp_path):
    ended = run("vocab", "-", "--out", tmp_path / "v.txt", "--size", 100, "--min-count", 1, stdin=CORPUS)
    assert ended.returncode == 0
    assert "widest" in (tmp_path / "v.txt").read_text(encoding="utf-8").split()


def test_vocab_keeps_hangul_whole_when_accents_are_kept(bertworks, tmp_path):
    (tmp_path / "ko.txt").write_text("나라 나라말 우리나라 우리말\n" * 9, encoding="utf-8")
    options = ("--size", 100, "--min-count", 2, "--quiet")
    bertworks("vocab", tmp_path / "ko.txt", "--out", tmp_path / "whole.txt", "--keep-accents", *options)
    bertworks("vocab", tmp_path / "ko.txt", "--out", tmp_path / "apart.txt", *options)
    assert "나라" in read_vocabulary(tmp_path / "whole.txt")
    assert "나라" not in read_vocabulary(tmp_path / "apart.txt")
    _, out, _ = bertworks("tokenize", "--vocab", tmp_path / "whole.txt", "--keep-accents", "우리나라")
    assert "[UNK]" not in out


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, (), "corpus.txt"),  # missing
        (b"", (), "no words in"),
        (b" \n\n \n", (), "no words in"),
        (b"\x00\x01\x02\x00" * 99, (), "corpus.txt"),  # binary
        (b"good\nbad \xff\xfe line\n", ("--strict",), "corpus.txt"),
        (CORPUS.encode(), ("--size", "-3"), "size"),
        (CORPUS.encode(), ("--algorithm", "unigram"), "algorithm"),
        (CORPUS.encode(), ("--coverage", "1.5"), "coverage"),
        (CORPUS.encode(), ("--coverage", "nan"), "coverage"),
        (CORPUS.encode(), ("--workers", "0"), "--workers"),
        (CORPUS.encode(), ("--size", "100", "--unused", "90", "--min-count", "1"), "too small"),
    ],
)
def test_a_mistake_ends_in_a_line_and_exit_code_2_and_writes_nothing(bertworks, tmp_path, content, options, words):
    if content is not None:
        (tmp_path / "corpus.txt").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    code, out, err = bertworks("vocab", tmp_path / "corpus.txt", "--out", tmp_path / "v.txt", *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) <= 3
    assert sorted(tmp_path.iterdir()) == before


def test_all_wrong_settings_are_told_at_once(bertworks, corpus, tmp_path):
    options = ("--size", 5, "--min-count", 0, "--algorithm", "x")
    code, _, err = bertworks("vocab", corpus, "--out", tmp_path / "v.txt", *options)
    assert code == 2
    assert all(name in err for name in ("size", "min_count", "algorithm", "3 problems"))


def test_an_output_that_cannot_be_written_is_refused_before_the_work(bertworks, corpus, tmp_path, monkeypatch):
    from bertworks.text import learn

    monkeypatch.setattr(learn, "learn_vocabulary", lambda *_, **__: pytest.fail("the work began"))
    for out, words in ((tmp_path / "no" / "v.txt", "does not exist"), (tmp_path, "not a regular file")):
        code, _, err = bertworks("vocab", corpus, "--out", out)
        assert code == 2
        assert words in err


def test_invalid_utf8_is_replaced_and_counted(bertworks, tmp_path):
    (tmp_path / "c.txt").write_bytes(b"good day\n" * 30 + b"bad \xff line\n")
    code, out, err = bertworks("vocab", tmp_path / "c.txt", "--out", tmp_path / "v.txt", "--size", 100, "--json")
    assert code == 0
    assert json.loads(out)["replaced_lines"] == 1
    assert "1 line was not valid UTF-8" in err


def test_a_vocabulary_without_unk_is_refused(bertworks, tmp_path):
    (tmp_path / "v.txt").write_text("a\nb\n", encoding="utf-8")
    code, _, err = bertworks("tokenize", "--vocab", tmp_path / "v.txt", "a")
    assert code == 2
    assert "[UNK]" in err


def test_tokenize_json_has_ids_tokens_and_offsets(bertworks, corpus, tmp_path):
    bertworks("vocab", corpus, "--out", tmp_path / "v.txt", "--size", 100, "--min-count", 2, "--quiet")
    _, out, _ = bertworks("tokenize", "--vocab", tmp_path / "v.txt", "--json", "New low")
    result = json.loads(out)
    assert result["tokens"] == ["[CLS]", "new", "low", "[SEP]"]
    assert result["offsets"] == [[0, 0], [0, 3], [4, 7], [0, 0]]
    pieces = read_vocabulary(tmp_path / "v.txt")
    assert [pieces[id] for id in result["ids"]] == result["tokens"]


def test_a_vocabulary_of_another_normalisation_is_told(bertworks, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "문장", "##은", "New", "low"]
    (tmp_path / "v.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenize = ("tokenize", "--vocab", tmp_path / "v.txt", "문장은 New low")
    code, out, err = bertworks(*tokenize)
    assert (code, out) == (0, "[UNK] [UNK] low\n")
    assert "3 of 9 pieces" in err
    assert "such as 'New'" in err
    assert "--cased or --keep-accents, use that here too" in err
    assert bertworks(*tokenize, "--cased") == (0, "문장 ##은 New low\n", "")
    bw.Tokenizer.from_vocab(tmp_path / "v.txt", lowercase=False).save(tmp_path / "folder")
    assert bertworks("tokenize", "--vocab", tmp_path / "folder", "문장은")[2] == ""


def test_tokenize_reads_lines_from_standard_input(bertworks, corpus, tmp_path):
    bertworks("vocab", corpus, "--out", tmp_path / "v.txt", "--size", 100, "--min-count", 2, "--quiet")
    ended = run("tokenize", "--vocab", tmp_path / "v.txt", "-", stdin="new\u2028low\nlow\n")
    assert ended.stdout == "new low\nlow\n"


def test_tokenize_refuses_what_is_not_utf8(bertworks, tmp_path):
    (tmp_path / "v.txt").write_text("[UNK]\n", encoding="utf-8")
    command = [sys.executable, "-m", "bertworks", "tokenize", "--vocab", str(tmp_path / "v.txt"), "-"]
    ended = subprocess.run(command, input=b"low\n\xff\n", capture_output=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr.decode().startswith("error: standard input, line 2: not UTF-8")
    code, _, err = bertworks("tokenize", "--vocab", tmp_path / "v.txt", "\udcff")
    assert (code, err) == (2, "error: the text '\\udcff' is not UTF-8\n")


def test_unknown_command_and_option_exit_with_2():
    for arguments in (["vocabb"], ["vocab", "--sise", "3"]):
        assert CliRunner().invoke(cli.app, arguments).exit_code == 2


def test_an_interruption_exits_with_130(bertworks, corpus, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertworks.text.learn.learn_vocabulary", interrupt)
    code, out, _ = bertworks("vocab", corpus, "--out", tmp_path / "v.txt")
    assert (code, out) == (130, "")


def test_a_disk_error_is_a_line_too(bertworks, corpus, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("bertworks.text.learn.learn_vocabulary", fail)
    code, _, err = bertworks("vocab", corpus, "--out", tmp_path / "v.txt")
    assert code == 2
    assert err.startswith("error: somewhere: No space left on device (")
    assert err.endswith(" bytes are free); free some or choose another disk\n")


@pytest.mark.parametrize("command", [["tasks"], ["texts", "classify", "--train", "t.csv"]])
def test_results_that_a_full_disk_refuses_are_an_error(tmp_path, command):
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"t{n},{n % 2}\n" for n in range(99)))
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "bertworks", *command], stdout=full, stderr=subprocess.PIPE, text=True,
            cwd=tmp_path, timeout=120, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("error: cannot write standard output: No space left on device")


def in_the_foreground():
    """Undo what a shell does for its background, where these tests may run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_command_whose_output_nobody_reads_ends_at_once_and_quietly(tmp_path):
    """It reads from a pipe that gives nothing, so no write tells it."""
    (tmp_path / "v.txt").write_text("[UNK]\nlow\n")
    command = [sys.executable, "-m", "bertworks", "tokenize", "--vocab", str(tmp_path / "v.txt"), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, preexec_fn=in_the_foreground) as process:
        process.stdin.write(b"low\n" * 10_000)
        process.stdin.flush()
        assert process.stdout.readline() == b"low\n"
        process.stdout.close()
        assert process.wait(timeout=20) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_a_command_ends_with_its_children_when_nobody_reads():
    program = (
        "import sys, time; from bertworks import cli, processes\n"
        "def work(*_, **__):\n"
        "    with processes.worker_pool(2) as pool:\n"
        "        pool.submit(time.sleep, 600); print('begun', *pool._processes, flush=True)\n"
        "        time.sleep(600)\n"
        "import bertworks.demo.run as run; run.run_demo = work\n"
        "sys.argv = ['bertworks', 'demo']; cli.main()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes, preexec_fn=in_the_foreground) as process:
        children = [int(number) for number in process.stdout.readline().split()[1:]]
        process.stdout.close()
        assert process.wait(timeout=20) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    assert children
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def test_a_nul_among_the_arguments_is_refused(bertworks):
    for command in cli.app.registered_commands:
        code, _, err = bertworks(command.callback.__name__, "a\0b")
        assert (code, err) == (2, "error: argument 1, 'a\\x00b', has a NUL character, which is not allowed\n")


def test_what_a_terminal_would_obey_is_escaped_wherever_it_comes_from(bertworks, tmp_path):
    bad = "\x1b[31m\u202e"
    (tmp_path / "t.csv").write_text(f"te{bad}xt,label\na,b\n", encoding="utf-8")
    (tmp_path / "v.txt").write_text(f"[UNK]\n{bad}\n", encoding="utf-8")
    for arguments in (
        ["texts", "classify", "--train", tmp_path / "t.csv", "--column", f"{bad}=x"],
        ["plan", f"tiny{bad}"],
        ["plan", "base", f"{bad}=1"],
        ["fill", bad, "a"],
        ["vocab", f"--{bad}"],
        ["vocab", tmp_path / bad, "--out", tmp_path / "x"],
        [f"voc{bad}"],
    ):
        code, out, err = bertworks(*arguments)
        assert code == 2
        assert all(char.isprintable() or char == "\n" for char in out + err), ascii(err)
        assert "[31m" in err
        assert len(bertworks(*arguments[:-1], f"{arguments[-1]}{'x' * 9_999}")[2]) < 2_500


def test_json_escapes_what_a_terminal_would_obey_and_says_the_same(bertworks, tmp_path):
    rows = [{"text": f"{number} a\x9b31m\u202eb", "label": number % 2} for number in range(40)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _ = bertworks("texts", "classify", "--train", tmp_path / "t.jsonl", "--json", "--quiet")
    assert out.isascii()
    assert json.loads(out.splitlines()[0])["text"].endswith(" a\x9b31m\u202eb")


def offered(*words):
    """Return what a shell offers for the last of the words."""
    environment = {"_BERTWORKS_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("bertworks", *words))}
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'bertworks'; from bertworks.cli import main; main()"],
        env={**os.environ, **environment, "COMP_CWORD": str(len(words))}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.stdout.split()


def test_a_shell_completes_commands_tasks_models_recipes_and_settings():
    assert offered("fine") == ["finetune"]
    assert offered("finetune", "sq") == ["squad1", "squad2"]
    assert offered("fill", "mini-") == ["mini-ko"]
    assert offered("pretrain", "tiny-") == ["tiny-cpu"]
    assert offered("finetune", "classify", "train.ep") == ["train.epochs=3"]
    assert offered("pretrain", "tiny-cpu", "optim.lr") == ["optim.lr=0.0001"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("finetun",), "no such command 'finetun' (did you mean 'finetune'?); see `bertworks --help`"),
        (("finetune", "sst2"), "missing option '--out'; see `bertworks finetune --help`"),
        (("fill", "mini", "a", "--modle"), "no such option: --modle; see `bertworks fill --help`"),
        (("plan", "base", "--gpus", "x"), "invalid value for '--gpus': it is not a whole number; see "),
        (("attend", "mini", "a", "b", "c", "d"), "too many arguments: c d; see `bertworks attend --help`"),
    ],
)
def test_wrong_arguments_are_told_as_other_errors_are(bertworks, words, told):
    code, out, err = bertworks(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {told}")


@pytest.mark.parametrize("command", ["pretrain", "finetune", "search", "prepare", "serve"])
def test_the_help_of_a_command_ends_with_examples_that_exist(bertworks, command):
    _, out, _ = bertworks(command, "--help")
    examples = [line for line in out.rpartition(":\n")[2].splitlines() if line.startswith("  bertworks ")]
    assert examples
    for line in examples:
        _, name, *words = shlex.split(line)
        typer.main.get_command(cli.app).commands[name].make_context(name, words)
