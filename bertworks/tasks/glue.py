"""GLUE and other benchmarks of texts and pairs: SNLI, its counterfactual revision, and SICK, from their own files.

GLUE is read in the layout of its own archive: `CoLA/train.tsv`, `MNLI/dev_matched.tsv`, `diagnostic/diagnostic.tsv`.

Columns are found by name; only CoLA's train and dev sets, and the original STS-B, have none. MRPC comes as GLUE's
`train.tsv` or as Microsoft's `msr_paraphrase_train.txt`, which `dev_ids.tsv` divides into train and dev. Gold labels of
a test set that other archives hold are the split `test-gold`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.tasks.tables import TextColumns, example_of, numbered_lines, read_texts, rows
from bertworks.tasks.task import Published, Skipped, Source, Task, TextExample

NLI_LABELS = ("entailment", "neutral", "contradiction")
_GOLD = "test-gold"


def same(*labels: str) -> dict[str, str]:
    """Return labels whose words in the files are the labels themselves."""
    return {label: label for label in labels}


def text_source(*names: str, columns: TextColumns, note: str = "") -> Source:
    """Return the source of a split that is a table, or several of one form."""
    return Source(names, partial(read_texts, columns=columns), note)


def text_task(
    name: str,
    title: str,
    summary: str,
    columns: TextColumns,
    splits: Mapping[str, str | tuple[Source, ...]],
    **more: Any,
) -> Task:
    """Return a benchmark of texts or pairs in tables: its kind, labels and range of scores follow from its columns.

    A split is a file with these columns, or sources in order of preference.
    """
    words = columns.words or {}
    sources = {
        split: (text_source(files, columns=columns),) if isinstance(files, str) else files
        for split, files in splits.items()
    }
    own: dict[str, Any] = {"metrics": ("accuracy",), "labels": tuple(words.values())} if words else {}
    own |= {} if words else {"score_range": columns.score_range}
    return Task(
        name=name, title=title, summary=summary, kind="classify" if words else "regress", splits=sources,
        is_pair=columns.second is not None, words={label: word for word, label in words.items()}, **(own | more),
    )  # fmt: skip


def _glue(
    name: str,
    title: str,
    summary: str,
    columns: TextColumns,
    splits: Mapping[str, tuple[Source, ...]] | None = None,
    *,
    paper: tuple[str, str] | None = None,
    where: str = "",
    test_id: str = "index",
    **more: Any,
) -> Task:
    """Return a task of GLUE, with the three files that nearly all have; `splits` has more sources, or more splits."""
    files: dict[str, tuple[Source, ...]] = {
        "train": (text_source("train.tsv", columns=columns),),
        "dev": (text_source("dev.tsv", columns=columns),),
        "test": (text_source("test.tsv", columns=columns._replace(label=None, id=test_id, header=None)),),
    }
    for split, sources in (splits or {}).items():
        files[split] = files.get(split, ()) + sources
    published = Published(f"Table 1, test{where}", *paper) if paper else None
    return text_task(name, title, summary, columns, files, homes=_homes(title), published=published, **more)


def _homes(folder: str) -> tuple[str, ...]:
    return (folder, f"glue/{folder}", f"GLUE/{folder}", f"glue_data/{folder}", f"glue_more/{folder}", "")


_COLA = TextColumns(
    "sentence", words={"0": "unacceptable", "1": "acceptable"}, header=("source", "label", "mark", "sentence")
)
_RAW = "original/raw"
COLA = _glue(
    "cola", "CoLA", "is a sentence grammatical", _COLA,
    {
        "train": (text_source(f"{_RAW}/in_domain_train.tsv", columns=_COLA),),
        "dev": (text_source(f"{_RAW}/in_domain_dev.tsv", f"{_RAW}/out_of_domain_dev.tsv", columns=_COLA),),
    },
    metrics=("matthews", "accuracy"), paper=("52.1", "60.5"),
)  # fmt: skip
SST2 = _glue(
    "sst2", "SST-2", "is a film review positive",
    TextColumns("sentence", words={"0": "negative", "1": "positive"}), paper=("93.5", "94.9"),
)  # fmt: skip


def _read_msr(paths: Sequence[Path], _: Skipped, *, is_dev: bool) -> Iterator[TextExample]:
    """Read Microsoft's train file, of which another file names the pairs that GLUE made its dev set."""
    table, dev_ids = paths
    dev_pairs = {line for _, line in numbered_lines(dev_ids)}
    for number, row in enumerate(rows(table)):
        if (f"{row.value('#1 ID')}\t{row.value('#2 ID')}" in dev_pairs) == is_dev:
            yield example_of(row, number, _MRPC)


_MSR_FILES = ("msr_paraphrase_train.txt", "dev_ids.tsv")
_MRPC = TextColumns("#1 String", "#2 String", label="Quality", words={"0": "not_equivalent", "1": "equivalent"})
MRPC = _glue(
    "mrpc", "MRPC", "do two sentences say the same", _MRPC,
    {
        "train": (Source(_MSR_FILES, partial(_read_msr, is_dev=False)), text_source(_MSR_FILES[0], columns=_MRPC)),
        "dev": (Source(_MSR_FILES, partial(_read_msr, is_dev=True)),),
        _GOLD: (text_source("msr_paraphrase_test.txt", columns=_MRPC),),
    },
    is_symmetric=True, positive="equivalent", metrics=("f1", "accuracy"), paper=("88.9", "89.3"),
)  # fmt: skip

