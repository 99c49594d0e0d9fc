"""GLUE in the layout of its own archive: `CoLA/train.tsv`, `MNLI/dev_matched.tsv`, `diagnostic/diagnostic.tsv`.

Columns are found by name; only CoLA's train and dev sets, and the original STS-B, have none. MRPC comes as GLUE's
`train.tsv` or as Microsoft's `msr_paraphrase_train.txt`, which `dev_ids.tsv` divides into train and dev. Gold labels of
a test set that other archives hold are the split `test-gold`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bertworks.tasks.examples import Skipped, TextExample
from bertworks.tasks.tables import numbered_lines, rows
from bertworks.tasks.task import Published, Source, Task
from bertworks.tasks.texts import TextColumns, example_of, text_source

NLI_LABELS = ("entailment", "neutral", "contradiction")
_GOLD = "test-gold"
_QQP_NOTE = "a part of QQP under a split of its own, not GLUE's"
_QNLI_NOTE = "rebuilt from SQuAD's train set, not GLUE's QNLI"


def same(*labels: str) -> dict[str, str]:
    """Return labels whose words in the files are the labels themselves."""
    return {label: label for label in labels}


def _homes(folder: str) -> tuple[str, ...]:
    return (folder, f"glue/{folder}", f"GLUE/{folder}", f"glue_data/{folder}", "")


def _splits(
    columns: TextColumns,
    train: tuple[Source, ...] = (),
    dev: tuple[Source, ...] = (),
    gold: tuple[Source, ...] = (),
    test_id: str = "index",
) -> Mapping[str, tuple[Source, ...]]:
    """Return the three files that nearly all of GLUE has, and what else may hold them; the test set has no label."""
    unlabelled = columns._replace(label=None, id=test_id, header=None)
    splits = {
        "train": (text_source("train.tsv", columns=columns), *train),
        "dev": (text_source("dev.tsv", columns=columns), *dev),
        "test": (text_source("test.tsv", columns=unlabelled),),
    }
    return splits | ({_GOLD: gold} if gold else {})


def _words(columns: TextColumns) -> dict[str, str]:
    return {label: word for word, label in (columns.words or {}).items()}


def _labels(columns: TextColumns) -> tuple[str, ...]:
    return tuple((columns.words or {}).values())


_COLA_COLUMNS = TextColumns(
    "sentence", words={"0": "unacceptable", "1": "acceptable"}, header=("source", "label", "mark", "sentence")
)
_RAW = "original/raw"
COLA = Task(
    name="cola", title="CoLA", kind="classify", summary="is a sentence grammatical",
    splits=_splits(
        _COLA_COLUMNS,
        train=(text_source(f"{_RAW}/in_domain_train.tsv", columns=_COLA_COLUMNS),),
        dev=(text_source(f"{_RAW}/in_domain_dev.tsv", f"{_RAW}/out_of_domain_dev.tsv", columns=_COLA_COLUMNS),),
    ),
    homes=_homes("CoLA"), labels=_labels(_COLA_COLUMNS), words=_words(_COLA_COLUMNS),
    metrics=("matthews", "accuracy"), published=Published("Table 1, test", "52.1", "60.5"),
)  # fmt: skip

_SST_COLUMNS = TextColumns("sentence", words={"0": "negative", "1": "positive"})
SST2 = Task(
    name="sst2", title="SST-2", kind="classify", summary="is a film review positive", splits=_splits(_SST_COLUMNS),
    homes=_homes("SST-2"), labels=_labels(_SST_COLUMNS), words=_words(_SST_COLUMNS),
    metrics=("accuracy",), published=Published("Table 1, test", "93.5", "94.9"),
)  # fmt: skip


def _read_msr(paths: Sequence[Path], _: Skipped, *, is_dev: bool) -> Iterator[TextExample]:
    """Read Microsoft's train file, of which another file names the pairs that GLUE made its dev set."""
    table, dev_ids = paths
    dev_pairs = {line for _, line in numbered_lines(dev_ids)}
    for number, row in enumerate(rows(table)):
        if (f"{row.value('#1 ID')}\t{row.value('#2 ID')}" in dev_pairs) == is_dev:
            yield example_of(row, number, _MRPC_COLUMNS)


def _msr(*, is_dev: bool) -> Source:
    return Source(("msr_paraphrase_train.txt", "dev_ids.tsv"), partial(_read_msr, is_dev=is_dev))


_MRPC_COLUMNS = TextColumns("#1 String", "#2 String", label="Quality", words={"0": "not_equivalent", "1": "equivalent"})
MRPC = Task(
    name="mrpc", title="MRPC", kind="classify", summary="do two sentences say the same", is_pair=True,
    is_symmetric=True,
    splits=_splits(
        _MRPC_COLUMNS,
        train=(_msr(is_dev=False), text_source("msr_paraphrase_train.txt", columns=_MRPC_COLUMNS)),
        dev=(_msr(is_dev=True),),
        gold=(text_source("msr_paraphrase_test.txt", columns=_MRPC_COLUMNS),),
    ),
    homes=_homes("MRPC"), labels=_labels(_MRPC_COLUMNS), words=_words(_MRPC_COLUMNS), positive="equivalent",
    metrics=("f1", "accuracy"), published=Published("Table 1, test", "88.9", "89.3"),
)  # fmt: skip

