"""A learned vocabulary has the original's order, covers its text, is the same every time, and is a good one."""

import os
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.errors import ConfigError, UserError
from bertworks.text import learn
from bertworks.text import learn as word_counts
from bertworks.text.corpus import Corpus
from bertworks.text.learn import (
    Learned,
    choose_alphabet,
    count_texts,
    in_order,
    learn_vocabulary,
    letter_pieces,
    special_pieces,
)
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import read_vocabulary, write_vocabulary

REPOSITORY = Path(__file__).parents[2]
ENGLISH = """The old ferry crossed the river twice a day, and the ferryman knew every stone beneath the water.
When the river rose he crossed it once; when it fell he waited for the children who walked to school.
A naïve traveller in a café once asked him: how far is the farthest shore? Farther than you have walked, he said.
"""
KOREAN = """오래된 나룻배는 하루에 두 번 강을 건넜고 사공은 물속의 돌을 모두 알고 있었다.
강물이 불어나면 한 번만 건넜고 강물이 줄어들면 학교에 가는 아이들을 기다렸다.
나그네가 물었다. 강 건너 마을은 얼마나 먼가요? 사공은 웃으며 강물을 바라보았다.
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_text(text: str, name: str = "corpus.txt") -> Corpus:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return Corpus([tmp_path / name])

    return write_text


def learn_from(text: str, **options: Any) -> Learned:
    """Learn with one process from every letter of a small text."""
    usual = {"size": 400, "coverage": 1.0, "min_count": 1, "workers": 1}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "corpus.txt").write_text(text, encoding="utf-8")
        return learn_vocabulary(Corpus([folder]), **{**usual, **options})


# --- order ---------------------------------------------------------------------------------------------------------


def test_reserved_pieces_stand_where_the_original_vocabulary_has_them() -> None:
    pieces = learn_from(ENGLISH, size=1200, unused=994).pieces
    expected = {"[PAD]": 0, "[unused0]": 1, "[unused98]": 99, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    expected |= {"[unused99]": 104, "[unused993]": 998, ",": 999}
    assert {piece: pieces.index(piece) for piece in expected} == expected


@pytest.mark.parametrize("unused", [0, 1, 5, 98, 99, 100, 994])
def test_any_number_of_reserved_pieces_is_there_once_and_in_order(unused: int) -> None:
    pieces = special_pieces(unused)
    assert pieces[0] == "[PAD]"
    assert pieces[min(unused, 99) + 1 :][:4] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [piece for piece in pieces if piece.startswith("[unused")] == [f"[unused{n}]" for n in range(unused)]
    assert len(pieces) == unused + 5


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_letters_come_first_then_pieces_by_use(algorithm: str) -> None:
    learned = learn_from(ENGLISH, algorithm=algorithm, size=120)
    firsts = learned.pieces[5 : 5 + learned.num_letters]
    inside = ["##" + letter for letter in firsts if letter.isalpha()]
    letters, longer = firsts + inside, learned.pieces[5 + len(firsts) + len(inside) :]
    assert firsts == sorted(set("".join(ENGLISH.lower().replace("ï", "i").replace("é", "e").split())))
    assert learned.pieces == [*special_pieces(0), *letters, *longer]
    used = Counter(Tokenizer(learned.pieces).tokenize(ENGLISH))
    half = len(longer) // 2
    assert sum(used[piece] for piece in longer[:half]) > sum(used[piece] for piece in longer[half:]) > 0


def test_the_most_used_pieces_are_kept_and_ties_go_by_the_alphabet() -> None:
    used = {"a": 0, "##b": 9, "xy": 3, "##ab": 7, "ab": 3, "##q": 0, "rare": 1}
    assert in_order(["a", "##b", "##q"], used, room=6) == ["a", "##b", "##q", "##ab", "ab", "xy"]


# --- alphabet ------------------------------------------------------------------------------------------------------


@given(
    counts=st.dictionaries(st.characters(), st.integers(1, 1000), min_size=1, max_size=40),
    coverage=st.floats(0.01, 1.0),
    min_count=st.integers(1, 50),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_alphabet_is_the_fewest_letters_that_cover_the_share(
    counts: dict[str, int], coverage: float, min_count: int
) -> None:
    alphabet = choose_alphabet(counts, coverage, min_count)
    left_out = [count for letter, count in counts.items() if letter not in alphabet]
    least = min(counts[letter] for letter in alphabet)
    assert alphabet == sorted(set(alphabet))
    assert least >= max(left_out, default=0)
    wanted, covered = coverage * sum(counts.values()), sum(counts[letter] for letter in alphabet)
    assert covered - least < wanted + 1e-6, "the rarest letter was not needed"
    if max(left_out, default=0) >= min_count:
        assert covered >= wanted - 1e-6
    assert len(alphabet) == 1 or least >= min_count


def test_the_alphabet_stops_at_the_share_exactly() -> None:
    assert choose_alphabet({"a": 1, "b": 1}, 0.5, min_count=1) == ["a"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(), ["!", "a", "字", "가", "##a", "##가"]),
        (Rules(split_cjk=False), ["!", "a", "字", "가", "##a", "##字", "##가"]),
    ],
)
def test_only_letters_that_can_stand_inside_a_word_have_a_piece_for_it(rules: Rules, expected: list[str]) -> None:
    assert letter_pieces(["!", "a", "字", "가"], rules) == expected


def test_letters_below_the_coverage_are_left_out() -> None:
    text = "a" * 99 + " z"
    assert "z" in learn_from(text).pieces
    assert "z" not in learn_from(text, coverage=0.98).pieces
    assert learn_from(text, coverage=0.98).num_letters == 1


def test_letters_below_the_least_count_are_left_out() -> None:
    assert "z" not in learn_from("aa aa zz z", min_count=4).pieces
    assert "z" in learn_from("aa aa zz z", min_count=3).pieces
    assert learn_from("z", min_count=3).pieces[5:] == ["z", "##z"], "one letter there must be"


@pytest.mark.parametrize(("algorithm", "first"), [("bpe", "ab"), ("wordpiece", "xy")])
def test_bpe_learns_what_is_frequent_and_wordpiece_what_belongs_together(algorithm: str, first: str) -> None:
    text = "ab ab ab ab ab aa aa aa ba ba ba bb bb bb xy xy xy xy"
    pieces = learn_from(text, algorithm=algorithm, size=100, unused=86).pieces  # room for one piece beside the letters
    assert pieces[-9:] == [*"abxy", "##a", "##b", "##x", "##y", first]


# --- what a vocabulary can do --------------------------------------------------------------------------------------


WORDS = st.lists(st.text("abcxyzé한글각字漢!", min_size=1, max_size=12), min_size=1, max_size=20)
RULES = st.builds(Rules, st.booleans(), st.booleans(), st.booleans())


@given(words=WORDS, rules=RULES, algorithm=st.sampled_from(["wordpiece", "bpe"]))
@settings(max_examples=25, deadline=None)
def test_words_of_known_letters_are_never_unknown(words: list[str], rules: Rules, algorithm: str) -> None:
    learned = learn_from(" ".join(words), **rules._asdict(), algorithm=algorithm)
    assert len(set(learned.pieces)) == len(learned.pieces) <= 400
    tokenizer = Tokenizer(
        learned.pieces, lowercase=rules.lowercase, strip_accents=rules.strip_accents, split_cjk=rules.split_cjk
    )
    draw = random.Random(0)
    again = ["".join(draw.sample(word, len(word))) for word in words]
    assert "[UNK]" not in tokenizer.tokenize(" ".join([*words, *again]))


def test_letters_in_long_words_count_and_the_words_themselves_do_not() -> None:
    learned = learn_from("ab" * 101 + " cd cd")
    assert learned.pieces[5:] == [*"abcd", "##a", "##b", "##c", "##d", "cd"]
    assert learned.num_words == 2


def test_a_small_corpus_gives_fewer_pieces_than_asked_for() -> None:
    learned = learn_from("low lower lowest", size=30_522)
    assert learned[1:6] == (3, 3, 7, 1, [])
    assert len(learned.pieces) < 30
    assert {"low", "lower", "lowest"} <= set(learned.pieces)


def test_a_vocabulary_fills_its_size_exactly_and_survives_a_file(tmp_path: Path) -> None:
    learned = learn_from(ENGLISH + KOREAN, size=300, unused=7)
    assert len(learned.pieces) == 300
    write_vocabulary(tmp_path / "vocab.txt", learned.pieces)
    assert read_vocabulary(tmp_path / "vocab.txt") == learned.pieces


def test_cased_vocabularies_keep_capitals_and_uncased_ones_do_not() -> None:
    cased = learn_from(ENGLISH, lowercase=False).pieces
    uncased = learn_from(ENGLISH).pieces
    assert {"The", "When", "naïve", "ï"} <= set(cased)
    assert {"the", "when", "naive"} <= set(uncased)
    assert not any(letter in "".join(uncased[5:]) for letter in "TWï")


def test_korean_is_whole_syllables_where_accents_are_kept_and_letters_where_not() -> None:
    whole = learn_from(KOREAN, strip_accents=False).pieces
    assert {"강", "##물", "강물이"} <= set(whole)
    apart = learn_from(KOREAN).pieces
    assert {"\u1100", "##\u1161", "##\u11bc"} <= set(apart)  # the letters of 강
    assert not any("가" <= letter <= "힣" for letter in "".join(apart))


# --- memory --------------------------------------------------------------------------------------------------------


def test_words_that_do_not_fit_in_memory_are_left_out_by_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "aaa aaa aaa bbb bbb ccc ccc ddd eee"
    for letters_in_memory, rarest in [(15, 1), (14, 2), (9, 2), (8, 3), (3, 3), (2, 4)]:
        monkeypatch.setattr(learn, "_MAX_LETTERS_IN_MEMORY", letters_in_memory)
        learned = learn_from(text)
        assert learned.rarest_word == rarest
        assert learned.num_words == 5
        whole_words = {word for word in learned.pieces if len(word) == 3 and word.isalpha()}
        assert whole_words == {word for word in text.split() if text.count(word) >= rarest}
        assert {*"abcde"} <= set(learned.pieces), "letters are taken from all words"


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t\n", "\x01\u200b\n"])
def test_a_corpus_without_words_is_a_user_error(write: Any, text: str) -> None:
    with pytest.raises(UserError, match=r"^no words in .*corpus\.txt; nothing to learn"):
        learn_vocabulary(write(text), workers=1)


def test_an_error_names_three_files_and_counts_the_others(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / f"{name}.txt").touch()
    with pytest.raises(UserError, match=r"^no words in \S*a\.txt, \S*b\.txt, \S*c\.txt and 2 more; "):
        learn_vocabulary(Corpus([tmp_path]), workers=1)


def test_a_size_that_cannot_hold_the_alphabet_is_a_user_error_with_one_that_can() -> None:
    text = "ab, ba"  # 3 letters, and 2 of them inside a word: 5 pieces
    with pytest.raises(UserError) as caught:
        learn_from(text, size=103, unused=94)
    assert str(caught.value) == (
        "--size 103 is too small: the alphabet takes 5 pieces, special and unused ones 99; "
        "raise --size to at least 104, or lower --coverage"
    )
    assert learn_from(text, size=104, unused=94).pieces[-5:] == [",", "a", "b", "##a", "##b"]


def test_all_wrong_settings_are_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "count_words", lambda *_, **__: pytest.fail("the work began"))
    with pytest.raises(ConfigError) as caught:
        learn_from("a", algorithm="wordpeice", coverage=0.0, min_count=0, unused=-1, size=7)
    assert all(name in str(caught.value) for name in ("wordpeice", "coverage", "min_count", "unused", "size"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fail(*_: object, **__: object) -> None:
    raise UserError("stop here")


@pytest.mark.parametrize("step", [None, "count_words", "choose_alphabet", "_load_words"])
def test_no_temporary_file_is_left(
    write: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    corpus = write(ENGLISH)
    if step is None:
        learn_vocabulary(corpus, workers=2)
    else:
        monkeypatch.setattr(learn, step, fail)
        with pytest.raises(UserError, match="stop here"):
            learn_vocabulary(corpus, workers=2)
    assert os.listdir(scratch) == []


def test_no_temporary_file_is_left_when_a_process_fails(
    write: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(ENGLISH)
    monkeypatch.setattr(word_counts, "_count_chunk", fail)
    with pytest.raises(UserError, match="stop here"):
        learn_vocabulary(corpus, workers=2)
    assert os.listdir(scratch) == []


def test_no_place_for_temporary_files_is_a_user_error(write: Any, scratch: Path) -> None:
    """F5, for vocabularies."""
    corpus = write(ENGLISH)
    scratch.rmdir()
    with pytest.raises(UserError, match=r"^cannot make a temporary folder: No such file or directory; set TMPDIR"):
        learn_vocabulary(corpus, workers=1)


# --- the same every time -------------------------------------------------------------------------------------------


LEARN_AND_PRINT = """
import hashlib, sys
from bertworks.text.corpus import Corpus
from bertworks.text.learn import learn_vocabulary
learned = learn_vocabulary(Corpus(sys.argv[1:2]), size=300, min_count=1, coverage=1.0, workers=int(sys.argv[2]))
sys.stdout.write(hashlib.sha256("\\n".join(learned.pieces).encode()).hexdigest() + f" {len(learned.pieces)}")
"""


def test_hash_seeds_locales_time_zones_and_processes_do_not_matter(tmp_path: Path) -> None:
    """F15 and F16, for vocabularies: byte for byte the same in fresh processes."""
    (tmp_path / "corpus.txt").write_text(ENGLISH + KOREAN, encoding="utf-8")
    results = set()
    for workers, hash_seed, locale, zone in [
        ("1", "0", "C.UTF-8", "UTC"),
        ("2", "1", "C", "Asia/Seoul"),
        ("3", "random", "POSIX", "America/St_Johns"),
    ]:
        changed = {"PYTHONHASHSEED": hash_seed, "LC_ALL": locale, "PYTHONUTF8": "0", "TZ": zone}
        command = [sys.executable, "-c", LEARN_AND_PRINT, str(tmp_path / "corpus.txt"), workers]
        ended = subprocess.run(command, env={**os.environ, **changed}, cwd=REPOSITORY, capture_output=True, timeout=60)
        assert ended.returncode == 0, ended.stderr.decode()
        results.add(ended.stdout)
    assert len(results) == 1
    assert results.pop().endswith(b" 300")


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_any_number_of_workers_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    for number, line in enumerate((ENGLISH + KOREAN).splitlines()):
        (tmp_path / f"{number}.txt").write_text(line, encoding="utf-8")
    monkeypatch.setattr(word_counts, "_CHUNK_CHARS", 1)
    options: dict[str, Any] = {"size": 350, "algorithm": algorithm, "min_count": 1}
    one, *others = (learn_vocabulary(Corpus([tmp_path]), workers=workers, **options) for workers in (1, 2, 3))
    assert others == [one, one]


def test_progress_is_told_stage_by_stage(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "_CHUNK_CHARS", 1)
    told: list[tuple[str, float, float | None]] = []
    learn_vocabulary(write(ENGLISH), min_count=1, workers=1, progress=lambda *now: told.append(now))
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["counting words", "merging counts", "learning pieces"]
    assert all(total is None or done <= total for _, done, total in told)


# --- quality -------------------------------------------------------------------------------------------------------


HELP_TOPICS = [topics[name] for name in sorted(topics)]
LEARNED_FROM, HELD_OUT = "\n".join(HELP_TOPICS[::2]), "\n".join(HELP_TOPICS[1::2])


def tokens_per_word(pieces: list[str]) -> float:
    tokenizer = Tokenizer(pieces)
    counts = count_texts([HELD_OUT], Alphabet(Rules()))
    return sum(count * len(tokenizer.tokenize(word)) for word, count in counts.items()) / counts.total()


def merge_by_ratio(counts: Counter[str], letters: list[str], num_pieces: int) -> list[str]:
    """Merge the pair with the greatest count(ab) / (count(a) count(b)), which many take for WordPiece's criterion."""
    words = [([word[0], *("##" + letter for letter in word[1:])], count) for word, count in counts.items()]
    symbols: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def tell(number: int, sign: int) -> None:
        pieces, count = words[number]
        symbols.update({piece: sign * count * times for piece, times in Counter(pieces).items()})
        pairs.update({pair: sign * count * times for pair, times in Counter(pairwise(pieces)).items()})
        for pair in pairwise(pieces):
            (where[pair].add if sign > 0 else where[pair].discard)(number)

    for number in range(len(words)):
        tell(number, 1)
    learned = list(letters)
    while len(learned) < num_pieces and +pairs:
        best = max(+pairs, key=lambda pair: (pairs[pair] / (symbols[pair[0]] * symbols[pair[1]]), pair))
        learned.append(best[0] + best[1].removeprefix("##"))
        for number in sorted(where[best]):
            tell(number, -1)
            old, new = words[number][0], []
            while old:
                is_best = tuple(old[:2]) == best
                new.append(learned[-1] if is_best else old[0])
                old = old[2 if is_best else 1 :]
            words[number] = (new, words[number][1])
            tell(number, 1)
    return learned


