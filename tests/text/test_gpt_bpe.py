"""GPT-1's tokens: equal to a slow reference on any text and to the tokenizers library on ordinary text."""

import itertools
import json
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import reference
import tokenizers
from fuzz_texts import texts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.errors import UserError
from bertworks.text import tokenizer as by_words
from bertworks.text.corpus import Corpus
from bertworks.text.gpt import END_OF_WORD, FINE_TUNING_TOKENS, MERGES_FILE, PIECES_FILE, UNK, BytePairs, GptTokenizer
from bertworks.text.learn import gpt_letter_pieces, learn_vocabulary
from bertworks.text.normalize import Rules
from bertworks.text.vocabulary import CONFIG_FILE, TOKENIZER_FILE

TEXT = """The old ferry crossed the river twice a day, and the ferryman knew every stone beneath the water.
When the river rose he crossed it once; when it fell he waited for the children who walked to school.
A naïve traveller in a café once asked: "How far is the farthest shore?" "Farther than you've walked," he said.
오래된 나룻배는 하루에 두 번 강을 건넜고 사공은 물속의 돌을 모두 알고 있었다. 東京 aaaa aaaaaaa banana bananas
"""
ALL_RULES = [Rules(*each) for each in itertools.product((True, False), repeat=3)]


def learn(text, **options):
    usual = {"size": 400, "algorithm": "gpt-bpe", "coverage": 1.0, "min_count": 1, "workers": 1}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "corpus.txt").write_text(text, encoding="utf-8")
        return learn_vocabulary(Corpus([folder]), **usual | options)


def learned_tokenizer(rules):
    learned = learn(TEXT, **rules._asdict())
    return GptTokenizer(learned.pieces, learned.merges, rules)


@pytest.fixture(scope="module")
def by_rules():
    return {rules: learned_tokenizer(rules) for rules in ALL_RULES}


@pytest.fixture(scope="module")
def uncased(by_rules):
    return by_rules[Rules()]


# --- the reference: Sennrich's method, every turn on the whole word --------------------------------------------------


def merge_in(symbols, pair):
    done = []
    while symbols:
        length = 2 if tuple(symbols[:2]) == pair else 1
        done.append("".join(symbols[:length]))
        symbols = symbols[length:]
    return done


def split_slowly(word, merges, known):
    if len(word) > 200:
        return [UNK]
    symbols = [symbol if symbol in known else "\0" for symbol in [*word[:-1], word[-1] + END_OF_WORD]]
    for pair in merges:  # in the order of learning: a pair that a later merge makes is never an earlier one
        symbols = merge_in(symbols, pair)
    return [UNK if symbol == "\0" else symbol for symbol in symbols]


def tokenize_slowly(text, tokenizer):
    words = reference.split_words(text, *tokenizer.rules)
    return [piece for word in words for piece in split_slowly(word, tokenizer.merges, set(tokenizer.pieces))]


# --- learning --------------------------------------------------------------------------------------------------------


def test_every_merge_is_a_most_frequent_pair_of_the_text_as_it_is_by_then():
    text = "low lower lowest newest widest wider slow slower banana bananas aaaa aaa " * 3
    learned = learn(text, size=100)
    words = Counter(text.split())
    split = {word: [*word[:-1], word[-1] + END_OF_WORD] for word in words}
    for merge in learned.merges:
        pairs = Counter()
        for word, symbols in split.items():
            for pair in pairwise(symbols):
                pairs[pair] += words[word]
        assert pairs[merge] == max(pairs.values())
        split = {word: merge_in(symbols, merge) for word, symbols in split.items()}
    assert len(learned.merges) > 15


def test_the_vocabulary_is_unknown_letters_pieces_in_the_order_of_merges_and_three_for_fine_tuning():
    learned = learn(TEXT, size=150)
    letters = gpt_letter_pieces(sorted({c for w in reference.split_words(TEXT, *Rules()) for c in w}), Rules())
    joined = [left + right for left, right in learned.merges]
    assert learned.pieces == [UNK, *letters, *joined, *FINE_TUNING_TOKENS]
    assert len(learned.pieces) == 150


def test_letters_that_are_always_words_have_no_form_inside_a_word():
    assert gpt_letter_pieces(["!", "a", "字"], Rules()) == ["a", "!</w>", "a</w>", "字</w>"]
    assert "字" in gpt_letter_pieces(["字"], Rules(split_cjk=False))


def test_a_size_without_room_for_the_letters_is_a_user_error():
    with pytest.raises(UserError, match=r"--size 100 is too small: the alphabet takes \d+ pieces"):
        learn(TEXT, size=100)


