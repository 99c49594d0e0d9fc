"""T1: the tokens of google-research/bert itself, by both ways through the tokenizer.

4,000 made-up strings with the vocabularies of our own models are in this repository. 12,000 strings, real text among
them, with Google's vocabularies are other people's: they are read from a folder beside the repository, if there is one.
"""

import gzip
import json
import re
import tarfile
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from other_texts import other_text

from bertworks import Tokenizer
from bertworks.models.folder import SHIPPED_FOLDER
from bertworks.text.normalize import Alphabet, Rules, split_words
from bertworks.text.vocabulary import SPECIAL_TOKENS

MADE_UP = Path(__file__).parents[1] / "golden" / "tokenizer.jsonl.gz"
GOLDEN_UNICODE = "14.0.0"


def read_golden(path):
    with gzip.open(path, "rt", encoding="ascii") as stream:
        lines = [json.loads(line) for line in stream]
    if unicodedata.unidata_version == GOLDEN_UNICODE:
        return lines
    return [line for line in lines if not line.get("has_unassigned")]  # newer tables may know these characters


@pytest.fixture(scope="module")
def made_up():
    lines = read_golden(MADE_UP)
    assert len(lines) == 4_000 or unicodedata.unidata_version != GOLDEN_UNICODE
    return lines


@pytest.fixture(scope="module")
def golden():
    lines = read_golden(other_text("golden/tokenizer.jsonl.gz", "golden strings of the tokenizer"))
    assert len(lines) == 12_000 or unicodedata.unidata_version != GOLDEN_UNICODE
    return lines


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    with tarfile.open(other_text("data/vocab.tar.xz", "vocabularies of Google's models")) as archive:
        archive.extractall(folder, filter="data")
    return folder / "vocab"


def texts_that_differ(golden, key, encodings):
    pairs = zip(golden, encodings, strict=True)
    return [ascii(line["text"]) for line, encoding in pairs if encoding.tokens[1:-1] != line[key]]


def check_both_ways(tokenizer, lines, key, encode_compiled):
    texts = [line["text"] for line in lines]
    plain = [tokenizer.encode(text) for text in texts]
    assert tokenizer._compiled is None
    compiled = encode_compiled(tokenizer, texts)
    assert texts_that_differ(lines, key, plain) == []
    assert texts_that_differ(lines, key, compiled) == []
    assert [encoding.offsets for encoding in plain] == [encoding.offsets for encoding in compiled]
    assert [encoding.word_ids for encoding in plain] == [encoding.word_ids for encoding in compiled]


@pytest.mark.parametrize("name", ["mini", "mini-ko"])
def test_both_ways_give_the_tokens_of_the_original_for_our_models(made_up, encode_compiled, name):
    tokenizer = Tokenizer.from_folder(SHIPPED_FOLDER / name)
    check_both_ways(tokenizer, made_up, name.replace("-", "_"), encode_compiled)


def differs_by_itself(char, ours, theirs):
    """Whether the two keep, drop or split at a character differently: all known reasons, and no other."""
    if theirs.encode(f"a{char}b").tokens[1:-1] == ours.tokenize(f"a{char}b"):
        return False
    category = unicodedata.category(char)
    is_private, is_extension_e = category == "Co", 0x2B820 <= ord(char) <= 0x2B91F
    may_be_of_newer_unicode = category[0] in "MP" or category == "Cf"  # accents, punctuation, format characters
    assert is_private or is_extension_e or may_be_of_newer_unicode, ascii(char)
    return True


@pytest.mark.parametrize("library", ["tokenizers", "transformers"])
@pytest.mark.parametrize("name", ["mini", "mini-ko"])
def test_other_libraries_read_our_folders_alike_but_for_the_known_differences(made_up, name, library):
    """Without the characters and words of docs/tokenizer.md all strings are equal, and many differ with them."""
    folder = SHIPPED_FOLDER / name
    ours, theirs = Tokenizer.from_folder(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if library == "transformers":
        transformers = pytest.importorskip("transformers", reason="NO COMPARISON WITH TRANSFORMERS: not installed")
        theirs = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    longest, alphabet = {"tokenizers": 200, "transformers": 100}[library], Alphabet(ours.rules)
    chars = {char for line in made_up for char in line["text"]}
    known = re.compile("[" + re.escape("".join(c for c in sorted(chars) if differs_by_itself(c, ours, theirs))) + "]")
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    kinds = dict.fromkeys(("equal", "known character", "special token", "final sigma", "long word"), 0)
    for line in made_up:
        text, expected = line["text"], line[name.replace("-", "_")]
        if theirs.encode(text).tokens[1:-1] == expected:
            kinds["equal"] += 1
            continue
        bare = known.sub("", text)
        if special.search(bare):
            kinds["special token"] += 1
        elif any(longest < len(word.text) <= 200 for word in split_words(bare, alphabet)):
            kinds["long word"] += 1
        else:
            is_sigma = ours.rules.lowercase and "\u03a3" in bare
            kinds["final sigma" if is_sigma else "known character"] += 1
            bare = bare.replace("\u03a3", "\u03c3")
            assert theirs.encode(bare).tokens[1:-1] == ours.tokenize(bare), ascii(text)
    print(name, library, kinds)
    assert kinds["equal"] > 0.7 * len(made_up)
    assert kinds["special token"] > 0
    assert kinds["known character"] > 0
    assert (kinds["final sigma"] > 0) == ours.rules.lowercase
    assert (kinds["long word"] > 0) == (library == "transformers")


@pytest.mark.parametrize(
    ("key", "vocabulary", "lowercase"),
    [("uncased", "uncased", True), ("cased", "cased", False), ("multi_cased", "multilingual-cased", False)],
)
def test_both_ways_give_the_tokens_of_the_original(golden, vocabularies, encode_compiled, key, vocabulary, lowercase):
    tokenizer = Tokenizer.from_vocab(vocabularies / f"bert-base-{vocabulary}-vocab.txt", lowercase=lowercase)
    check_both_ways(tokenizer, golden, key, encode_compiled)


@pytest.mark.parametrize(("key", "lowercase"), [("basic_uncased", True), ("basic_cased", False)])
def test_words_are_those_of_the_original(golden, key, lowercase):
    alphabet = Alphabet(Rules(lowercase, lowercase))
    words = [[word.text for word in split_words(line["text"], alphabet)] for line in golden]
    assert [ascii(line["text"]) for line, found in zip(golden, words, strict=True) if found != line[key]] == []


@pytest.mark.parametrize("name", ["uncased", "cased", "multilingual-cased", "chinese"])
def test_the_original_vocabularies_survive_saving(vocabularies, tmp_path, name):
    first = Tokenizer.from_vocab(vocabularies / f"bert-base-{name}-vocab.txt", lowercase=name == "uncased")
    first.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert (again.pieces, again.rules) == (first.pieces, first.rules)