_QQP = TextColumns(
    "question1", "question2", label="is_duplicate", words={"0": "not_duplicate", "1": "duplicate"},
    allows_broken_rows=True,  # GLUE's own train.tsv has a few
)  # fmt: skip
_QQP_NOTE = "a part of QQP under a split of its own, not GLUE's"
QQP = _glue(
    "qqp", "QQP", "do two questions ask the same", _QQP,
    {split: (text_source(f"qqp_subset/{split}.tsv", columns=_QQP, note=_QQP_NOTE),) for split in ("train", "dev")},
    test_id="id", is_symmetric=True, positive="duplicate", metrics=("f1", "accuracy"), paper=("71.2", "72.1"),
)  # fmt: skip

_STS = TextColumns("sentence1", "sentence2", label="score", score_range=(0, 5))
_STS_ORIGINAL = _STS._replace(header=("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2"))
_STS_FILES = {"train": "sts-train.tsv", "dev": "sts-dev.tsv", _GOLD: "sts-test.tsv"}
STSB = _glue(
    "stsb", "STS-B", "how alike are two sentences, 0 to 5", _STS,
    {split: (text_source(f"original/{name}", columns=_STS_ORIGINAL),) for split, name in _STS_FILES.items()},
    is_symmetric=True, metrics=("spearman", "pearson"), paper=("85.8", "86.5"), where=", Spearman",
)  # fmt: skip

_MNLI = TextColumns("sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS), no_label=frozenset("-"))
_MNLI_TEST = _MNLI._replace(label=None, id="index")
MNLI = text_task(
    "mnli", "MNLI", "does one sentence follow from another", _MNLI,
    {
        "train": "train.tsv",
        "dev": "dev_matched.tsv",
        "dev-mismatched": "dev_mismatched.tsv",
        "test": (text_source("test_matched.tsv", columns=_MNLI_TEST),),
        "test-mismatched": (text_source("test_mismatched.tsv", columns=_MNLI_TEST),),
    },
    homes=_homes("MNLI"), published=Published("Table 1, test, m/mm", "84.6/83.4", "86.7/85.9"),
)  # fmt: skip

_TWO_WAY = same("entailment", "not_entailment")
_QNLI = TextColumns("question", "sentence", words=_TWO_WAY)
_REBUILT = partial(text_source, columns=_QNLI, note="rebuilt from SQuAD's train set, not GLUE's QNLI")
QNLI = _glue(
    "qnli", "QNLI", "does a sentence hold the answer to a question", _QNLI,
    {"train": (_REBUILT("derived/qnli_train_rebuilt.tsv"), _REBUILT("qnli_train_rebuilt.tsv"))}, paper=("90.5", "92.7"),
)  # fmt: skip
RTE = _glue(
    "rte", "RTE", "does one sentence follow from another", TextColumns("sentence1", "sentence2", words=_TWO_WAY),
    paper=("66.4", "70.1"),
)  # fmt: skip
WNLI = _glue(
    "wnli", "WNLI", "what does a pronoun mean; the paper leaves it out",
    TextColumns("sentence1", "sentence2", words={"0": "not_entailment", "1": "entailment"}),
)  # fmt: skip

_AX_GOLD = TextColumns("Premise", "Hypothesis", label="Label", words=same(*NLI_LABELS))
AX = text_task(
    "ax", "GLUE diagnostics (AX)", "hard cases for a model of MNLI", _MNLI,
    {
        "test": (text_source("diagnostic.tsv", columns=_MNLI_TEST),),
        _GOLD: (text_source("diagnostic-full.tsv", columns=_AX_GOLD),),
    },
    homes=_homes("diagnostic"), metrics=("matthews", "accuracy"), trained_on="mnli",
)  # fmt: skip

GLUE_TASKS = (COLA, SST2, MRPC, QQP, STSB, MNLI, QNLI, RTE, WNLI, AX)


# SNLI's makers write "-" where five people did not agree, and leave such pairs out.
_SNLI = TextColumns(
    "sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS), no_label=frozenset("-"), id="pairID"
)
_SNLI_FILES = {
    split: tuple(text_source(f"snli_1.0_{split}.{ending}", columns=_SNLI) for ending in ("txt", "jsonl", "tsv"))
    for split in ("train", "dev", "test")
}
_SNLI_PART = text_source("snli_1.0_train_subset.tsv", columns=_SNLI, note="a part of SNLI's train set")
SNLI = text_task(
    "snli", "SNLI", "does one caption follow from another", _SNLI,
    _SNLI_FILES | {"train": (*_SNLI_FILES["train"], _SNLI_PART)},
    homes=("snli_1.0", "snli", "SNLI", "snli_subset", ""),
)  # fmt: skip

COUNTERFACTUAL = text_task(
    "snli-counterfactual", "Counterfactual SNLI", "SNLI pairs, each changed by people so that its label changes",
    TextColumns("sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS)),
    {split: f"{split}.tsv" for split in ("train", "dev", "test")},
    homes=("counterfactual_snli", "nli_subst/counterfactual_snli", "NLI/all_combined", ""),
)  # fmt: skip

_SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK_HOMES = ("", "sick", "SICK", "sick2014", "nli_subst/sick2014")
_SICK = TextColumns(
    "sentence_A", "sentence_B", label="entailment_judgment", words={label.upper(): label for label in NLI_LABELS},
    id="pair_ID",
)  # fmt: skip
SICK = text_task(
    "sick", "SICK entailment", "does one sentence follow from another", _SICK, _SICK_FILES, homes=_SICK_HOMES
)
SICK_RELATEDNESS = text_task(
    "sick-relatedness", "SICK relatedness", "how alike are two sentences, 1 to 5",
    _SICK._replace(label="relatedness_score", words=None, score_range=(1, 5)), _SICK_FILES, homes=_SICK_HOMES,
    is_symmetric=True, metrics=("pearson", "spearman"),
)  # fmt: skip

NLI_TASKS = (SNLI, COUNTERFACTUAL, SICK, SICK_RELATEDNESS)
