"""From a corpus to a vocabulary: count words, choose the alphabet, merge, keep what is used, put it in order.

Merging leaves stepping stones behind: "##ationa" is of no use once "##ational" is there. So a fifth more pieces than
asked for are learned, and those that the text uses most are kept; held-out text then takes 1 % fewer tokens.
The order is the original's: [PAD], 99 unused, [UNK] [CLS] [SEP] [MASK], the other unused, letters, pieces by use.

GPT-1's pieces are made by replaying the merges, so all stepping stones stay: <unk>, letters, pieces in the order of
merging, and three for fine-tuning. ELMo's list is the most frequent words, without merging.
"""

import heapq
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from bertworks.errors import UserError
from bertworks.progress import Progress, progress_bar
from bertworks.text.corpus import Corpus
from bertworks.text.gpt_bpe import END_OF_WORD, FINE_TUNING_TOKENS, letters_of
from bertworks.text.gpt_bpe import UNK as GPT_UNK
from bertworks.text.normalize import Rules, is_cjk, is_punctuation
from bertworks.text.vocabulary import CONTINUATION, PAD, SPECIAL_TOKENS
from bertworks.text.word_counts import count_words, read_counts
from bertworks.text.wordpiece import MAX_WORD_LENGTH
from bertworks.text.words import SPECIAL_WORDS

if TYPE_CHECKING:
    from bertworks.text.merges import Words

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
