"""Word counts equal those of a slow reference, for any chunks, merges and number of processes; failures are told."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from corpus_lines import lines_in
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks import processes
from bertworks.errors import UserError
from bertworks.text import learn as word_counts
from bertworks.text.corpus import Corpus
from bertworks.text.learn import count_texts, count_words, read_counts
from bertworks.text.normalize import Alphabet, Rules, split_words

# Where str.split() and BERT disagree, where lower-casing looks at neighbours, and what becomes several characters.
TRICKY = "aB Σσς'.\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u200b\u180e\u0301\0\ufffd한글각字漢éÅİǅ#[]!2"
TEXTS = st.text(alphabet=TRICKY, max_size=60) | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
RULES = st.builds(Rules, st.booleans(), st.booleans(), st.booleans())


def reference_counts(text: str, rules: Rules) -> Counter[str]:
    return Counter(word.text for word in split_words(text, Alphabet(rules)))


def write_corpus(folder: Path, texts: list[str]) -> Corpus:
    """Write each text to a file of its own, which makes it a block of its own."""
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:04d}.jsonl").write_text(json.dumps({"text": text}))
    return Corpus([folder])


def count_to_bytes(corpus: Corpus, workers: int = 1) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = count_words(corpus, Rules(), Path(folder), workers=workers)
        assert os.listdir(folder) == [path.name]
        return path.read_bytes()


@pytest.fixture
def many_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "_CHUNK_CHARS", 1)
    monkeypatch.setattr(word_counts, "_RUNS_MERGED_AT_ONCE", 2)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    texts = [f"The {number % 7}th line, again: ΟΔΟΣ {'ab' * (number % 5)}é 한국어\x85字" for number in range(21)]
    return write_corpus(tmp_path / "corpus", texts)


# --- exactness -----------------------------------------------------------------------------------------------------


@given(texts=st.lists(TEXTS, max_size=4), rules=RULES)
@settings(max_examples=examples(500), deadline=None)
def test_counts_of_texts_equal_those_of_the_tokenizers_words(texts: list[str], rules: Rules) -> None:
    assert count_texts(texts, Alphabet(rules)) == reference_counts("\n".join(texts), rules)


@pytest.mark.parametrize("dropped", "\x0b\x0c\x1c\x1d\x1e\x1f\x85")
def test_a_control_character_that_python_splits_at_joins_what_it_stands_between(dropped: str) -> None:
    assert count_texts([f"a{dropped}b a {dropped} b"], Alphabet(Rules())) == {"ab": 1, "a": 1, "b": 1}


@pytest.mark.parametrize("space", "\t\r\n\xa0\u2028\u2029\u3000")
def test_a_space_of_any_kind_ends_a_word(space: str) -> None:
    assert count_texts([f"a{space}b"], Alphabet(Rules())) == {"a": 1, "b": 1}


def test_a_sigma_is_final_by_its_own_word_alone() -> None:
    assert count_texts(["ΟΔΟΣ ΟΔΟΣ\x85Α Σ"], Alphabet(Rules())) == {"οδος": 1, "οδοσα": 1, "σ": 1}


@given(texts=st.lists(TEXTS, min_size=1, max_size=9), rules=RULES, workers=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_counts_of_a_corpus_equal_those_of_its_whole_text(texts: list[str], rules: Rules, workers: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(word_counts, "_CHUNK_CHARS", 1)
        monkeypatch.setattr(word_counts, "_RUNS_MERGED_AT_ONCE", 2)
        corpus = write_corpus(Path(folder) / "corpus", texts)
        counts = count_words(corpus, rules, Path(folder), workers=workers)
        assert list(read_counts(counts)) == sorted(reference_counts("\n".join(lines_in(corpus)), rules).items())


def test_any_word_survives_the_way_through_a_file(tmp_path: Path) -> None:
    counts = [("\ud800", 3), ("a\x00", 1), ("가\u0301", 10**15), ("😀\x85", 2)]
    word_counts._write_counts(tmp_path / "run", counts)
    assert list(read_counts(tmp_path / "run")) == counts


# --- the same for any way there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged_at_once", [2, 3, 32])
@pytest.mark.parametrize("chunk_chars", [1, 50, 1 << 23])
def test_chunks_and_merges_of_any_size_give_the_same_file(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, chunk_chars: int, merged_at_once: int
) -> None:
    usual = count_to_bytes(corpus)
    monkeypatch.setattr(word_counts, "_CHUNK_CHARS", chunk_chars)
    monkeypatch.setattr(word_counts, "_RUNS_MERGED_AT_ONCE", merged_at_once)
    assert count_to_bytes(corpus) == usual


@pytest.mark.usefixtures("many_small_chunks")
def test_any_number_of_workers_gives_the_same_file(corpus: Corpus) -> None:
    """F16, for word counts."""
    usual = count_to_bytes(corpus)
    assert b"\nline\t21\n" in usual
    assert [count_to_bytes(corpus, workers=workers) for workers in (2, 3)] == [usual, usual]


@pytest.mark.usefixtures("many_small_chunks")
def test_processes_that_inherit_nothing_give_the_same_file(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems without fork start processes from nothing and send them their work."""
    usual = count_to_bytes(corpus)
    monkeypatch.setattr(processes, "process_context", lambda: multiprocessing.get_context("spawn"))
    assert count_to_bytes(corpus) == usual


