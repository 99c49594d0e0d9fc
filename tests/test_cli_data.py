"""`bertworks texts`, `prepare` and `inspect` as a person or a script meets them."""

import json

import pytest
from small_models import write_small_model
from toy_tasks import QUICK, SIZES, write_task

from bertworks.text.vocabulary import SPECIAL_TOKENS

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "far", "away", "from", "it"]
DOCUMENT = "The cat sat on a mat. It saw two dogs.\nThe dogs run far away from it. And the cat sat.\n"


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS, "."]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([DOCUMENT] * 30), encoding="utf-8")
    return path


@pytest.fixture
def prepared(bertworks, corpus, vocabulary, tmp_path):
    code, _, err = bertworks("prepare", corpus, "--vocab", vocabulary, "--out", tmp_path / "data", "--workers", 1)
    assert (code, err.count("\n"), err.startswith("next: bertworks pretrain ")) == (0, 1, True)
    return tmp_path / "data"


def test_prepare_says_what_it_made(bertworks, corpus, vocabulary, tmp_path):
    options = ("--vocab", vocabulary, "--workers", 1, "--json")
    code, out, _ = bertworks("prepare", corpus, "--out", tmp_path / "data", *options)
    result = json.loads(out)
    assert code == 0
    assert (result["documents"], result["sentences"], result["tokens"]) == (30, 120, 30 * 25)


def test_prepare_warns_of_text_that_the_vocabulary_does_not_know(bertworks, vocabulary, tmp_path):
    (tmp_path / "other.txt").write_text("고양이가 앉았다.\n\n개가 달렸다.\n", encoding="utf-8")
    code, _, err = bertworks("prepare", tmp_path / "other.txt", "--vocab", vocabulary, "--out", tmp_path / "data")
    assert code == 0
    assert "66.7% of the tokens are [UNK]; is the vocabulary for this language?" in err


def test_prepared_data_is_not_overwritten(bertworks, corpus, vocabulary, prepared):
    code, _, err = bertworks("prepare", corpus, "--vocab", vocabulary, "--out", prepared)
    assert code == 2
    assert "holds prepared data already" in err


