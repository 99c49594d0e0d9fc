"""From a corpus to a vocabulary: count words, choose the alphabet, merge, keep the most used pieces, sort them.

- **Counts** of normalised words are exact, in bounded memory, and the same for any number of processes. A process
  counts the white-space tokens of a chunk of text, which is fast in Python, and applies the tokenizer's rules once to
  each distinct token. It writes its counts to disk as a run, sorted by word; runs are merged, many at a time, until one
  is left. No count is ever dropped, so the order of the runs does not matter.
- **BERT's pieces.** Merging leaves intermediate pieces that are no longer used: "##ationa" is useless once "##ational"
  exists. So a fifth more pieces than requested are learned, and the most used ones are kept; held-out text then takes
  1 % fewer tokens. The order is the original's: [PAD], 99 unused, [UNK] [CLS] [SEP] [MASK], the other unused,
  letters, pieces by use.
- **GPT-1's tokenizer** replays the merges, so all intermediate pieces stay: <unk>, letters, pieces in the order of
  merging, and three for fine-tuning. **ELMo's list** is the most frequent words, without merging.
- **Extending** a vocabulary adds words for a model that is trained further on other text. Existing pieces keep their
  ids; new words come after them. The value of a word is the number of tokens that it saves: its count, times the number
  of its pieces now minus one. A word with a letter that the vocabulary lacks is now an [UNK]; its value is its count
  times its number of letters.
"""

import heapq
import itertools
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from bertworks.errors import UserError
from bertworks.processes import ProgressCallback, in_batches, num_workers, progress_bar, silent, wait_for, worker_pool
from bertworks.text.corpus import Corpus, Sources, open_corpus
from bertworks.text.elmo_words import SPECIAL_WORDS
from bertworks.text.gpt import END_OF_WORD, FINE_TUNING_TOKENS, GptTokenizer, letters_of
from bertworks.text.gpt import UNK as GPT_UNK
from bertworks.text.normalize import Alphabet, Rules, is_cjk, is_punctuation, split_spaces, words_of
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import (
    CONTINUATION,
    MAX_WORD_LENGTH,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    WordPiece,
    write_vocabulary,
)

if TYPE_CHECKING:
    from bertworks.text.merges import Words


_CHUNK_CHARS = 1 << 23
_RUNS_MERGED_AT_ONCE = 32
_OVERSHOOT = 1.2
_MAX_LETTERS_IN_MEMORY = 32_000_000  # of all distinct words; if a corpus has more, its rarest words are not used
_UNUSED_BEFORE_UNK = 99
Algorithm = Literal["wordpiece", "bpe", "gpt-bpe", "words"]


def count_words(
    corpus: Corpus, rules: Rules, folder: Path, *, workers: int | None = None, progress: ProgressCallback = silent
) -> Path:
    """Count the words of a corpus and return the file of counts in `folder`; `read_counts` reads it."""
    workers = num_workers(workers)
    runs: list[Path] = []
    pending: set[Future[None]] = set()
    with worker_pool(workers) as pool:
        for blocks in in_batches(corpus.blocks(), _CHUNK_CHARS):
            runs.append(folder / f"run-{len(runs):06d}")
            pending.add(pool.submit(_count_chunk, blocks, rules, runs[-1]))
            # Waiting chunks take memory: one more than there are processes keeps all of them busy.
            pending = wait_for(pending, workers)
            progress("counting words", corpus.bytes_read, corpus.total_bytes)
        wait_for(pending, 0)
        if not runs:  # an empty corpus has a file of counts too
            runs = [folder / "run-000000"]
            _write_counts(runs[0], [])
        level = 0
        while len(runs) > 1:
            progress("merging counts", level, None)
            level += 1
            groups = [runs[first : first + _RUNS_MERGED_AT_ONCE] for first in range(0, len(runs), _RUNS_MERGED_AT_ONCE)]
            runs = [folder / f"merged-{level}-{number:06d}" for number in range(len(groups))]
            list(pool.map(_merge_runs, groups, runs))
    return runs[0]


