"""From a corpus to a vocabulary: count words, choose the alphabet, merge, keep what is used, put it in order.

Merging leaves stepping stones behind: "##ationa" is of no use once "##ational" is there. So a fifth more pieces than
asked for are learned, and those that the text uses most are kept; held-out text then takes 1 % fewer tokens.
The order is the original's: [PAD], 99 unused, [UNK] [CLS] [SEP] [MASK], the other unused, letters, pieces by use.

GPT-1's pieces are made by replaying the merges, so all stepping stones stay: <unk>, letters, pieces in the order of
merging, and three for fine-tuning. ELMo's list is the most frequent words, without merging.
"""

import heapq
import itertools
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from bertworks.errors import UserError
from bertworks.processes import Progress, num_workers, progress_bar, silent, wait_for, worker_pool
from bertworks.text.corpus import Corpus
from bertworks.text.elmo_words import SPECIAL_WORDS
from bertworks.text.gpt import END_OF_WORD, FINE_TUNING_TOKENS, letters_of
from bertworks.text.gpt import UNK as GPT_UNK
from bertworks.text.normalize import Alphabet, Rules, is_cjk, is_punctuation, split_spaces, words_of
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CONTINUATION, PAD, SPECIAL_TOKENS, UNK
from bertworks.text.wordpiece import MAX_WORD_LENGTH, WordPiece

if TYPE_CHECKING:
    from bertworks.text.merges import Words


# How often each normalised word occurs in a corpus: exact, in bounded memory, the same for any number of processes.
#
# The text is cut into chunks. A process counts the white-space tokens of a chunk, which Python does fast, and
# applies the tokenizer's rules to each distinct token once. Its counts go to disk as a run, sorted by word; runs
# are merged, many at a time, until one is left. Nothing is dropped on the way, so the order of arrival cannot
# matter.


_CHUNK_CHARS = 1 << 23
_RUNS_MERGED_AT_ONCE = 32


def count_words(
    corpus: Corpus, rules: Rules, folder: Path, *, workers: int | None = None, progress: Progress = silent
) -> Path:
    """Count the words of a corpus and return the file of counts in `folder`; `read_counts` reads it."""
    workers = num_workers(workers)
    with worker_pool(workers) as pool:
        return _merge_all(pool, _count_chunks(pool, corpus, rules, folder, workers, progress), folder, progress)


def read_counts(path: Path) -> Iterator[tuple[str, int]]:
    """Give the words of a file of counts, sorted, with how often each occurs."""
    with open(path, encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
        for line in stream:
            word, _, count = line.rpartition("\t")
            yield word, int(count)


def count_texts(texts: Iterable[str], alphabet: Alphabet) -> Counter[str]:
    """Count the normalised words of some texts."""
    tokens: Counter[str] = Counter()
    for text in texts:
        tokens.update(split_spaces(text))
    words: Counter[str] = Counter()
    for token, count in tokens.items():
        for word in words_of(token, alphabet):
            words[word] += count
    return words


def _count_chunks(
    pool: ProcessPoolExecutor, corpus: Corpus, rules: Rules, folder: Path, workers: int, progress: Progress
) -> list[Path]:
    runs: list[Path] = []
    pending: set[Future[None]] = set()
    for chunk in _chunks(corpus.blocks()):
        runs.append(folder / f"run-{len(runs):06d}")
        pending.add(pool.submit(_count_chunk, chunk, rules, runs[-1]))
        # Chunks that wait take memory: one more than can be worked on keeps every process busy.
        pending = wait_for(pending, workers)
        progress("counting words", corpus.bytes_read, corpus.total_bytes)
    wait_for(pending, 0)
    return runs


def _merge_all(pool: ProcessPoolExecutor, runs: list[Path], folder: Path, progress: Progress) -> Path:
    level = 0
    while len(runs) > 1:
        progress("merging counts", level, None)
        level += 1
        groups = [runs[first : first + _RUNS_MERGED_AT_ONCE] for first in range(0, len(runs), _RUNS_MERGED_AT_ONCE)]
        runs = [folder / f"merged-{level}-{number:06d}" for number in range(len(groups))]
        list(pool.map(_merge_runs, groups, runs))
    return runs[0]


def _count_chunk(blocks: list[str], rules: Rules, path: Path) -> None:
    _write_counts(path, sorted(count_texts(blocks, Alphabet(rules)).items()))


def _merge_runs(runs: list[Path], path: Path) -> None:
    merged = heapq.merge(*map(read_counts, runs))
    groups = itertools.groupby(merged, key=itemgetter(0))
    _write_counts(path, ((word, sum(count for _, count in group)) for word, group in groups))
    for run in runs:
        run.unlink()


def _write_counts(path: Path, counts: Iterable[tuple[str, int]]) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
            stream.writelines(f"{word}\t{count}\n" for word, count in counts)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; free some space, or set TMPDIR to a folder on another disk"
        ) from error