def test_a_path_that_cannot_be_looked_at_is_not_told_to_be_missing(bertworks, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, _, err = bertworks("inspect", tmp_path / "loop" / "x")
    assert (code, err.count("\n"), "cannot read" in err) == (2, 1, True)


def test_inspect_shows_counts_and_lengths(bertworks, prepared):
    code, out, _ = bertworks("inspect", prepared)
    assert code == 0
    assert "30 documents" in out
    assert "750 tokens" in out
    assert json.loads(bertworks("inspect", prepared, "--json")[1])["train"]["sentences"] == 120


@pytest.mark.parametrize("more", [("max_length=64",), ("--seed", 7)])
def test_what_is_said_of_instances_needs_some(bertworks, prepared, more):
    code, out, err = bertworks("inspect", prepared, *more)
    assert (code, out) == (2, "")
    assert "add --instances N" in err
    assert bertworks("inspect", prepared, *more, "--instances", 1)[0] == 0


def test_bad_shards_are_skipped_when_asked(bertworks, prepared, caplog):
    for name in ("tokens", "sentences", "documents"):
        content = (prepared / f"train-00000.{name}.npy").read_bytes()
        (prepared / f"train-00001.{name}.npy").write_bytes(content)
    manifest = json.loads((prepared / "manifest.json").read_text())
    manifest["files"] |= {name.replace("00000", "00001"): entry for name, entry in manifest["files"].items()}
    (prepared / "manifest.json").write_text(json.dumps(manifest))
    (prepared / "train-00001.tokens.npy").write_bytes(b"")
    code, _, err = bertworks("inspect", prepared)
    assert code == 2
    assert "train-00001.tokens.npy has 0 bytes" in err
    code, out, _ = bertworks("inspect", prepared, "--skip-bad-shards")
    assert code == 0
    assert "1 bad shards" in out
    assert "train-00001.tokens.npy has 0 bytes" in caplog.text
    (reason,) = json.loads(bertworks("inspect", prepared, "--skip-bad-shards", "--json")[1])["skipped"]
    assert "train-00001.tokens.npy" in reason
    assert bertworks("inspect", prepared, "--skip-bad-shards", "--instances", 3)[0] == 0


def test_instances_are_json_lines_and_go_on_into_the_next_epoch(bertworks, prepared):
    _, out, _ = bertworks("inspect", prepared, "--instances", 300, "--json", "max_length=24")
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == 300
    for instance in found:
        tokens = instance["tokens"]
        assert tokens[0] == "[CLS]"
        assert tokens[-1] == "[SEP]"
        assert len(tokens) == len(instance["segment_ids"]) <= 24
        assert len(instance["masked_positions"]) == len(instance["masked_tokens"]) >= 1
        assert set(instance["masked_tokens"]) <= {*WORDS, "."}
        assert isinstance(instance["is_random_next"], bool)


def test_instances_are_readable_text(bertworks, prepared):
    _, out, _ = bertworks("inspect", prepared, "--instances", 2)
    assert out.count("[CLS]") == 2
    assert out.count("masked: ") == 2
    assert out.count("next sentence: ") == 2


@pytest.mark.parametrize(("tokens", "objective"), [("gpt-bpe", "ltr"), ("words", "bilm")])
def test_other_tokens_go_from_text_to_instances(bertworks, corpus, tmp_path, tokens, objective):
    vocab = ("--out", tmp_path / "vocab", "--algorithm", tokens, "--size", 120, "--min-count", 2, "--cased", "-q")
    assert bertworks("vocab", corpus, *vocab)[0] == 0
    data = ("--tokens", tokens, "--out", tmp_path / "data", "--workers", 1, "--cased", "--json")
    code, out, err = bertworks("prepare", corpus, "--vocab", tmp_path / "vocab", *data)
    assert (code, err) == (0, "")
    assert json.loads(out)["tokens"] == 750
    assert tokens in bertworks("inspect", tmp_path / "data")[1]
    usual = bertworks("inspect", tmp_path / "data", "--instances", 40, "--json", "max_length=16")
    named = bertworks(
        "inspect", tmp_path / "data", "--instances", 40, "--json", "max_length=16", f"objective={objective}"
    )
    assert usual == named
    first = json.loads(usual[1].splitlines()[0])["tokens"]
    assert first[0] == "<S>" if tokens == "words" else all(token.endswith("</w>") for token in first)
    assert "masked" not in bertworks("inspect", tmp_path / "data", "--instances", 1)[1]


def test_a_model_learns_the_texts_of_a_task_and_then_the_task(bertworks, tmp_path):
    model = write_small_model(tmp_path / "small", **SIZES)
    train, dev = write_task(tmp_path, "classify")
    code, out, err = bertworks("texts", "classify", "--train", train, "--dev", dev)
    assert (code, "label from 'label' (guessed)" in err) == (0, True)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert out.split("\n\n")[:-1] == [row["text"] for row in rows], "every text, once, and no label"
    (tmp_path / "texts.txt").write_text(out)
    data, run = tmp_path / "data", tmp_path / "run"
    assert bertworks("prepare", tmp_path / "texts.txt", "--vocab", model, "--out", data, "--workers", 1)[0] == 0
    settings = (
        "train.max_steps=2",
        "train.batch_size=4",
        "data.objective=mlm",
        "data.max_length=16",
        "train.loader_workers=0",
    )
    code, _, err = bertworks("pretrain", "continue", "--from", model, "--data", data, "--out", run, *settings)
    assert (code, "0 new words" in err) == (0, True), err
    tuned = ("--model", run, "--train", train, "--dev", dev, "--out", tmp_path / "tuned")
    assert bertworks("finetune", "classify", *tuned, *QUICK, "--device", "cpu")[0] == 0


def test_texts_keep_out_what_finetune_measures_on(bertworks, tmp_path):
    train, _ = write_task(tmp_path, "classify")
    code, out, err = bertworks("texts", "classify", "--train", train)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert (code, "split off" in err) == (0, True)
    assert len(out.split("\n\n")[:-1]) == len(rows) - len(rows) // 10
    assert bertworks("texts", "classify", "--train", train, "--quiet")[1:] == (out, "")
    lines = bertworks("texts", "classify", "--train", train, "--json")[1].splitlines()
    assert "".join(json.loads(line)["text"] + "\n\n" for line in lines) == out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("texts", "rte"), "give --data DIR"),
        (("texts", "rte", "--train", "corpus.txt"), "your own files are for classify, regress, multilabel, "),
        (("texts", "classify", "--train", "nowhere.csv"), "nowhere.csv"),
        (("texts", "clasify", "--train", "corpus.txt"), "no task is called 'clasify'"),
        (("texts", "rte", "--data", "nowhere"), "nowhere"),
        (("inspect", "nowhere"), "'nowhere' is neither a folder that `bertworks prepare` made nor a model"),
        (("inspect", ".", "--instances", "-1"), "--instances -1 is not possible; give 1 or more"),
        (("inspect", "mini", "--instances", "2"), "mini is a model; leave out settings, --instances, --seed and"),
        (("inspect", "mini", "--seed", "1"), "--skip-bad-shards, which are for prepared data"),
        (("inspect", "mini", "--skip-bad-shards"), "--skip-bad-shards, which are for prepared data"),
        (("inspect", "mini", "foo=bar"), "--skip-bad-shards, which are for prepared data"),
        (("inspect", "corpus.txt"), "'corpus.txt' is neither a folder that `bertworks prepare` made nor a model"),
        (("inspect", "."), "no manifest.json; perhaps `bertworks prepare` was not finished) nor a model"),
        (("prepare", "nowhere.txt", "--vocab", "vocab.txt", "--out", "x"), "nowhere.txt"),
        (("prepare", "corpus.txt", "--vocab", "nowhere.txt", "--out", "x"), "nowhere.txt"),
        (("prepare", "corpus.txt", "--vocab", "vocab.txt", "--out", "x", "--holdout", "1"), "--holdout"),
        (("prepare", "corpus.txt", "--vocab", "vocab.txt", "--out", "x", "--workers", "-1"), "--workers"),
        (("prepare", "corpus.txt", "--vocab", "vocab.txt", "--out", "corpus.txt"), "corpus.txt"),
        (("prepare", "corpus.txt", "--vocab", "vocab.txt", "--out", "x", "--tokens", "words"), "--tokens wordpiece"),
        (("prepare", "corpus.txt", "--vocab", "vocab.txt", "--out", "x", "--tokens", "bytes"), "choose wordpiece"),
    ],
)
def test_a_mistake_is_one_line(bertworks, corpus, vocabulary, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = bertworks(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1


def test_an_unknown_setting_names_the_nearest(bertworks, prepared):
    code, _, err = bertworks("inspect", prepared, "--instances", 1, "masc_rate=0.2")
    assert code == 2
    assert "mask_rate" in err


def test_a_models_name_or_run_stands_for_its_vocabulary(bertworks, tmp_path):
    small = write_small_model(tmp_path / "run" / "model", **SIZES)
    assert bertworks("tokenize", "--vocab", tmp_path / "run", "cats") == bertworks("tokenize", "--vocab", small, "cats")
    code, out, _ = bertworks("tokenize", "--vocab", "mini", "The river is cold.")
    assert (code, out.split()) == (0, ["the", "river", "is", "cold", "."])
    code, _, err = bertworks("tokenize", "--vocab", "minni", "The river is cold.")
    assert (code, "there is no such file or folder" in err) == (2, True)


def test_rules_and_unknown_pieces_are_told_for_gpts_pieces_and_for_words_too(bertworks, tmp_path):
    english, korean = tmp_path / "en.txt", tmp_path / "ko.txt"
    english.write_text("The Cat sat on the Mat. The Dog ran.\n\nA Mat lay there. The Cat ran.\n" * 20)
    korean.write_text("고양이가 앉았다.\n\n개가 달렸다.\n", encoding="utf-8")
    gpt, words = tmp_path / "gpt", tmp_path / "words.txt"
    assert bertworks("vocab", english, "--algorithm", "gpt-bpe", "--size", 300, "--out", gpt)[0] == 0
    assert bertworks("vocab", english, "--algorithm", "words", "--cased", "--size", 300, "--out", words)[0] == 0
    of_gpt = ("--vocab", gpt, "--tokens", "gpt-bpe")
    code, _, err = bertworks("prepare", english, *of_gpt, "--cased", "--out", tmp_path / "a")
    assert (code, "has its own rules (lowercase=true" in err) == (2, True)
    _, _, err = bertworks("prepare", korean, *of_gpt, "--out", tmp_path / "b")
    assert "of the tokens are <unk>" in err
    _, _, err = bertworks("prepare", korean, "--vocab", words, "--tokens", "words", "--cased", "--out", tmp_path / "c")
    assert "of the tokens are <UNK>" in err
    _, _, err = bertworks("prepare", english, "--vocab", words, "--tokens", "words", "--out", tmp_path / "d")
    assert "are impossible in text without capitals" in err
    code, _, err = bertworks("vocab", english, "--extend", gpt, "--size", 400, "--out", tmp_path / "e")
    assert (code, "is a vocabulary of gpt-bpe; only WordPiece can be extended" in err) == (2, True)


def test_a_file_that_is_named_twice_is_told_to_be_read_once(bertworks, vocabulary, tmp_path, caplog):
    (tmp_path / "a.txt").write_text("the cat\n")
    files = (tmp_path / "a.txt", tmp_path / "." / "a.txt")
    assert bertworks("prepare", *files, "--vocab", vocabulary, "--out", tmp_path / "data")[0] == 0
    assert "a.txt is given more than once, and read once" in caplog.text
