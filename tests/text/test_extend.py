"""A vocabulary with more words: which ones, in which order, and that nothing known becomes unknown."""

import json
import shutil
from collections import Counter

import pytest

from bertworks.errors import UserError
from bertworks.text.corpus import Corpus
from bertworks.text.learn import count_texts, extend_vocabulary
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS, read_vocabulary, write_vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIAL_TOKENS, *LETTERS, *("##" + letter for letter in LETTERS), "cell", "##ase", "kin", "the", "."]
TEXT = "the kinase cell the kinases cell. " * 3 + "the transferase. " * 2 + "ox ox ox ox the"


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        return Corpus([tmp_path / "text.txt"])

    return write


def extend(corpus, pieces, **options):
    return extend_vocabulary(corpus, Tokenizer(pieces), **{"min_count": 1, "workers": 1} | options)


def test_words_come_in_the_order_of_the_tokens_they_save(write):
    """transferase saves 2 x 8, kinases 3 x 2, ox 4 x 1, kinase 3 x 1; what is one piece already saves nothing."""
    found = extend(write(TEXT), PIECES, size=len(PIECES) + 100)
    assert found.pieces[: len(PIECES)] == PIECES
    assert found.pieces[len(PIECES) :] == ["transferase", "kinases", "ox", "kinase"]
    assert found.num_added == 4


def test_the_savings_are_those_of_splitting_the_text(write):
    found = extend(write(TEXT), PIECES, size=len(PIECES) + 2)
    tokens = [len(Tokenizer(pieces).tokenize(TEXT)) for pieces in (PIECES, found.pieces)]
    assert (found.tokens_before, found.tokens_after) == tuple(tokens)
    assert tokens[0] - tokens[1] == 2 * 8 + 3 * 2
    counts = count_texts([TEXT], Alphabet(Rules()))
    assert (found.num_words, found.num_word_tokens) == (len(counts), counts.total())


def test_size_and_rare_words_are_bounds(write):
    assert extend(write(TEXT), PIECES, size=len(PIECES) + 1).pieces[len(PIECES) :] == ["transferase"]
    assert extend(write(TEXT), PIECES, size=999, min_count=3).pieces[len(PIECES) :] == ["kinases", "ox", "kinase"]
    assert extend(write("the cell."), PIECES, size=999).num_added == 0


def test_words_with_unknown_letters_are_worth_their_letters(write):
    """Korean words for an English vocabulary: a single character too, which saves no token and says something."""
    corpus, tokenizer = write("나라 나라 나라말 물 ab"), Tokenizer(PIECES, strip_accents=False)
    found = extend_vocabulary(corpus, tokenizer, size=99, min_count=1, workers=1)
    assert found.pieces[len(PIECES) :] == ["나라", "나라말", "ab", "물"]


def test_hangul_works_the_same(write):
    pieces = [*SPECIAL_TOKENS, "나", "##라", "##말", "##을", "우", "##리"]
    corpus = write("나라말을 나라말을 우리 우리 우리 나라")
    found = extend_vocabulary(corpus, Tokenizer(pieces, strip_accents=False), size=99, min_count=2, workers=1)
    assert found.pieces[len(pieces) :] == ["나라말을", "우리"]


def test_a_word_that_would_make_a_known_one_unknown_is_not_taken(write):
    """With "abc" the word "abcd" would begin with it, and there is no "##d"."""
    pieces = [*SPECIAL_TOKENS, "ab", "##c", "##cd"]
    found = extend(write("abc " * 9 + "abcd"), pieces, size=len(pieces) + 1)
    assert "[UNK]" in Tokenizer([*pieces, "abc"]).tokenize("abcd")
    assert found.pieces == pieces
    both = extend(write("abc " * 9 + "abcd"), pieces, size=len(pieces) + 2)
    assert both.pieces == [*pieces, "abc", "abcd"]


def test_any_number_of_workers_adds_the_same(write, monkeypatch):
    from bertworks.text import learn as word_counts

    corpus = write("\n\n".join(TEXT.split(".")))
    monkeypatch.setattr(word_counts, "_CHUNK_CHARS", 1)
    one, two = (extend(corpus, PIECES, size=999, workers=workers) for workers in (1, 2))
    assert one == two


@pytest.mark.parametrize(
    ("text", "size", "said"), [(TEXT, len(PIECES), "leaves no room"), (" \n", 999, "no words in the corpus")]
)
def test_mistakes_are_user_errors(write, text, size, said):
    with pytest.raises(UserError, match=said):
        extend(write(text), PIECES, size=size)


# The command


