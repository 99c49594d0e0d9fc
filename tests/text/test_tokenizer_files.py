"""The tokenizer's files: ours open in other libraries with the same ids, theirs open here, bad ones are told apart."""

import itertools
import json

import pytest
import tokenizers

from bertworks import Tokenizer, UserError
from bertworks.text.normalize import Rules
from bertworks.text.vocabulary import read_settings

ALL_RULES = [Rules(*values) for values in itertools.product((True, False), repeat=3)]
FILES = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]
ORDINARY = [
    "The quick brown fox doesn't jump over 1,234 lazy dogs; it costs $5.50 (or €5)!",
    "Café naïve Ångström, déjà vu: İstanbul.",
    "안녕하세요, 한국어 텍스트입니다. 서울(Seoul)은 대한민국의 수도이다.",
    "我爱北京天安门，東京は日本の首都です。",
    "Привет, мир! Γειά σου, Κόσμε. مرحبا بالعالم नमस्ते",
    "tabs\tand\nlines\r\nand no\u00a0break\u3000spaces\u200b",
    "unaffable tokenization " + "x" * 90,
    "",
]


def make(pieces, rules):
    return Tokenizer(pieces, lowercase=rules.lowercase, strip_accents=rules.strip_accents, split_cjk=rules.split_cjk)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_folder(folder, config=None, vocab="[UNK]\n[CLS]\n[SEP]\na\n", **files):
    folder.mkdir(exist_ok=True)
    if vocab is not None:
        (folder / "vocab.txt").write_text(vocab)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


# -- what we write


@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
def test_a_saved_folder_opens_as_the_same_tokenizer(tmp_path, pieces, rules):
    make(pieces, rules).save(tmp_path / "new" / "model")
    again = Tokenizer.from_folder(tmp_path / "new" / "model")
    assert (again.pieces, again.rules) == (pieces, rules)
    assert sorted(contents(tmp_path / "new" / "model")) == FILES


def test_saving_twice_gives_the_same_bytes(tmp_path, pieces):
    make(pieces, Rules()).save(tmp_path / "a")
    first = contents(tmp_path / "a")
    Tokenizer.from_folder(tmp_path / "a").save(tmp_path / "a")
    make(list(pieces), Rules()).save(tmp_path / "b")
    assert first == contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
def test_the_tokenizers_library_gives_the_same_ids(tmp_path, pieces, rules):
    ours = make(pieces, rules)
    ours.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text, pair in itertools.pairwise([*ORDINARY, "a" * 200, "a" * 201]):
        ids, both = theirs.encode(text), theirs.encode(text, pair)
        assert (ids.ids, ids.tokens) == (ours.encode(text).ids, ours.encode(text).tokens)
        extra = int(not ours.tokenize(pair))  # the [SEP] that they put after a second text without tokens
        assert (both.ids[: len(both.ids) - extra], both.type_ids[: len(both.ids) - extra]) == (
            ours.encode(text, pair).ids, ours.encode(text, pair).segment_ids
        )  # fmt: skip


@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
def test_transformers_gives_the_same_ids(tmp_path, pieces, rules):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its reading is UNTESTED")
    ours = make(pieces, rules)
    ours.save(tmp_path)
    for opened in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        theirs = opened.from_pretrained(tmp_path)
        assert [theirs(text)["input_ids"] for text in ORDINARY] == [ours.encode(text).ids for text in ORDINARY]
        assert theirs(*ORDINARY[:2])["token_type_ids"] == ours.encode(*ORDINARY[:2]).segment_ids
        assert theirs.mask_token_id == ours.id_of("[MASK]")
        assert theirs.pad_token_id == ours.id_of("[PAD]")


def test_a_vocabulary_with_blank_lines_and_without_cls_is_saved_and_opened(tmp_path):
    Tokenizer(["[UNK]", "", "a", "", "##b"]).save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).pieces == ["[UNK]", "", "a", "", "##b"]
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("ab").ids == [2, 4]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, pieces):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot make the folder .*file/model: Not a directory"):
        Tokenizer(pieces).save(tmp_path / "file" / "model")


# -- what others write


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        (None, Rules()),
        ({}, Rules()),
        ({"model_max_length": 512, "tokenizer_class": "BertTokenizer"}, Rules()),
        ({"do_lower_case": False}, Rules(False, False)),
        ({"do_lower_case": True, "strip_accents": None}, Rules()),
        ({"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": True}, Rules(False, False)),
        ({"do_lower_case": True, "strip_accents": False}, Rules(True, False)),
        ({"do_lower_case": False, "strip_accents": True}, Rules(False, True)),
        ({"tokenize_chinese_chars": False}, Rules(split_cjk=False)),
    ],
)
def test_settings_of_other_folders_are_honoured(tmp_path, config, rules):
    assert Tokenizer.from_folder(write_folder(tmp_path, config)).rules == rules


BERT = "BertNormalizer"