# --- splitting -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(texts, st.sampled_from(ALL_RULES))
@example("aaaaa banana" + "a" * 199 + " " + "b" * 200 + " " + "a" * 201, Rules())
def test_tokens_are_those_of_the_slow_reference(by_rules, text, rules):
    tokenizer = by_rules[rules]
    assert tokenizer.tokenize(text) == tokenize_slowly(text, tokenizer)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.text("ab", max_size=40), st.lists(st.tuples(*[st.text("ab", min_size=1, max_size=3)] * 2), max_size=12))
def test_any_merges_are_applied_best_first_and_leftmost_first(word, merges):
    merges = list(dict.fromkeys(merges))
    pieces = dict.fromkeys([UNK, "a", "b", *(p for pair in merges for p in (*pair, "".join(pair)))])
    ids = {piece: id for id, piece in enumerate(pieces)}
    symbols = [letter if letter in ids else UNK for letter in [*word[:-1], *(w + END_OF_WORD for w in word[-1:])]]
    while found := [(merges.index(pair), place) for place, pair in enumerate(pairwise(symbols)) if pair in merges]:
        place = min(found)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    if word:
        assert [list(pieces)[id] for id, _, _ in BytePairs(ids, merges).split(word)] == symbols


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(texts, max_size=6), st.sampled_from(ALL_RULES))
@example(["ΟΔΟΣ\x85Σ a\x0bb \x1c \u2028x", "", " "], Rules())
def test_many_texts_at_once_give_the_ids_of_each(by_rules, batch, rules):
    ids, counts = by_rules[rules].ids_of(batch)
    each = [by_rules[rules].encode(text).ids for text in batch]
    assert (ids.tolist(), counts.tolist()) == (list(itertools.chain(*each)), list(map(len, each)))
    assert (ids.dtype, counts.dtype) == ("int32", "int64")


def test_what_is_remembered_is_bounded_and_forgetting_changes_nothing(monkeypatch, uncased):
    monkeypatch.setattr(by_words, "_MAX_REMEMBERED", 20)
    monkeypatch.setattr(BytePairs, "_MAX_REMEMBERED", 10)
    tokenizer = GptTokenizer(uncased.pieces, uncased.merges)
    for number in range(300):
        text = f"{'river' * number} ferry{number} walked-{number} the"
        assert tokenizer.ids_of([text])[0].tolist() == uncased.encode(text).ids
        assert len(tokenizer._bulk._parts) <= 20 + 4
        assert len(tokenizer._pairs._remembered) <= 10
        assert max(map(len, tokenizer._bulk._parts)) <= 64


def test_a_word_of_over_200_letters_is_one_unknown(uncased):
    assert len(uncased.tokenize("a" * 200)) > 1
    assert uncased.tokenize("a" * 201) == [UNK]


def test_special_pieces_written_in_a_text_are_text(uncased):
    typed = "<unk> _start_ _classify_ a</w> _delimiter_"
    special = {uncased.id_of(token) for token in FINE_TUNING_TOKENS}
    assert not special & {*uncased.encode(typed).ids, *uncased.ids_of([typed])[0].tolist()}


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(texts, st.sampled_from(ALL_RULES))
def test_offsets_never_run_backwards_and_show_what_a_token_came_from(by_rules, text, rules):
    encoding = by_rules[rules].encode(text)
    for (start, end), (next_start, next_end) in pairwise(encoding.offsets):
        assert start <= next_start
        assert end <= next_end
    assert all(0 <= start < end <= len(text) for start, end in encoding.offsets)


def test_offsets_and_words_of_a_plain_text(uncased):
    text = "The  ferryman, waited"
    encoding = uncased.encode(text)
    joined = [(text[start:end].lower(), token.removesuffix(END_OF_WORD)) for (start, end), token in zip(
        encoding.offsets, encoding.tokens, strict=True)]  # fmt: skip
    assert all(shown == piece for shown, piece in joined)
    assert [n for n, _ in itertools.groupby(encoding.word_ids)] == [0, 1, 2, 3]
    assert set(encoding.segment_ids) == {0}


def test_decoding_gives_readable_text(uncased):
    text = "the ferryman, who walked, said: he's far."
    ids = uncased.encode(text).ids
    assert uncased.decode(ids) == text
    around = [uncased.id_of("_start_"), *ids, uncased.id_of("_classify_")]
    assert uncased.decode(around) == text
    assert uncased.decode(around, keep_special=True) == f"_start_ {text} _classify_"
    assert uncased.decode([uncased.id_of(UNK), *uncased.encode("far").ids[:-1]]).startswith(UNK)
    with pytest.raises(UserError, match=r"id 400 is not in the vocabulary of \d+ pieces"):
        uncased.decode([400])


def test_what_is_no_text_is_a_user_error(uncased):
    with pytest.raises(UserError, match="a text must be a str, not bytes"):
        uncased.encode(b"the")


# --- other libraries -------------------------------------------------------------------------------------------------

