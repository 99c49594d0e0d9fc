"""How often each normalised word occurs in a corpus: exact, in bounded memory, the same for any number of processes.

The text is cut into chunks. A process counts the white-space tokens of a chunk, which Python does fast, and applies the
tokenizer's rules to each distinct token once. Its counts go to disk as a run, sorted by word; runs are merged, many at
a time, until one is left. Nothing is dropped on the way, so the order of arrival cannot matter.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from operator import itemgetter
from pathlib import Path

from bertworks.errors import UserError
from bertworks.processes import num_workers, wait_for, worker_pool
from bertworks.progress import Progress, silent
from bertworks.text.corpus import Corpus
from bertworks.text.normalize import Alphabet, Rules, split_spaces, words_of

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
