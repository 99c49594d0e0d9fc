"""Does one sentence follow from another: SNLI, its counterfactual revision, and SICK, from their own files."""

from bertworks.tasks.glue import NLI_LABELS, same
from bertworks.tasks.task import Task
from bertworks.tasks.texts import TextColumns, text_source

_PART_NOTE = "a part of SNLI's train set"

# SNLI's makers write "-" where five people did not agree, and leave such pairs out.
_SNLI = TextColumns(
    "sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS), no_label=frozenset("-"), id="pairID"
)
SNLI = Task(
    name="snli", title="SNLI", kind="classify", summary="does one caption follow from another", is_pair=True,
    splits={
        "train": (
            *(text_source(f"snli_1.0_train.{ending}", columns=_SNLI) for ending in ("txt", "jsonl", "tsv")),
            text_source("snli_1.0_train_subset.tsv", columns=_SNLI, note=_PART_NOTE),
        ),
        "dev": tuple(text_source(f"snli_1.0_dev.{ending}", columns=_SNLI) for ending in ("txt", "jsonl", "tsv")),
        "test": tuple(text_source(f"snli_1.0_test.{ending}", columns=_SNLI) for ending in ("txt", "jsonl", "tsv")),
    },
    homes=("snli_1.0", "snli", "SNLI", "snli_subset", ""), labels=NLI_LABELS, words=same(*NLI_LABELS),
    metrics=("accuracy",),
)  # fmt: skip

_REVISED = TextColumns("sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS))
COUNTERFACTUAL = Task(
    name="snli-counterfactual", title="Counterfactual SNLI", kind="classify", is_pair=True,
    summary="SNLI pairs, each changed by people so that its label changes",
    splits={split: (text_source(f"{split}.tsv", columns=_REVISED),) for split in ("train", "dev", "test")},
    homes=("counterfactual_snli", "nli_subst/counterfactual_snli", "NLI/all_combined", ""), labels=NLI_LABELS,
    words=same(*NLI_LABELS), metrics=("accuracy",),
)  # fmt: skip

_SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK_HOMES = ("", "sick", "SICK", "sick2014", "nli_subst/sick2014")
_SICK = TextColumns(
    "sentence_A", "sentence_B", label="entailment_judgment", words={label.upper(): label for label in NLI_LABELS},
    id="pair_ID",
)  # fmt: skip
SICK = Task(
    name="sick", title="SICK entailment", kind="classify", summary="does one sentence follow from another",
    is_pair=True, splits={split: (text_source(name, columns=_SICK),) for split, name in _SICK_FILES.items()},
    homes=_SICK_HOMES, labels=NLI_LABELS, words={label: label.upper() for label in NLI_LABELS},
    metrics=("accuracy",),
)  # fmt: skip

_RELATEDNESS = _SICK._replace(label="relatedness_score", words=None, score_range=(1, 5))
SICK_RELATEDNESS = Task(
    name="sick-relatedness", title="SICK relatedness", kind="regress", is_pair=True, is_symmetric=True,
    summary="how alike are two sentences, 1 to 5",
    splits={split: (text_source(name, columns=_RELATEDNESS),) for split, name in _SICK_FILES.items()},
    homes=_SICK_HOMES, metrics=("pearson", "spearman"), score_range=(1, 5),
)  # fmt: skip

NLI_TASKS = (SNLI, COUNTERFACTUAL, SICK, SICK_RELATEDNESS)
