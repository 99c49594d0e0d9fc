"""More words for a vocabulary that a model has already, so that the model can be trained further on other text.

What there is keeps its id; new words come behind. A word is worth the tokens it saves: how often it occurs, times the
pieces that it is split into now, less the one that it will be. A word with a letter that the vocabulary does not have
is a mere [UNK] now, and counts as if it were spelt out and one letter longer.

A longer first piece can leave a rest that no piece fits: with "ab", "##c", "##cd" and then "abc", a word "abcd" has no
"##d" any more. A new word that makes a known word of the text unknown is not taken.
"""

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.progress import Progress, silent
from bertworks.text.corpus import Corpus
from bertworks.text.learn import scratch_folder
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import UNK
from bertworks.text.word_counts import count_words, read_counts
from bertworks.text.wordpiece import MAX_WORD_LENGTH, WordPiece


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
