"""Korean benchmarks from their own files: NSMC, KorNLI, KorSTS, KorQuAD, KLUE, Naver NER and two smaller sets.

KLUE tags characters, not words, because a particle is written together with its noun: its examples are texts whose
units are the characters that are not spaces. Naver's tags come as `PER-B` and are turned around.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from bertworks.errors import UserError, counted
from bertworks.tasks.conll import OUTSIDE, tag_labels, tag_problem, to_iob2
from bertworks.tasks.glue import NLI_LABELS, same, text_source, text_task
from bertworks.tasks.squad import squad_source
from bertworks.tasks.tables import TextColumns, numbered_lines
from bertworks.tasks.task import Defaults, Skipped, Source, TagExample, Task, words_example

_KLUE_TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")
_NAVER_TYPES = ("PER", "FLD", "AFW", "ORG", "LOC", "CVL", "DAT", "TIM", "NUM", "EVT", "ANM", "PLT", "MAT", "TRM")
_KLUE_HOMES = ("klue", "KLUE", "korean/klue", "")


def read_klue_ner(paths: Sequence[Path], _: Skipped) -> Iterator[TagExample]:
    """Yield KLUE's sentences: a character and its tag on each line, comments and names after `##`."""
    document = 0
    for path in paths:
        name, text, tags = "", "", list[str]()
        for number, line in chain(numbered_lines(path), [(0, "")]):  # a last blank line ends a sentence
            if line.startswith("## ") or line == "##":
                name = line.removeprefix("## ").split("\t")[0]
            elif line:
                character, _tab, tag = line.rpartition("\t")
                if len(character) != 1:
                    raise UserError(f"{path}:{number}: {line[:60]!r} is not a character, a tab and a tag")
                if problem := tag_problem(tag, _KLUE_TYPES):
                    raise UserError(f"{path}:{number}: {problem}")
                text += character
                tags.append(tag)
            elif text:
                kept = [index for index, character in enumerate(text) if not character.isspace()]
                spans, iob2 = tuple((index, index + 1) for index in kept), to_iob2(tags)
                yield TagExample(name, text, spans, tuple(iob2[index] for index in kept), document)
                document, text, tags = document + 1, "", []


def read_naver_ner(paths: Sequence[Path], _: Skipped) -> Iterator[TagExample]:
    """Yield Naver's sentences: words, a tab, and a tag for each word."""
    number = 0
    for path in paths:
        for line_number, line in numbered_lines(path):
            if not line:
                continue
            text, _tab, tag_text = line.partition("\t")
            words, tags = text.split(), []
            for turned in tag_text.split():
                kind, _dash, prefix = turned.rpartition("-")
                tags.append(turned if turned in (OUTSIDE, "-") else f"{prefix}-{kind}")
            where = f"{path}:{line_number}"
            if not words or len(words) != len(tags):
                raise UserError(f"{where}: {counted(len(words), 'word')} and {len(tags)} tags; each word needs one")
            if problem := next(filter(None, (tag_problem(tag, _NAVER_TYPES) for tag in tags)), ""):
                raise UserError(f"{where}: {problem}")
            yield words_example(str(number), words, to_iob2(tags), number)
            number += 1


NSMC = text_task(
    "nsmc", "NSMC", "is a Korean film review positive",
    TextColumns("document", words={"0": "negative", "1": "positive"}, id="id"),
    {"train": "ratings_train.txt", "test": "ratings_test.txt"}, homes=("nsmc", "NSMC", ""),
)  # fmt: skip

