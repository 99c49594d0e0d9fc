"""Tagged words in columns: CoNLL-2003 and files of its form.

A line is a word, what else is known of it, and its tag in the last column; a blank line ends a sentence and a line
`-DOCSTART-` begins a document, whose sentences share a document number (the paper gives NER its document as context).
If no document is marked, or only one, every sentence is a document. Tags are converted to IOB2 from IOB1, as in the
original files, from IOBES or from BILOU; tags that are IOB2 already are unchanged.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

from bertworks.errors import UserError, counted
from bertworks.tasks.tables import numbered_lines
from bertworks.tasks.task import Defaults, Published, Skipped, Source, TagExample, Task, words_example

OUTSIDE = "O"
_DOCUMENT_START = "-DOCSTART-"
_STARTS, _INSIDES = frozenset("BSU"), frozenset("IEL")
_Line = tuple[int, list[str]]


def read_conll(
    paths: Sequence[Path], skipped: Skipped, *, types: tuple[str, ...] | None = None
) -> Iterator[TagExample]:
    """Yield the sentences of some files; with `types` other types of entities are refused.

    Sentences that become documents because their file has a single mark are counted.
    """
    number = document = 0
    for path in paths:
        marks = (
            1 for _, line in numbered_lines(path) if _DOCUMENT_START in line and line.split()[0] == _DOCUMENT_START
        )
        has_one = len(list(islice(marks, 2))) == 1  # the head of a file, such as other programs write, and no document
        has_documents = False
        for sentence in _sentences(path):
            if sentence[0][1][0] == _DOCUMENT_START:
                has_documents = not has_one
                document += 1
                sentence = sentence[1:]
            elif not has_documents:
                document += 1
            if sentence:
                if has_one:
                    where = f"{path.name}:{sentence[0][0]}"
                    skipped.add(f"sentences under a single {_DOCUMENT_START}", where, "read as a document each")
                tags = _tags(sentence, path, types)
                yield words_example(str(number), [columns[0] for _, columns in sentence], tags, document)
                number += 1


def _sentences(path: Path) -> Iterator[list[_Line]]:
    """Yield the lines of each sentence; a document's start belongs to what follows it, or stands alone."""
    sentence: list[_Line] = []
    for number, line in numbered_lines(path):
        # Not split(): a no-break space is part of a word.
        columns = [column for column in line.replace("\t", " ").split(" ") if column.strip()]
        if sentence and (not columns or columns[0] == _DOCUMENT_START):
            yield sentence
            sentence = []
        if columns:
            sentence.append((number, columns))
    if sentence:
        yield sentence


def _tags(sentence: list[_Line], path: Path, types: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the last column of a sentence in IOB2, or nothing where words stand alone."""
    num_columns = len(sentence[0][1])
    for number, columns in sentence:
        if len(columns) != num_columns:
            raise UserError(
                f"{path}:{number}: {counted(len(columns), 'column')} where the sentence starts with {num_columns}; a "
                "line is a word and, last, its tag, with spaces or tabs between; or give lists of both in .jsonl, "
                ".json, .parquet"
            )
    if num_columns == 1:
        return None
    for number, columns in sentence:
        if problem := tag_problem(columns[-1], types):
            raise UserError(f"{path}:{number}: {problem}")
    return to_iob2([columns[-1] for _, columns in sentence])


@lru_cache(maxsize=4096)
def tag_problem(tag: str, types: tuple[str, ...] | None) -> str:
    """Return what is wrong with a tag, or "": it may be no tag, or of a type that the task does not have."""
    prefix, _, kind = tag.partition("-")
    if tag != OUTSIDE and (not kind or prefix not in _STARTS | _INSIDES):
        return f"{tag[:60]!r} is not a tag; allowed: O, and B- or I- with a type, as in B-PER"
    if types is not None and tag != OUTSIDE and kind not in types:
        return f"{tag[:60]!r} has a type that is not known here; allowed: {', '.join(types)}"
    return ""


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Rewrite tags so that every entity starts with B- and continues with I-."""
    converted, before = [], ""
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        continues = prefix in _INSIDES and kind == before
        converted.append(OUTSIDE if tag == OUTSIDE else f"I-{kind}" if continues else f"B-{kind}")
        before = kind
    return tuple(converted)


def tag_labels(types: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of some entity types, in order."""
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


_CONLL_TYPES = ("PER", "ORG", "LOC", "MISC")
_READ = partial(read_conll, types=_CONLL_TYPES)
_FILES = {
    "train": ("eng.train", "train.txt"), "dev": ("eng.testa", "valid.txt"), "test": ("eng.testb", "test.txt"),
}  # fmt: skip
CONLL2003 = Task(
    name="conll2003", title="CoNLL-2003 NER", kind="tag", summary="names of people, organisations, places and others",
    splits={split: tuple(Source((name,), _READ) for name in names) for split, names in _FILES.items()},
    homes=("", "conll2003", "CoNLL-2003"), labels=tag_labels(_CONLL_TYPES), metrics=("f1", "precision", "recall"),
    published=Published("Table 7, dev/test", "96.4/92.4", "96.6/92.8"),
    # In windows of documents, of which there are 1,077: the paper's batches of 32 would give 100 updates in all.
    defaults=Defaults(epochs=4, batch_size=8, learning_rate=5e-5, max_length=512),
)  # fmt: skip
