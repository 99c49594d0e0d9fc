"""Tokenizer files that say more than BERT's rules: added words keep their ids, other steps are told."""

import json

import pytest
import tokenizers

from bertworks import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "co", "##vid", "a", "##19", "."]
ADDED = ["covid", "sat"]


@pytest.fixture
def folder(tmp_path):
    Tokenizer(PIECES).save(tmp_path / "model")
    return tmp_path / "model"


def add_by_library(folder):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_tokens(ADDED)
    library.save(str(folder / "tokenizer.json"))


def add_by_file(folder):
    (folder / "added_tokens.json").write_text(json.dumps({word: len(PIECES) + n for n, word in enumerate(ADDED)}))


def add_by_config(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(len(PIECES) + n): {"content": word} for n, word in enumerate(ADDED)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("add", [add_by_library, add_by_file, add_by_config])
def test_added_words_keep_their_ids_and_are_saved(folder, tmp_path, caplog, add):
    add(folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.pieces == [*PIECES, *ADDED]
    assert "added tokens ('covid', 'sat') are found only as whole words here" in caplog.text
    if add is add_by_library:
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert tokenizer.encode("the covid cat sat.").ids == theirs.encode("the covid cat sat.").ids
    tokenizer.save(tmp_path / "again")
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "again/tokenizer.json"))
    assert saved.encode("the covid cat sat.").tokens == ["[CLS]", "the", "covid", "cat", "sat", ".", "[SEP]"]


def test_added_words_without_a_row_are_left_out_and_gaps_are_blank(folder):
    (folder / "added_tokens.json").write_text(json.dumps({"covid": len(PIECES) + 1, "sat": len(PIECES) + 9}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(PIECES) + 2}))
    assert Tokenizer.from_folder(folder).pieces == [*PIECES, "", "covid"]


@pytest.mark.parametrize(
    "content",
    [
        {"the": 99},
        {"covid": "12"},
        {"covid": -1},
        {"covid": 1.5},
        {"covid": None},
        {"cat": len(PIECES)},
        {"new": 3},
        {"a\nb": 12},
        {" b": 12},
    ],
)
def test_entries_that_add_nothing_change_nothing(folder, caplog, content):
    (folder / "added_tokens.json").write_text(json.dumps(content))
    assert Tokenizer.from_folder(folder).pieces == PIECES
    assert not caplog.records


def test_our_own_files_ask_for_nothing_else(folder, caplog):
    Tokenizer.from_folder(folder)
    Tokenizer(PIECES, lowercase=False, split_cjk=False).save(folder)
    Tokenizer.from_folder(folder)
    assert not caplog.records


def test_other_steps_are_told(folder, caplog):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    normalizers = tokenizers.normalizers
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.BertNormalizer()])
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"word_tokenizer_type": "mecab"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    Tokenizer.from_folder(folder)
    first, second, third = (record.getMessage() for record in caplog.records)
    assert "the normalizer of its tokenizer.json is NFKC + BertNormalizer, but" in first
    assert "the pre_tokenizer of its tokenizer.json is WhitespaceSplit, but" in second
    assert "words cut by mecab" in third


def test_added_words_are_found_on_the_command_line(bertworks, folder, caplog):
    (folder / "added_tokens.json").write_text(json.dumps({"covid": len(PIECES)}))
    code, out, _ = bertworks("tokenize", "--vocab", folder, "the covid cat")
    assert (code, out) == (0, "the covid cat\n")
    assert "added tokens ('covid')" in caplog.text