_KORNLI = TextColumns("sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS))
_OF_SNLI, _OF_MULTINLI = "snli_1.0_train.ko.tsv", "multinli.train.ko.tsv"
KORNLI = text_task(
    "kornli", "KorNLI", "does one Korean sentence follow from another", _KORNLI,
    {
        "train": (
            text_source(_OF_SNLI, _OF_MULTINLI, columns=_KORNLI),
            text_source(_OF_MULTINLI, columns=_KORNLI, note="the MultiNLI part of KorNLI's train set"),
            text_source(_OF_SNLI, columns=_KORNLI, note="the SNLI part of KorNLI's train set"),
        ),
        "dev": "xnli.dev.ko.tsv",
        "test": "xnli.test.ko.tsv",
    },
    homes=("KorNLI", "kornli", "korean/kornli", ""),
)  # fmt: skip

KORSTS = text_task(
    "korsts", "KorSTS", "how alike are two Korean sentences, 0 to 5",
    TextColumns("sentence1", "sentence2", label="score", score_range=(0, 5)),
    {split: f"sts-{split}.tsv" for split in ("train", "dev", "test")}, homes=("KorSTS", "korsts", "korean/korsts", ""),
    is_symmetric=True, metrics=("spearman", "pearson"),
)  # fmt: skip

KORQUAD = Task(
    name="korquad", title="KorQuAD 1.0", kind="answer", summary="find the answer in a Korean paragraph", is_pair=True,
    splits={split: (squad_source(f"KorQuAD_v1.0_{split}.json"),) for split in ("train", "dev")},
    homes=("korquad", "KorQuAD", "korean/korquad", ""), metrics=("f1", "exact_match"),
    defaults=Defaults(max_length=384), answers_are_korean=True,
)  # fmt: skip

KLUE_NLI = text_task(
    "klue-nli", "KLUE NLI", "does one Korean sentence follow from another",
    TextColumns("premise", "hypothesis", label="gold_label", words=same(*NLI_LABELS), id="guid"),
    {split: f"klue-nli-v1.1_{split}.json" for split in ("train", "dev")}, homes=_KLUE_HOMES,
)  # fmt: skip

KLUE_STS = text_task(
    "klue-sts", "KLUE STS", "how alike are two Korean sentences, 0 to 5",
    TextColumns("sentence1", "sentence2", label="labels.label", score_range=(0, 5), id="guid"),
    {split: f"klue-sts-v1.1_{split}.json" for split in ("train", "dev")}, homes=_KLUE_HOMES,
    is_symmetric=True, metrics=("pearson", "spearman"),
)  # fmt: skip

KLUE_NER = Task(
    name="klue-ner", title="KLUE NER", kind="tag", summary="Korean names, dates, times and quantities, by character",
    splits={split: (Source((f"klue-ner-v1.1_{split}.tsv",), read_klue_ner),) for split in ("train", "dev")},
    homes=_KLUE_HOMES, units="character", labels=tag_labels(_KLUE_TYPES),
    metrics=("f1", "f1_macro", "precision", "recall"),
)  # fmt: skip

NAVER_NER = Task(
    name="naver-ner", title="Naver NER", kind="tag", summary="Korean names and terms of 14 types, by word",
    splits={split: (Source((f"{split}.tsv",), read_naver_ner),) for split in ("train", "test")},
    homes=("naver-ner", "korean/naver-ner", ""), labels=tag_labels(_NAVER_TYPES),
    metrics=("f1", "precision", "recall"),
)  # fmt: skip

QUESTION_PAIR = text_task(
    "korean-question-pair", "Korean question pair", "do two Korean questions ask the same",
    # Here 0 is "the same question", against the column's name.
    TextColumns("question1", "question2", label="is_duplicate", words={"0": "duplicate", "1": "not_duplicate"}),
    {split: f"{split}.tsv" for split in ("train", "dev", "test")},
    homes=("question-pair", "korean/question-pair", ""), is_symmetric=True, positive="duplicate",
    metrics=("accuracy", "f1"),
)  # fmt: skip

HATE_SPEECH = text_task(
    "korean-hate-speech", "Korean hate speech", "is a Korean news comment hateful",
    TextColumns("comment", label="hate", words=same("none", "offensive", "hate")),
    {split: f"{split}.tsv" for split in ("train", "dev")},
    homes=("hate-speech", "korean/hate-speech", "korean-hate-speech/labeled", "labeled", ""),
    metrics=("f1_macro", "accuracy"),
)  # fmt: skip

KOREAN_TASKS = (
    NSMC, KORNLI, KORSTS, KORQUAD, KLUE_NLI, KLUE_STS, KLUE_NER, NAVER_NER, QUESTION_PAIR, HATE_SPEECH,
)  # fmt: skip