_QQP_COLUMNS = TextColumns(
    "question1", "question2", label="is_duplicate", words={"0": "not_duplicate", "1": "duplicate"},
    allows_broken_rows=True,  # GLUE's own train.tsv has a few
)  # fmt: skip
QQP = Task(
    name="qqp", title="QQP", kind="classify", summary="do two questions ask the same", is_pair=True, is_symmetric=True,
    splits=_splits(
        _QQP_COLUMNS,
        train=(text_source("qqp_subset/train.tsv", columns=_QQP_COLUMNS, note=_QQP_NOTE),),
        dev=(text_source("qqp_subset/dev.tsv", columns=_QQP_COLUMNS, note=_QQP_NOTE),),
        test_id="id",
    ),
    homes=_homes("QQP"), labels=_labels(_QQP_COLUMNS), words=_words(_QQP_COLUMNS), positive="duplicate",
    metrics=("f1", "accuracy"), published=Published("Table 1, test", "71.2", "72.1"),
)  # fmt: skip

_STS_COLUMNS = TextColumns("sentence1", "sentence2", label="score", score_range=(0, 5))
_STS_ORIGINAL = _STS_COLUMNS._replace(
    header=("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
)
STSB = Task(
    name="stsb", title="STS-B", kind="regress", summary="how alike are two sentences, 0 to 5", is_pair=True,
    is_symmetric=True,
    splits=_splits(
        _STS_COLUMNS,
        train=(text_source("original/sts-train.tsv", columns=_STS_ORIGINAL),),
        dev=(text_source("original/sts-dev.tsv", columns=_STS_ORIGINAL),),
        gold=(text_source("original/sts-test.tsv", columns=_STS_ORIGINAL),),
    ),
    homes=_homes("STS-B"), metrics=("spearman", "pearson"), score_range=(0, 5),
    published=Published("Table 1, test, Spearman", "85.8", "86.5"),
)  # fmt: skip

_MNLI_COLUMNS = TextColumns(
    "sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS), no_label=frozenset("-")
)
_MNLI_TEST = _MNLI_COLUMNS._replace(label=None, id="index")
MNLI = Task(
    name="mnli", title="MNLI", kind="classify", summary="does one sentence follow from another", is_pair=True,
    splits={
        "train": (text_source("train.tsv", columns=_MNLI_COLUMNS),),
        "dev": (text_source("dev_matched.tsv", columns=_MNLI_COLUMNS),),
        "dev-mismatched": (text_source("dev_mismatched.tsv", columns=_MNLI_COLUMNS),),
        "test": (text_source("test_matched.tsv", columns=_MNLI_TEST),),
        "test-mismatched": (text_source("test_mismatched.tsv", columns=_MNLI_TEST),),
    },
    homes=_homes("MNLI"), labels=NLI_LABELS, words=same(*NLI_LABELS),
    metrics=("accuracy",), published=Published("Table 1, test, m/mm", "84.6/83.4", "86.7/85.9"),
)  # fmt: skip

_TWO_WAY = same("entailment", "not_entailment")
_QNLI_COLUMNS = TextColumns("question", "sentence", words=_TWO_WAY)
QNLI = Task(
    name="qnli", title="QNLI", kind="classify", summary="does a sentence hold the answer to a question", is_pair=True,
    splits=_splits(
        _QNLI_COLUMNS,
        train=(
            text_source("derived/qnli_train_rebuilt.tsv", columns=_QNLI_COLUMNS, note=_QNLI_NOTE),
            text_source("qnli_train_rebuilt.tsv", columns=_QNLI_COLUMNS, note=_QNLI_NOTE),
        ),
    ),
    homes=_homes("QNLI"), labels=tuple(_TWO_WAY), words=_TWO_WAY,
    metrics=("accuracy",), published=Published("Table 1, test", "90.5", "92.7"),
)  # fmt: skip

RTE = Task(
    name="rte", title="RTE", kind="classify", summary="does one sentence follow from another", is_pair=True,
    splits=_splits(TextColumns("sentence1", "sentence2", words=_TWO_WAY)),
    homes=_homes("RTE"), labels=tuple(_TWO_WAY), words=_TWO_WAY,
    metrics=("accuracy",), published=Published("Table 1, test", "66.4", "70.1"),
)  # fmt: skip

_WNLI_COLUMNS = TextColumns("sentence1", "sentence2", words={"0": "not_entailment", "1": "entailment"})
WNLI = Task(
    name="wnli", title="WNLI", kind="classify", summary="what does a pronoun mean; the paper leaves it out",
    is_pair=True, splits=_splits(_WNLI_COLUMNS),
    homes=_homes("WNLI"), labels=_labels(_WNLI_COLUMNS), words=_words(_WNLI_COLUMNS), metrics=("accuracy",),
)  # fmt: skip

_AX_GOLD = TextColumns("Premise", "Hypothesis", label="Label", words=same(*NLI_LABELS))
AX = Task(
    name="ax", title="GLUE diagnostics (AX)", kind="classify", summary="hard cases for a model of MNLI", is_pair=True,
    splits={
        "test": (text_source("diagnostic.tsv", columns=_MNLI_TEST),),
        _GOLD: (text_source("diagnostic-full.tsv", columns=_AX_GOLD),),
    },
    homes=_homes("diagnostic"), labels=NLI_LABELS, words=same(*NLI_LABELS),
    metrics=("matthews", "accuracy"), trained_on="mnli",
)  # fmt: skip

GLUE_TASKS = (COLA, SST2, MRPC, QQP, STSB, MNLI, QNLI, RTE, WNLI, AX)