def read_counts(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the words of a file of counts, sorted, with their counts."""
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


class Learned(NamedTuple):
    """A vocabulary and what it was made from."""

    pieces: list[str]
    num_words: int  # distinct
    num_word_tokens: int
    num_letters: int  # size of the alphabet
    rarest_word: int  # words that occur less often were not used for merging
    merges: list[tuple[str, str]]  # of gpt-bpe, in the order in which they were learned
    algorithm: Algorithm
    rules: Rules

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a vocabulary file, or the folder of a GPT-1 tokenizer."""
        if self.algorithm == "gpt-bpe":
            GptTokenizer(self.pieces, self.merges, self.rules).save(path)
        else:
            write_vocabulary(path, self.pieces)


def learn_vocabulary(
    corpus: Corpus | Sources,
    *,
    size: int = 30_522,
    algorithm: Algorithm = "wordpiece",
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    unused: int = 0,
    coverage: float = 0.99995,
    min_count: int = 20,
    workers: int | None = None,
    quiet: bool = False,
    progress: ProgressCallback | None = None,
) -> Learned:
    """Learn a vocabulary from raw text; the same for any number of workers.

    >>> import bertworks as bw
    >>> learned = bw.learn_vocabulary("corpus.txt", size=100, min_count=1, quiet=True)
    >>> learned.pieces[:5]
    ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    >>> learned.save("vocab.txt")

    Args:
        corpus: files, folders or patterns, one or a list; or a `Corpus`.
        size: the number of pieces, including special and unused ones.
        algorithm: `wordpiece` merges by gain in likelihood, `bpe` by frequency, `gpt-bpe` by frequency into GPT-1's
            pieces; `words` takes the most frequent words.
        lowercase: lower-case the text, as for the uncased models.
        strip_accents: strip accents; None follows `lowercase`.
        split_cjk: make every Chinese character a separate word.
        unused: the number of [unusedN] pieces to reserve (the original uncased vocabulary has 994).
        coverage: the share of the text's letters that the alphabet must cover.
        min_count: letters, pairs and (for `words`) words that occur less often are not used.
        workers: the number of processes; one per core if not given.
        quiet: show no progress; otherwise a bar is shown, or lines if there is no terminal.
        progress: a function that is called with the progress instead.
    """
    from bertworks.config import VocabSettings, validate
    from bertworks.text.merges import learn_pieces

    settings = {"size": size, "algorithm": algorithm, "unused": unused, "coverage": coverage, "min_count": min_count}
    validate(VocabSettings, settings, "learn_vocabulary")
    corpus, rules = open_corpus(corpus), Rules.of(lowercase, strip_accents, split_cjk)
    with (
        nullcontext(progress) if progress is not None else progress_bar(quiet=quiet) as shown,
        scratch_folder() as folder,
    ):
        counts = count_words(corpus, rules, folder, workers=workers, progress=shown)
        letter_counts: Counter[str] = Counter()
        letters_by_count: Counter[int] = Counter()  # by frequency: how many letters words of this frequency have in all
        num_words = num_word_tokens = 0
        for word, count in read_counts(counts):
            num_words += 1
            num_word_tokens += count
            letters_by_count[count] += len(word)
            for letter in word:
                letter_counts[letter] += count
        if not num_words:
            raise UserError(f"no words in {corpus.names}; nothing to learn a vocabulary from")
        if algorithm == "words":
            pieces = frequent_words(read_counts(counts), size, min_count)
            num_letters = len(letter_counts)
            return Learned(pieces, num_words, num_word_tokens, num_letters, min_count, [], algorithm, rules)
        alphabet = choose_alphabet(letter_counts, coverage, min_count)
        is_gpt = algorithm == "gpt-bpe"
        before, after = ([GPT_UNK], FINE_TUNING_TOKENS) if is_gpt else (special_pieces(unused), ())
        letters = gpt_letter_pieces(alphabet, rules) if is_gpt else letter_pieces(alphabet, rules)
        num_reserved = len(before) + len(after)
        room = size - num_reserved
        if len(letters) > room:
            raise UserError(
                f"--size {size} is too small: the alphabet takes {len(letters)} pieces, special and unused ones "
                f"{num_reserved}; raise --size to at least {len(letters) + num_reserved}, or lower --coverage"
            )
        rarest = _rarest_kept(letters_by_count)
        words = _load_words(counts, letters, letters_of if is_gpt else bert_letters_of, rarest)
        wanted = room if is_gpt else len(letters) + round(_OVERSHOOT * (room - len(letters)))
        by_gain = algorithm == "wordpiece"
        used, merges = learn_pieces(words, letters, wanted, min_count=min_count, by_gain=by_gain, progress=shown)
    pieces = [*before, *(used if is_gpt else in_order(letters, used, room)), *after]
    merges = merges if is_gpt else []
    return Learned(pieces, num_words, num_word_tokens, len(alphabet), rarest, merges, algorithm, rules)


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
    """Return the pieces of single letters: at the start of a word, and, for letters that can occur there, inside it."""
    firsts = list(alphabet)
    return firsts + [CONTINUATION + letter for letter in _beside_others(firsts, rules)]


def bert_letters_of(word: str) -> list[str]:
    """Return a word as the letter pieces to start from."""
    return [word[0], *(CONTINUATION + letter for letter in word[1:])]


def gpt_letter_pieces(alphabet: Iterable[str], rules: Rules) -> list[str]:
    """Return the pieces of single letters: inside a word, for letters that can occur there, and at its end."""
    letters = list(alphabet)
    return _beside_others(letters, rules) + [letter + END_OF_WORD for letter in letters]


def _beside_others(letters: Iterable[str], rules: Rules) -> list[str]:
    """Leave out characters that are always separate words."""
    return [c for c in letters if not is_punctuation(c) and not (rules.split_cjk and is_cjk(c))]


def frequent_words(counts: Iterable[tuple[str, int]], size: int, min_count: int) -> list[str]:
    """Return ELMo's special words and then the most frequent ones, by frequency."""
    often = ((-count, word) for word, count in counts if count >= min_count and len(word) <= MAX_WORD_LENGTH)
    return [*SPECIAL_WORDS, *(word for _, word in heapq.nsmallest(size - len(SPECIAL_WORDS), often))]


def in_order(letters: list[str], used: Mapping[str, int], room: int) -> list[str]:
    """Keep all letters and the most used of the other pieces: letters first, then the others by use."""
    kept = set(letters)
    longer = sorted((piece for piece in used if piece not in kept), key=lambda piece: (-used[piece], piece))
    return letters + longer[: room - len(letters)]


def special_pieces(unused: int) -> list[str]:
    """Return the special and unused pieces in the order of the original vocabularies."""
    reserved = [f"[unused{number}]" for number in range(unused)]
    return [PAD, *reserved[:_UNUSED_BEFORE_UNK], *SPECIAL_TOKENS[1:], *reserved[_UNUSED_BEFORE_UNK:]]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder for counts."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="bertworks-vocab-")
    except OSError as error:
        raise UserError(
            f"cannot make a temporary folder: {error.strerror}; set TMPDIR to a folder that can be written"
        ) from error
    with folder as name:
        yield Path(name)


def _rarest_kept(letters_by_count: Mapping[int, int]) -> int:
    """Return the lowest frequency such that all words of at least that frequency fit in memory."""
    num_letters = 0
    for count in sorted(letters_by_count, reverse=True):
        num_letters += letters_by_count[count]
        if num_letters > _MAX_LETTERS_IN_MEMORY:
            return count + 1
    return 1


def _load_words(counts: Path, letters: list[str], letters_of_word: Callable[[str], list[str]], rarest: int) -> "Words":
    import numpy as np

    from bertworks.text.merges import OUTSIDE, Words

    symbols = {letter: symbol for symbol, letter in enumerate(letters)}
    flat, starts, word_counts = array("i"), array("q", [0]), array("q")
    for word, count in read_counts(counts):
        if count < rarest or len(word) > MAX_WORD_LENGTH:
            continue
        flat.extend(symbols.get(letter, OUTSIDE) for letter in letters_of_word(word))
        starts.append(len(flat))
        word_counts.append(count)
    return Words(np.array(flat, np.int32), np.array(starts, np.int64), np.array(word_counts, np.int64))


class Extended(NamedTuple):
    """A vocabulary with added words, and the number of tokens that the text has without and with them."""

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
    progress: ProgressCallback = silent,
) -> Extended:
    """Add the words of a corpus that save the most tokens; the same for any number of workers.

    Args:
        corpus: the text.
        tokenizer: the vocabulary to extend, and the rules that split text into words.
        size: the number of pieces after extending.
        min_count: words that occur less often are not added.
        workers: the number of processes; one per core if not given.
        progress: is called with the progress.
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
            measured, spoilers = _measure(counts, splitter, pieces, set(words))
            if not spoilers:
                break
            # A longer first piece can leave a rest that matches no piece: with "ab", "##c", "##cd" and then also "abc",
            # the word "abcd" would need a "##d". A new word that makes a known word unknown is not added.
            words = [word for word in words if word not in spoilers]
    if not measured.num_words:
        raise UserError("no words in the corpus; nothing to extend a vocabulary with")
    return measured


def _splitter(pieces: Iterable[str]) -> WordPiece:
    return WordPiece({piece: id for id, piece in enumerate(pieces) if piece})


def _worth(counts: Path, splitter: WordPiece, min_count: int) -> Iterator[tuple[int, str]]:
    """Yield every word that would save tokens, with minus the number of tokens saved, so that the best sorts first."""
    for word, count in read_counts(counts):
        if count < min_count or len(word) > MAX_WORD_LENGTH or word == UNK:
            continue
        saved = len(word) if _is_unknown(word, splitter) else len(splitter.split(word)) - 1
        if saved:
            yield -count * saved, word


def _is_unknown(word: str, splitter: WordPiece) -> bool:
    return splitter.split(word)[0][0] == splitter.unk_id


def _measure(counts: Path, before: WordPiece, pieces: list[str], added: set[str]) -> tuple[Extended, set[str]]:
    """Split all words of the text with both vocabularies; also return added words that make a known word unknown."""
    after = _splitter(pieces)
    num_words = num_word_tokens = tokens_before = tokens_after = 0
    spoilers = set()
    for word, count in read_counts(counts):
        num_words += 1
        num_word_tokens += count
        tokens_before += count * len(before.split(word))
        tokens_after += count * len(after.split(word))
        if _is_unknown(word, after) and not _is_unknown(word, before):
            # Only the first piece can be a new word, and it is the longest that matches.
            spoilers.add(next(word[:end] for end in range(len(word), 0, -1) if word[:end] in added))
    return Extended(pieces, len(added), num_words, num_word_tokens, tokens_before, tokens_after), spoilers