def test_held_out_text_takes_far_fewer_tokens_than_with_the_ratio_criterion() -> None:
    """Measured: 1.12 tokens a word, against 1.95 by the ratio; a wrong formula for the gain would show here."""
    options: dict[str, Any] = {"size": 2_000, "min_count": 2, "coverage": 0.99995}
    by_gain = learn_from(LEARNED_FROM, algorithm="wordpiece", **options).pieces
    by_count = learn_from(LEARNED_FROM, algorithm="bpe", **options).pieces
    assert len(by_gain) == len(by_count) == 2_000
    frequent = Counter(dict(count_texts([LEARNED_FROM], Alphabet(Rules())).most_common(1_500)))
    letters = sorted({piece for piece in by_gain[5:] if len(piece.removeprefix("##")) == 1})
    known = Counter({word: count for word, count in frequent.items() if set(word) <= set(letters)})
    by_ratio = special_pieces(0) + merge_by_ratio(known, letters, 1_995)
    assert len(by_ratio) == 2_000
    assert tokens_per_word(by_gain) < 0.7 * tokens_per_word(by_ratio)
    assert tokens_per_word(by_gain) < 1.03 * tokens_per_word(by_count)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_learning_more_pieces_and_keeping_the_used_ones_saves_tokens(
    monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    options: dict[str, Any] = {"size": 1_000, "algorithm": algorithm, "min_count": 2, "coverage": 0.99995}
    usual = learn_from(LEARNED_FROM, **options).pieces
    monkeypatch.setattr(learn, "_OVERSHOOT", 1.0)
    assert tokens_per_word(usual) < 0.98 * tokens_per_word(learn_from(LEARNED_FROM, **options).pieces)