# Where BERT's rules in the tokenizers library are the original's: no newer Unicode, no controls, no sigma. And no
# special tokens, which are text here and tokens there: generated texts do contain strings of the code they test.
ordinary_texts = st.text(
    st.one_of(
        st.sampled_from("the river ferry walked"),
        st.characters(min_codepoint=0x20, max_codepoint=0x24F, exclude_categories=("Cc", "Cf")),
        st.sampled_from("가나다강을東京漢字아야“”…—"),
    ),
    max_size=120,
).filter(lambda text: not any(token in text for token in (UNK, *FINE_TUNING_TOKENS)))


@pytest.fixture(scope="module")
def theirs(by_rules, tmp_path_factory):
    found = {}
    for number, (rules, tokenizer) in enumerate(by_rules.items()):
        folder = tmp_path_factory.mktemp(f"gpt{number}")
        tokenizer.save(folder)
        found[rules] = (folder, tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)))
    return found


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(ordinary_texts, st.sampled_from(ALL_RULES))
@example(TEXT, Rules())
def test_the_tokenizers_library_gives_the_same_ids_and_offsets_on_ordinary_text(by_rules, theirs, text, rules):
    ours, other = by_rules[rules].encode(text), theirs[rules][1].encode(text)
    assert ours.ids == other.ids
    if text.isascii():
        assert ours.offsets == other.offsets


@pytest.mark.parametrize("rules", ALL_RULES)
def test_transformers_opens_the_folder(by_rules, theirs, rules):
    transformers = pytest.importorskip("transformers", reason="NO COMPARISON WITH TRANSFORMERS: it is not installed")
    opened = transformers.AutoTokenizer.from_pretrained(theirs[rules][0])
    assert opened(TEXT)["input_ids"] == by_rules[rules].encode(TEXT).ids
    assert len(opened) == len(by_rules[rules])
    if rules == Rules():
        assert type(opened) is transformers.OpenAIGPTTokenizer


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(uncased, tmp_path):
    uncased.save(tmp_path / "gpt")
    return tmp_path / "gpt"


@pytest.mark.parametrize("rules", ALL_RULES)
def test_what_is_saved_opens_as_it_was_and_gives_the_same_bytes(by_rules, tmp_path, rules):
    by_rules[rules].save(tmp_path / "a")
    opened = GptTokenizer.from_folder(tmp_path / "a")
    assert (opened.pieces, opened.merges, opened.rules) == (
        by_rules[rules].pieces,
        by_rules[rules].merges,
        rules,
    )
    opened.save(tmp_path / "b")
    names = {PIECES_FILE, MERGES_FILE, TOKENIZER_FILE, CONFIG_FILE}
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    assert (tmp_path / "a" / MERGES_FILE).read_text(encoding="utf-8").startswith("#version: 0.2\n")


def test_tokenizer_json_alone_is_enough(folder, uncased):
    for name in (PIECES_FILE, MERGES_FILE):
        (folder / name).unlink()
    opened = GptTokenizer.from_folder(folder)
    assert (opened.pieces, opened.merges) == (uncased.pieces, uncased.merges)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (MERGES_FILE, lambda text: text + "zz qq\n", r"merge \d+, 'zz' and 'qq': 'zz' is not in the vocabulary"),
        (MERGES_FILE, lambda text: text + text.split("\n")[1] + "\n", "it is listed twice"),
        (MERGES_FILE, lambda text: text + "a b c\n", "'a b c' is not a merge"),
        (PIECES_FILE, lambda text: text.replace('"<unk>": 0', '"<unk>": 1'), "have the same id 1"),
        (PIECES_FILE, lambda text: text.replace('"<unk>"', '"[UNK]"'), "has no <unk> line"),
        (PIECES_FILE, lambda text: text.replace('"<unk>": 0', '"<unk>": true'), "must be whole numbers"),
        (PIECES_FILE, lambda text: text[:40], "not JSON"),
        (PIECES_FILE, lambda text: "[]", "holds a list, not an object"),
    ],
)
def test_files_that_would_give_wrong_ids_are_user_errors(folder, name, change, reason):
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(change(text), encoding="utf-8")
    with pytest.raises(UserError, match=reason):
        GptTokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end_of_word_suffix": ""}, "no pieces of GPT-1"),
        ({"merges": 3}, "no merges"),
        ({"vocab": []}, "no vocabulary"),
    ],
)
def test_a_tokenizer_json_of_another_kind_is_a_user_error(folder, change, reason):
    for name in (PIECES_FILE, MERGES_FILE):
        (folder / name).unlink()
    content = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    content["model"] |= change
    (folder / TOKENIZER_FILE).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=reason):
        GptTokenizer.from_folder(folder)


def test_missing_files_are_user_errors(folder, tmp_path):
    (folder / MERGES_FILE).unlink()
    for missing in (folder, tmp_path / "nothing"):
        with pytest.raises(UserError, match="cannot read"):
            GptTokenizer.from_folder(missing)