@pytest.fixture
def model(tmp_path):
    Tokenizer(PIECES, lowercase=False).save(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def test_a_models_vocabulary_becomes_a_folder_with_its_rules(bertworks, write, model, tmp_path):
    write(TEXT.replace("kinase", "Kinase"))
    options = ("--extend", model, "--size", 100, "--min-count", 1, "--out", tmp_path / "more")
    code, out, _ = bertworks("vocab", tmp_path / "text.txt", *options, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["tokens_a_word"] < result["tokens_a_word_before"]
    assert result["added"] == 4
    opened = Tokenizer.from_folder(tmp_path / "more")
    assert opened.rules == Rules(lowercase=False, strip_accents=False)
    assert opened.pieces == [*PIECES, "Kinases", "Kinase", "transferase", "ox"]
    _, out, _ = bertworks("tokenize", "--vocab", tmp_path / "more", "transferase Kinase kinase")
    assert out == "transferase Kinase kin ##ase\n"


def test_options_that_say_otherwise_than_a_folder_are_refused(bertworks, write, model, tmp_path):
    write(TEXT)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    for command in (
        ("vocab", text, "--extend", model, "--size", 100, "--min-count", 1, "--out", out),
        ("prepare", text, "--vocab", model, "--out", out),
        ("tokenize", "--vocab", model, "Kinase"),
    ):
        code, _, err = bertworks(*command, "--keep-accents")
        assert (code, out.exists()) == (2, False)
        assert f"{model} has its own rules (lowercase=false, strip_accents=false, split_cjk=true)" in err
        assert bertworks(*command, "--cased")[0] == 0, "what agrees with the folder may be said"
        shutil.rmtree(out, ignore_errors=True)


def test_a_vocabulary_file_becomes_a_file(bertworks, write, tmp_path):
    write(TEXT)
    (tmp_path / "v.txt").write_text("\n".join(PIECES) + "\n")
    options = ("--extend", tmp_path / "v.txt", "--size", 100, "--min-count", 2, "--out", tmp_path / "w.txt")
    code, out, err = bertworks("vocab", tmp_path / "text.txt", *options)
    assert code == 0
    assert "4 of them new words; the text takes" in out
    assert "warning: the text gives only 4 words" in err
    assert read_vocabulary(tmp_path / "w.txt")[len(PIECES) :] == ["transferase", "kinases", "ox", "kinase"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--extend", "MODEL", "--out", "out"], "text gives only"),
        (["--extend", "MODEL", "--out", "MODEL"], "choose a new folder"),
        (["--extend", "MODEL", "--out", "text.txt"], "makes a folder"),
        (["--extend", "MODEL", "--out", "data"], "made with another vocabulary; choose a new folder"),
        (["--algorithm", "gpt-bpe", "--out", "data"], "made with another vocabulary; choose a new folder"),
        (["--extend", "v.txt", "--out", "text.txt"], "it is an input and would be overwritten"),
        (["--extend", "nowhere", "--out", "out"], "nowhere"),
        (["--extend", "MODEL", "--out", "out", "--algorithm", "bpe"], "--extend adds whole words; leave out"),
        (
            ["--extend", "MODEL", "--out", "out", "--size", "100", "--unused", "3"],
            "--extend adds whole words; leave out",
        ),
    ],
)
def test_mistakes_of_the_command(bertworks, write, model, tmp_path, monkeypatch, options, said):
    write(TEXT)
    write_vocabulary(tmp_path / "v.txt", PIECES)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks("vocab", "text.txt", *[str(model) if option == "MODEL" else option for option in options])
    assert said in err
    assert code == (0 if "only" in said else 2)
    assert Counter(PIECES) == Counter(Tokenizer.from_folder(model).pieces)
    assert (tmp_path / "text.txt").read_text() == TEXT
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.parametrize("options", [(), ("--extend", "v.txt")])
def test_text_in_a_corpus_folder_is_not_written_over(bertworks, write, tmp_path, monkeypatch, options):
    write(TEXT)
    write_vocabulary(tmp_path / "v.txt", PIECES)
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks("vocab", ".", *options, "--size", 100, "--min-count", 1, "--out", "text.txt")
    assert (code, "it is an input and would be overwritten" in err) == (2, True)
    assert (tmp_path / "text.txt").read_text() == TEXT


def test_prepared_data_and_its_vocabulary_may_lie_among_the_text(bertworks, write, tmp_path, monkeypatch):
    write(TEXT)
    write_vocabulary(tmp_path / "v.txt", PIECES)
    monkeypatch.chdir(tmp_path)
    for out in ("first", "second"):
        assert bertworks("prepare", ".", "--vocab", "v.txt", "--out", out, "-q")[0] == 0
        sources = json.loads((tmp_path / out / "manifest.json").read_text())["sources"]
        assert [source["name"] for source in sources] == ["text.txt"]
