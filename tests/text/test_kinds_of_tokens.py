"""A vocabulary tells its kind, and is never opened as another."""

import pytest

from bertworks.errors import UserError
from bertworks.text.elmo_words import WordTokenizer
from bertworks.text.gpt import GptTokenizer
from bertworks.text.kinds import CLASSES, kind_of, open_tokenizer
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

MADE = {
    "wordpiece": Tokenizer([*SPECIAL_TOKENS, "a"]),
    "gpt-bpe": GptTokenizer(["<unk>", "a", "b</w>", "ab</w>"], [("a", "b</w>")]),
    "words": WordTokenizer(["<S>", "</S>", "<UNK>", "a"]),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_saved_folder_tells_its_kind_and_opens(tmp_path, kind):
    MADE[kind].save(tmp_path)
    assert kind_of(tmp_path) == MADE[kind].kind == kind
    for asked in (kind, None):
        opened = open_tokenizer(tmp_path, Rules(False, False, False), asked)
        assert type(opened) is CLASSES[kind]
        assert (opened.pieces, opened.rules) == (MADE[kind].pieces, MADE[kind].rules)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("asked", CLASSES)
def test_another_kind_than_asked_for_is_a_user_error(tmp_path, kind, asked):
    MADE[kind].save(tmp_path)
    if kind != asked:
        with pytest.raises(UserError, match=f"is a vocabulary of {kind}, not {asked}; use --tokens {kind}"):
            open_tokenizer(tmp_path, Rules(), asked)


def test_a_folder_with_tokenizer_json_alone_tells_its_kind(tmp_path):
    MADE["gpt-bpe"].save(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).unlink()
    assert kind_of(tmp_path) == "gpt-bpe"


@pytest.mark.parametrize(
    ("content", "kind"),
    [("<S>\r\n</S>\r\n<UNK>\r\na\r\n", "words"), ("<S>", "words"), ("<SS>\n", "wordpiece"), ("", "wordpiece")],
)
def test_a_file_tells_its_kind_by_its_first_line(tmp_path, content, kind):
    (tmp_path / "vocab.txt").write_text(content, encoding="utf-8", newline="")
    assert kind_of(tmp_path / "vocab.txt") == kind


def test_a_file_of_words_opens_with_the_rules_given(tmp_path):
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\na\n", encoding="utf-8")
    assert open_tokenizer(tmp_path / "words.txt", Rules(), "words").rules == Rules()


def test_what_is_not_there_or_not_known_is_a_user_error(tmp_path):
    for kind in (None, *CLASSES):
        with pytest.raises(UserError, match=r"cannot read the vocabulary .*nothing\.txt: there is no such file"):
            open_tokenizer(tmp_path / "nothing.txt", Rules(), kind)
        with pytest.raises(UserError, match="the folder has none of"):
            open_tokenizer(tmp_path, Rules(), kind)
    with pytest.raises(UserError, match="no tokens of kind 'bytes'; choose wordpiece, gpt-bpe, words"):
        open_tokenizer(tmp_path, Rules(), "bytes")