def _chunks(blocks: Iterable[str]) -> Iterator[list[str]]:
    """Gather blocks into chunks; the last may be empty, so that there is always one."""
    gathered: list[str] = []
    size = 0
    for block in blocks:
        gathered.append(block)
        size += len(block)
        if size >= _CHUNK_CHARS:
            yield gathered
            gathered, size = [], 0
    yield gathered


Algorithm = Literal["wordpiece", "bpe", "gpt-bpe", "words"]

_OVERSHOOT = 1.2
_MAX_LETTERS_IN_MEMORY = 32_000_000  # of distinct words; a larger corpus is learned from its more frequent ones
_UNUSED_BEFORE_UNK = 99


class Learned(NamedTuple):
    """A vocabulary and what it was made from."""

    pieces: list[str]
    num_words: int  # distinct
    num_word_tokens: int
    num_letters: int  # size of the alphabet
    rarest_word: int  # words that occur less often were not used for merging
    merges: list[tuple[str, str]]  # of gpt-bpe, in the order in which they were learned


class _Form(NamedTuple):
    """How a kind of vocabulary writes words, and the special pieces it has before and behind the learned ones."""

    before: list[str]
    letters: list[str]  # the pieces to start from
    letters_of: Callable[[str], list[str]]
    behind: list[str]


class _Survey(NamedTuple):
    """One look at all words: how often letters occur, and how many letters the words of each frequency have."""

    letter_counts: Counter[str]
    letters_by_count: Counter[int]
    num_words: int
    num_word_tokens: int