@pytest.mark.usefixtures("many_small_chunks")
def test_runs_are_merged_level_by_level(corpus: Corpus, tmp_path: Path) -> None:
    told = []
    path = count_words(corpus, Rules(), tmp_path, workers=1, progress=lambda *progress: told.append(progress))
    levels = [done for stage, done, _ in told if stage == "merging counts"]
    assert levels == [0, 1, 2, 3, 4]  # 22 runs, the last of them empty: 11, 6, 3, 2, 1
    assert path.name == "merged-5-000000"
    counting = [(done, total) for stage, done, total in told if stage == "counting words"]
    assert counting == sorted(counting)
    assert counting[-1] == (corpus.total_bytes, corpus.total_bytes)


def test_a_corpus_without_words_gives_an_empty_file(tmp_path: Path) -> None:
    assert count_to_bytes(write_corpus(tmp_path / "corpus", ["", "\n \n", "\0"])) == b""


@pytest.mark.usefixtures("many_small_chunks")
def test_no_more_chunks_wait_than_there_are_workers(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks under way take memory, so they are bounded however large the corpus is."""
    most = 0
    real_wait_for = word_counts.wait_for

    def watched(pending: set[Future[None]], limit: int) -> set[Future[None]]:
        nonlocal most
        most = max(most, len(pending))
        return real_wait_for(pending, limit)

    monkeypatch.setattr(word_counts, "wait_for", watched)
    count_to_bytes(corpus, workers=2)
    assert most == 3


# --- failures ------------------------------------------------------------------------------------------------------


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(*_: object) -> None:
    os._exit(0)


@pytest.mark.usefixtures("many_small_chunks")
@pytest.mark.parametrize("death", [die, leave])
@pytest.mark.parametrize("step", ["_count_chunk", "_merge_runs"])
def test_a_process_that_dies_is_a_user_error_and_no_hang(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, death: object
) -> None:
    """F10, for word counts."""
    monkeypatch.setattr(word_counts, step, death)
    with pytest.raises(UserError, match=r"^a worker process was killed.*lower --workers, now 2, "):
        count_words(corpus, Rules(), tmp_path, workers=2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_user_error() -> None:
    """F4, for word counts."""
    with pytest.raises(UserError, match=r"^cannot write /dev/full: No space left on device; .*TMPDIR"):
        word_counts._write_counts(Path("/dev/full"), [("word", 1)])


@pytest.mark.parametrize("name", ["run-000003", "merged-1-000002", "merged-5-000000"])
@pytest.mark.usefixtures("many_small_chunks")
def test_a_run_that_cannot_be_written_is_a_user_error(corpus: Corpus, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"^cannot write {tmp_path / name}: Is a directory; "):
        count_words(corpus, Rules(), tmp_path, workers=2)


def test_an_error_of_the_corpus_is_passed_on_as_it_is(corpus: Corpus, tmp_path: Path) -> None:
    def blocks() -> Iterator[str]:
        yield "fine\n"
        raise UserError("the corpus is damaged")

    corpus.blocks = blocks  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"^the corpus is damaged$"):
        count_words(corpus, Rules(), tmp_path, workers=2)


INTERRUPT_WHILE_COUNTING = """
import os, signal, sys, time
from pathlib import Path
from bertworks.text import learn
from bertworks.text.corpus import Corpus
from bertworks.text.normalize import Rules

def blocks():
    yield "a block for one of the processes"
    time.sleep(0.2)
    os.killpg(0, signal.SIGINT)
    time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it
learn._CHUNK_CHARS = 1
corpus = Corpus([sys.argv[1]])
corpus.blocks = blocks
try:
    learn.count_words(corpus, Rules(), Path(sys.argv[2]), workers=3)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_from_the_keyboard_ends_all_processes_without_a_word(corpus: Corpus, tmp_path: Path) -> None:
    """F3, for word counts: a terminal sends the signal to every process of the group."""
    command = [sys.executable, "-c", INTERRUPT_WHILE_COUNTING, str(corpus.files[0]), str(tmp_path)]
    repository = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=30, start_new_session=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