@pytest.mark.parametrize(
    ("config", "normalizer", "rules"),
    [
        (None, {"type": BERT, "lowercase": False, "strip_accents": None}, Rules(False, False)),
        (None, {"type": BERT, "lowercase": False, "strip_accents": True}, Rules(False, True)),
        (None, {"type": BERT, "lowercase": True, "strip_accents": False}, Rules(True, False)),
        (None, {"type": BERT, "handle_chinese_chars": False}, Rules(split_cjk=False)),
        (None, {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": BERT, "lowercase": False}]}, Rules(0, 0)),
        ({"model_max_length": 512}, {"type": BERT, "lowercase": False}, Rules(False, False)),
        ({"tokenize_chinese_chars": False}, {"type": BERT, "lowercase": False}, Rules(False, False, False)),
        ({"do_lower_case": True}, {"type": BERT, "lowercase": False, "strip_accents": False}, Rules()),
        ({"do_lower_case": False}, {"type": BERT, "lowercase": True, "strip_accents": True}, Rules(False, False)),
        (None, None, Rules()),
        (None, {"type": "NFC"}, Rules()),
        (None, {"type": "Sequence", "normalizers": 5}, Rules()),
        (None, {"type": "Sequence", "normalizers": [7]}, Rules()),
        (None, [BERT], Rules()),
    ],
)
@pytest.mark.parametrize("vocab", ["[UNK]\na\n", None])
def test_what_tokenizer_config_does_not_say_is_read_from_tokenizer_json(tmp_path, config, normalizer, rules, vocab):
    tokenizer = model({"[UNK]": 0, "a": 1}) | {"normalizer": normalizer}
    assert Tokenizer.from_folder(write_folder(tmp_path, config, vocab, tokenizer=tokenizer)).rules == rules


@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
def test_tokenizer_json_alone_says_all_rules(tmp_path, pieces, rules):
    make(pieces, rules).save(tmp_path)
    for name in ("tokenizer_config.json", "vocab.txt"):
        (tmp_path / name).unlink()
        assert Tokenizer.from_folder(tmp_path).rules == rules
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.from_folder(tmp_path)
    assert [theirs.encode(text).ids for text in ORDINARY] == [again.encode(text).ids for text in ORDINARY]


@pytest.mark.parametrize(("key", "value"), [("lowercase", "no"), ("lowercase", None), ("handle_chinese_chars", 1)])
def test_a_bad_setting_of_tokenizer_json_is_named(tmp_path, key, value):
    folder = write_folder(tmp_path, tokenizer={"normalizer": {"type": BERT, key: value}})
    with pytest.raises(UserError, match=rf"tokenizer\.json: {key} is {value!r}, which is neither true nor false"):
        Tokenizer.from_folder(folder)


def test_a_folder_that_transformers_wrote_opens(tmp_path, pieces):
    """Since version 5 it holds no vocab.txt."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its files are UNTESTED")
    ours = make(pieces, Rules(False, False))
    ours.save(tmp_path / "ours")
    transformers.BertTokenizerFast.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = Tokenizer.from_folder(tmp_path / "theirs")
    assert (again.pieces, again.rules) == (ours.pieces, ours.rules)


def model(vocab, prefix="##"):
    return {"model": {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": prefix}}


def test_the_ids_of_tokenizer_json_may_come_in_any_order_and_with_holes(tmp_path):
    folder = write_folder(tmp_path, vocab=None, tokenizer=model({"a": 3, "[UNK]": 1}))
    assert Tokenizer.from_folder(folder).pieces == ["", "[UNK]", "", "a"]
    write_folder(tmp_path, vocab="[UNK]\nb\n")
    assert Tokenizer.from_folder(folder).pieces == ["[UNK]", "b"]  # vocab.txt comes first


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({}, "holds no WordPiece vocabulary"),
        ({"model": []}, "holds no WordPiece vocabulary"),
        (model(["[UNK]"]), "holds no WordPiece vocabulary"),
        (model({"[UNK]": 0}, prefix="@@"), "holds no WordPiece vocabulary"),
        (model({"[UNK]": -1}), "must be whole numbers from 0 to 9,999,999"),
        (model({"[UNK]": 10**9}), "must be whole numbers from 0 to 9,999,999"),
        (model({"[UNK]": True}), "must be whole numbers"),
        (model({"[UNK]": 0.5}), "must be whole numbers"),
        (model({"[UNK]": 0, "a": 0}), "'[UNK]' and 'a' have the same id 0"),
        (model({"a": 0}), "has no [UNK] line"),
        (model({}), "is empty"),
        ("[1]", "holds a list, not an object"),
        ("{", "not JSON"),
    ],
)
def test_a_tokenizer_json_without_a_usable_vocabulary_is_refused(tmp_path, tokenizer, message):
    with pytest.raises(UserError) as caught:
        Tokenizer.from_folder(write_folder(tmp_path, vocab=None, tokenizer=tokenizer))
    assert message in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"do_lower_case": "yes"}', "do_lower_case is 'yes', which is neither true nor false"),
        ('{"do_lower_case": null}', "do_lower_case is None, which is neither true nor false"),
        ('{"strip_accents": 0}', "strip_accents is 0, which is neither true nor false"),
        ('{"tokenize_chinese_chars": []}', "tokenize_chinese_chars is [], which is neither true nor false"),
        ("{", "json:1: not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("", "json:1: not JSON: Expecting value at column 1"),
        ("null", "holds null, not an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5_000 + "}", "not JSON: a number of 5,000 digits"),
    ],
)
def test_a_bad_tokenizer_config_is_a_user_error_with_its_name(tmp_path, config, message):
    with pytest.raises(UserError) as caught:
        read_settings(write_folder(tmp_path, config))
    assert message in str(caught.value)
    assert str(tmp_path / "tokenizer_config.json") in str(caught.value)


def test_a_config_that_is_not_utf8_is_a_user_error(tmp_path):
    (tmp_path / "tokenizer_config.json").write_bytes(b'{"\xff\xfe": 1}')
    with pytest.raises(UserError, match=r"tokenizer_config.json:1: not JSON: byte 2 is not UTF-8"):
        read_settings(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the vocabulary .*nowhere/vocab.txt: No such file or directory"):
        Tokenizer.from_folder(tmp_path / "nowhere")
