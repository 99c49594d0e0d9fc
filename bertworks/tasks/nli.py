"""Does one sentence follow from another: SNLI, its counterfactual revision, and SICK, from their own files."""

from bertworks.tasks.glue import NLI_LABELS, same, text_source, text_task
from bertworks.tasks.tables import TextColumns

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
