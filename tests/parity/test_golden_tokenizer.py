"""T1: the tokens of google-research/bert itself, on 12,000 texts, by both ways through the tokenizer.

The texts and vocabularies are not ours to ship; they are read from a folder beside the repository where there is one.
"""

import gzip
import json
import tarfile
import unicodedata
from pathlib import Path

import pytest

from bertworks import Tokenizer
from bertworks.text.normalize import Alphabet, Rules, split_words

SHARED = Path(__file__).parents[2].parent / "shared"
GOLDEN, VOCABULARIES = SHARED / "golden" / "tokenizer.jsonl.gz", SHARED / "data" / "vocab.tar.xz"
GOLDEN_UNICODE = "14.0.0"

pytestmark = pytest.mark.skipif(
    not (GOLDEN.exists() and VOCABULARIES.exists()),
    reason=f"NO PARITY CHECK WITH THE ORIGINAL: {GOLDEN} and {VOCABULARIES} are not here",
)


@pytest.fixture(scope="module")
def golden():
    with gzip.open(GOLDEN, "rt", encoding="ascii") as stream:
        lines = [json.loads(line) for line in stream]
    assert len(lines) == 12_000
    if unicodedata.unidata_version == GOLDEN_UNICODE:
        return lines
    return [line for line in lines if not line.get("has_unassigned")]  # newer tables may know these characters


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    with tarfile.open(VOCABULARIES) as archive:
        archive.extractall(folder, filter="data")
    return folder / "vocab"


def texts_that_differ(golden, key, encodings):
    pairs = zip(golden, encodings, strict=True)
    return [ascii(line["text"]) for line, encoding in pairs if encoding.tokens[1:-1] != line[key]]


@pytest.mark.parametrize(
    ("key", "vocabulary", "lowercase"),
    [("uncased", "uncased", True), ("cased", "cased", False), ("multi_cased", "multilingual-cased", False)],
)
def test_both_ways_give_the_tokens_of_the_original(golden, vocabularies, encode_compiled, key, vocabulary, lowercase):
    tokenizer = Tokenizer.from_vocab(vocabularies / f"bert-base-{vocabulary}-vocab.txt", lowercase=lowercase)
    texts = [line["text"] for line in golden]
    plain = [tokenizer.encode(text) for text in texts]
    assert tokenizer._bulk is None
    compiled = encode_compiled(tokenizer, texts)
    assert texts_that_differ(golden, key, plain) == []
    assert texts_that_differ(golden, key, compiled) == []
    assert [encoding.offsets for encoding in plain] == [encoding.offsets for encoding in compiled]
    assert [encoding.word_ids for encoding in plain] == [encoding.word_ids for encoding in compiled]


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