def learn_vocabulary(
    corpus: Corpus,
    *,
    size: int = 30_522,
    algorithm: Algorithm = "wordpiece",
    rules: Rules | None = None,
    unused: int = 0,
    coverage: float = 0.99995,
    min_count: int = 20,
    workers: int | None = None,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Learned:
    """Learn a vocabulary from a corpus; the same for any number of workers.

    Args:
        corpus: the text.
        size: how many pieces to have, special and unused ones among them.
        algorithm: `wordpiece` merges by gain in likelihood, `bpe` by count, `gpt-bpe` by count to the pieces of GPT-1;
            `words` takes the most frequent words.
        rules: how text is normalised; the uncased models' if not given.
        unused: how many [unusedN] pieces to reserve (the original uncased vocabulary has 994).
        coverage: the share of the text's letters that the alphabet must cover.
        min_count: letters, pairs and (for `words`) words that occur less often are not used.
        workers: how many processes count; as many as there are cores if not given.
        quiet: show nothing; else a bar, or lines where there is no terminal.
        progress: is told how far it is, instead.
    """
    from bertworks.config import VocabSettings, validate

    settings = {"size": size, "algorithm": algorithm, "unused": unused, "coverage": coverage, "min_count": min_count}
    validate(VocabSettings, settings, "learn_vocabulary")
    if progress is None:
        with progress_bar(quiet=quiet) as bar:
            return learn_vocabulary(
                corpus, size=size, algorithm=algorithm, rules=rules, unused=unused, coverage=coverage,
                min_count=min_count, workers=workers, progress=bar,
            )  # fmt: skip
    rules = rules or Rules()
    with scratch_folder() as folder:
        counts = count_words(corpus, rules, folder, workers=workers, progress=progress)
        survey = _survey(counts)
        if not survey.num_words:
            raise UserError(f"no words in {_names(corpus)}; nothing to learn a vocabulary from")
        if algorithm == "words":
            pieces = frequent_words(read_counts(counts), size, min_count)
            return Learned(pieces, survey.num_words, survey.num_word_tokens, len(survey.letter_counts), min_count, [])
        alphabet = choose_alphabet(survey.letter_counts, coverage, min_count)
        form = _form(alphabet, rules, unused, for_gpt=algorithm == "gpt-bpe")
        _check_room(form, size)
        rarest = _rarest_kept(survey.letters_by_count)
        words = _load_words(counts, form, rarest)
    pieces, merges = _learn_pieces(words, form, size, algorithm, min_count, progress)
    return Learned(pieces, survey.num_words, survey.num_word_tokens, len(alphabet), rarest, merges)


def _form(alphabet: list[str], rules: Rules, unused: int, *, for_gpt: bool) -> _Form:
    if for_gpt:
        return _Form([GPT_UNK], gpt_letter_pieces(alphabet, rules), letters_of, list(FINE_TUNING_TOKENS))
    return _Form(special_pieces(unused), letter_pieces(alphabet, rules), bert_letters_of, [])


def _check_room(form: _Form, size: int) -> None:
    num_reserved = len(form.before) + len(form.behind)
    if len(form.letters) + num_reserved > size:
        raise UserError(
            f"--size {size} is too small: the alphabet takes {len(form.letters)} pieces, special and unused ones "
            f"{num_reserved}; raise --size to at least {len(form.letters) + num_reserved}, or lower --coverage"
        )


def _learn_pieces(
    words: "Words", form: _Form, size: int, algorithm: Algorithm, min_count: int, progress: Progress
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return all pieces in their order and, where pieces are made by replaying them, the merges."""
    from bertworks.text.merges import learn_pieces

    room = size - len(form.before) - len(form.behind)
    is_gpt, by_gain = algorithm == "gpt-bpe", algorithm == "wordpiece"
    wanted = room if is_gpt else len(form.letters) + round(_OVERSHOOT * (room - len(form.letters)))
    used, merges = learn_pieces(words, form.letters, wanted, min_count=min_count, by_gain=by_gain, progress=progress)
    kept = list(used) if is_gpt else in_order(form.letters, used, room)
    return [*form.before, *kept, *form.behind], merges if is_gpt else []


def choose_alphabet(counts: Mapping[str, int], coverage: float, min_count: int) -> list[str]:
    """Return the most frequent letters that together cover a share of the text, sorted."""
    wanted = coverage * sum(counts.values())
    alphabet: list[str] = []
    for letter, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if wanted <= 0 or (count < min_count and alphabet):
            break
        alphabet.append(letter)
        wanted -= count
    return sorted(alphabet)


def letter_pieces(alphabet: Iterable[str], rules: Rules) -> list[str]:
    """Return the pieces of single letters: at the start of a word, and inside it for letters that can stand there."""
    firsts = list(alphabet)
    return firsts + [CONTINUATION + letter for letter in _beside_others(firsts, rules)]


def bert_letters_of(word: str) -> list[str]:
    """Return a word as the pieces to start from."""
    return [word[0], *(CONTINUATION + letter for letter in word[1:])]


def gpt_letter_pieces(alphabet: Iterable[str], rules: Rules) -> list[str]:
    """Return the pieces of single letters: inside a word for letters that can stand there, and at its end."""
    letters = list(alphabet)
    return _beside_others(letters, rules) + [letter + END_OF_WORD for letter in letters]


def _beside_others(letters: Iterable[str], rules: Rules) -> list[str]:
    """Leave out the letters that are always words of their own."""
    return [c for c in letters if not is_punctuation(c) and not (rules.split_cjk and is_cjk(c))]


def frequent_words(counts: Iterable[tuple[str, int]], size: int, min_count: int) -> list[str]:
    """Return ELMo's special words and then the most frequent ones, by frequency."""
    often = ((-count, word) for word, count in counts if count >= min_count and len(word) <= MAX_WORD_LENGTH)
    return [*SPECIAL_WORDS, *(word for _, word in heapq.nsmallest(size - len(SPECIAL_WORDS), often))]


def in_order(letters: list[str], used: Mapping[str, int], room: int) -> list[str]:
    """Keep all letters and the most used of the other pieces; letters first, the others by use."""
    kept = set(letters)
    longer = sorted((piece for piece in used if piece not in kept), key=lambda piece: (-used[piece], piece))
    return letters + longer[: room - len(letters)]


def special_pieces(unused: int) -> list[str]:
    """Return the special and unused pieces in the order of the original vocabularies."""
    reserved = [f"[unused{number}]" for number in range(unused)]
    return [PAD, *reserved[:_UNUSED_BEFORE_UNK], *SPECIAL_TOKENS[1:], *reserved[_UNUSED_BEFORE_UNK:]]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder for counts that is removed in the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="bertworks-vocab-")
    except OSError as error:
        raise UserError(
            f"cannot make a temporary folder: {error.strerror}; set TMPDIR to a folder that can be written"
        ) from error
    with folder as name:
        yield Path(name)


def _survey(counts: Path) -> _Survey:
    letter_counts: Counter[str] = Counter()
    letters_by_count: Counter[int] = Counter()
    num_words = num_word_tokens = 0
    for word, count in read_counts(counts):
        num_words += 1
        num_word_tokens += count
        letters_by_count[count] += len(word)
        for letter in word:
            letter_counts[letter] += count
    return _Survey(letter_counts, letters_by_count, num_words, num_word_tokens)


def _rarest_kept(letters_by_count: Mapping[int, int]) -> int:
    """Return the lowest word frequency at which all words that occur so often fit in memory."""
    num_letters = 0
    for count in sorted(letters_by_count, reverse=True):
        num_letters += letters_by_count[count]
        if num_letters > _MAX_LETTERS_IN_MEMORY:
            return count + 1
    return 1


def _load_words(counts: Path, form: _Form, rarest: int) -> "Words":
    import numpy as np

    from bertworks.text.merges import OUTSIDE, Words

    symbols = {letter: symbol for symbol, letter in enumerate(form.letters)}
    flat, starts, word_counts = array("i"), array("q", [0]), array("q")
    for word, count in read_counts(counts):
        if count < rarest or len(word) > MAX_WORD_LENGTH:
            continue
        flat.extend(symbols.get(letter, OUTSIDE) for letter in form.letters_of(word))
        starts.append(len(flat))
        word_counts.append(count)
    return Words(np.array(flat, np.int32), np.array(starts, np.int64), np.array(word_counts, np.int64))


def _names(corpus: Corpus) -> str:
    names = [os.fspath(path) for path in corpus.files[:3]]
    return ", ".join(names) + (f" and {len(corpus.files) - 3} more" if len(corpus.files) > 3 else "")


# More words for a vocabulary that a model has already, so that the model can be trained further on other text.
#
# What there is keeps its id; new words come behind. A word is worth the tokens it saves: how often it occurs, times
# the pieces that it is split into now, less the one that it will be. A word with a letter that the vocabulary does
# not have is a mere [UNK] now, and counts as if it were spelt out and one letter longer.
#
# A longer first piece can leave a rest that no piece fits: with "ab", "##c", "##cd" and then "abc", a word "abcd"
# has no "##d" any more. A new word that makes a known word of the text unknown is not taken.


class Extended(NamedTuple):
    """A vocabulary with more words, and how many tokens the text takes with it."""

    pieces: list[str]
    num_added: int
    num_words: int  # distinct
    num_word_tokens: int
    tokens_before: int
    tokens_after: int


def extend_vocabulary(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    size: int,
    min_count: int = 20,
    workers: int | None = None,
    progress: Progress = silent,
) -> Extended:
    """Add the words of a corpus that save the most tokens; the same for any number of workers.

    Args:
        corpus: the text.
        tokenizer: the vocabulary to extend, and the rules by which text is split into words.
        size: how many pieces to have in the end.
        min_count: words that occur less often are not added.
        workers: how many processes count; as many as there are cores if not given.
        progress: is told how far it is.
    """
    room = size - len(tokenizer)
    if room < 1:
        raise UserError(f"--size {size:,} leaves no room: the vocabulary has {len(tokenizer):,} pieces; choose more")
    splitter = _splitter(tokenizer.pieces)
    with scratch_folder() as folder:
        counts = count_words(corpus, tokenizer.rules, folder, workers=workers, progress=progress)
        progress("choosing words", 0, None)
        words = [word for _, word in heapq.nsmallest(room, _worth(counts, splitter, min_count))]
        while True:
            pieces = [*tokenizer.pieces, *words]
            measured = _measure(counts, splitter, _splitter(pieces), set(words))
            if not measured.spoilers:
                break
            words = [word for word in words if word not in measured.spoilers]
    if not measured.num_words:
        raise UserError("no words in the corpus; nothing to extend a vocabulary with")
    return Extended(pieces, len(words), *measured[:4])


def _splitter(pieces: Iterable[str]) -> WordPiece:
    return WordPiece({piece: id for id, piece in enumerate(pieces) if piece})


def _worth(counts: Path, splitter: WordPiece, min_count: int) -> Iterator[tuple[int, str]]:
    """Give every word that would save tokens, with how many, as a negative number: the least sorts first."""
    for word, count in read_counts(counts):
        if count < min_count or len(word) > MAX_WORD_LENGTH or word == UNK:
            continue
        saved = len(word) if _is_unknown(word, splitter) else len(splitter.split(word)) - 1
        if saved:
            yield -count * saved, word


def _is_unknown(word: str, splitter: WordPiece) -> bool:
    return splitter.split(word)[0][0] == splitter.unk_id


class _Measured(NamedTuple):
    num_words: int
    num_word_tokens: int
    tokens_before: int
    tokens_after: int
    spoilers: set[str]  # new words that make a word unknown


def _measure(counts: Path, before: WordPiece, after: WordPiece, added: set[str]) -> _Measured:
    """Split all words of the text both ways."""
    num_words = num_word_tokens = tokens_before = tokens_after = 0
    spoilers = set()
    for word, count in read_counts(counts):
        num_words += 1
        num_word_tokens += count
        tokens_before += count * len(before.split(word))
        tokens_after += count * len(after.split(word))
        if _is_unknown(word, after) and not _is_unknown(word, before):
            # Only the first piece can be a new one, and it is the longest that fits.
            spoilers.add(next(word[:end] for end in range(len(word), 0, -1) if word[:end] in added))
    return _Measured(num_words, num_word_tokens, tokens_before, tokens_after, spoilers)
