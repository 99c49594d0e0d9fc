"""Korean benchmarks from their own files: NSMC, KorNLI, KorSTS, KorQuAD, KLUE, Naver NER and two smaller sets.

KLUE tags characters, not words, because a particle is written together with its noun: its examples are texts whose
units are the characters that are not spaces. Naver's tags come as `PER-B` and are turned around.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bertworks.errors import UserError, counted
from bertworks.tasks.conll import OUTSIDE, tag_labels, tag_problem, to_iob2
from bertworks.tasks.examples import Skipped, TagExample, words_example
from bertworks.tasks.glue import NLI_LABELS, same
from bertworks.tasks.squad import squad_source
from bertworks.tasks.tables import numbered_lines
from bertworks.tasks.task import Defaults, Source, Task
from bertworks.tasks.texts import TextColumns, text_source

_KLUE_TYPES = ("PS", "LC", "OG", "DT", "TI", "QT")
_NAVER_TYPES = ("PER", "FLD", "AFW", "ORG", "LOC", "CVL", "DAT", "TIM", "NUM", "EVT", "ANM", "PLT", "MAT", "TRM")
_KLUE_HOMES = ("klue", "KLUE", "korean/klue", "")


def read_klue_ner(paths: Sequence[Path], _: Skipped) -> Iterator[TagExample]:
    """Yield KLUE's sentences: a character and its tag on each line, comments and names after `##`."""
    document = 0
    for path in paths:
        name, units = "", list[tuple[str, str]]()
        for number, line in numbered_lines(path):
            if line.startswith("## ") or line == "##":
                name = line.removeprefix("## ").split("\t")[0]
            elif line:
                units.append(_character(line, f"{path}:{number}"))
            elif units:
                yield _characters_example(name, units, document)
                document, units = document + 1, []
        if units:
            yield _characters_example(name, units, document)
            document += 1


def _character(line: str, where: str) -> tuple[str, str]:
    character, _, tag = line.rpartition("\t")
    if len(character) != 1:
        raise UserError(f"{where}: {line[:60]!r} is not a character, a tab and a tag")
    if problem := tag_problem(tag, _KLUE_TYPES):
        raise UserError(f"{where}: {problem}")
    return character, tag


def _characters_example(name: str, units: list[tuple[str, str]], document: int) -> TagExample:
    text = "".join(character for character, _ in units)
    kept = [place for place, character in enumerate(text) if not character.isspace()]
    tags = to_iob2([tag for _, tag in units])
    return TagExample(
        name, text, tuple((place, place + 1) for place in kept), tuple(tags[place] for place in kept), document
    )


def read_naver_ner(paths: Sequence[Path], _: Skipped) -> Iterator[TagExample]:
    """Yield Naver's sentences: words, a tab, and a tag for each word."""
    number = 0
    for path in paths:
        for line_number, line in numbered_lines(path):
            if line:
                yield _naver_sentence(line, f"{path}:{line_number}", number)
                number += 1


def _naver_sentence(line: str, where: str, number: int) -> TagExample:
    text, _, tag_text = line.partition("\t")
    words, tags = text.split(), [_turned(tag) for tag in tag_text.split()]
    if not words or len(words) != len(tags):
        raise UserError(f"{where}: {counted(len(words), 'word')} and {len(tags)} tags; each word needs one")
    for tag in tags:
        if problem := tag_problem(tag, _NAVER_TYPES):
            raise UserError(f"{where}: {problem}")
    return words_example(str(number), words, to_iob2(tags), number)


def _turned(tag: str) -> str:
    kind, _, prefix = tag.rpartition("-")
    return tag if tag in (OUTSIDE, "-") else f"{prefix}-{kind}"


_SENTIMENT = {"0": "negative", "1": "positive"}
_NSMC = TextColumns("document", words=_SENTIMENT, id="id")
NSMC = Task(
    name="nsmc", title="NSMC", kind="classify", summary="is a Korean film review positive",
    splits={
        "train": (text_source("ratings_train.txt", columns=_NSMC),),
        "test": (text_source("ratings_test.txt", columns=_NSMC),),
    },
    homes=("nsmc", "NSMC", ""), labels=tuple(_SENTIMENT.values()), words={"negative": "0", "positive": "1"},
    metrics=("accuracy",),
)  # fmt: skip

_KORNLI = TextColumns("sentence1", "sentence2", label="gold_label", words=same(*NLI_LABELS))
KORNLI = Task(
    name="kornli", title="KorNLI", kind="classify", summary="does one Korean sentence follow from another",
    is_pair=True,
    splits={
        "train": (
            text_source("snli_1.0_train.ko.tsv", "multinli.train.ko.tsv", columns=_KORNLI),
            text_source("multinli.train.ko.tsv", columns=_KORNLI, note="the MultiNLI part of KorNLI's train set"),
            text_source("snli_1.0_train.ko.tsv", columns=_KORNLI, note="the SNLI part of KorNLI's train set"),
        ),
        "dev": (text_source("xnli.dev.ko.tsv", columns=_KORNLI),),
        "test": (text_source("xnli.test.ko.tsv", columns=_KORNLI),),
    },
    homes=("KorNLI", "kornli", "korean/kornli", ""), labels=NLI_LABELS, words=same(*NLI_LABELS),
    metrics=("accuracy",),
)  # fmt: skip

_KORSTS = TextColumns("sentence1", "sentence2", label="score", score_range=(0, 5))
KORSTS = Task(
    name="korsts", title="KorSTS", kind="regress", summary="how alike are two Korean sentences, 0 to 5", is_pair=True,
    is_symmetric=True,
    splits={split: (text_source(f"sts-{split}.tsv", columns=_KORSTS),) for split in ("train", "dev", "test")},
    homes=("KorSTS", "korsts", "korean/korsts", ""), metrics=("spearman", "pearson"), score_range=(0, 5),
)  # fmt: skip

KORQUAD = Task(
    name="korquad", title="KorQuAD 1.0", kind="answer", summary="find the answer in a Korean paragraph", is_pair=True,
    splits={
        "train": (squad_source("KorQuAD_v1.0_train.json"),),
        "dev": (squad_source("KorQuAD_v1.0_dev.json"),),
    },
    homes=("korquad", "KorQuAD", "korean/korquad", ""), metrics=("f1", "exact_match"),
    defaults=Defaults(max_length=384), answers_are_korean=True,
)  # fmt: skip

_KLUE_NLI = TextColumns("premise", "hypothesis", label="gold_label", words=same(*NLI_LABELS), id="guid")
KLUE_NLI = Task(
    name="klue-nli", title="KLUE NLI", kind="classify", summary="does one Korean sentence follow from another",
    is_pair=True,
    splits={
        split: (text_source(f"klue-nli-v1.1_{split}.json", columns=_KLUE_NLI),) for split in ("train", "dev")
    },
    homes=_KLUE_HOMES, labels=NLI_LABELS, words=same(*NLI_LABELS), metrics=("accuracy",),
)  # fmt: skip

_KLUE_STS = TextColumns("sentence1", "sentence2", label="labels.label", score_range=(0, 5), id="guid")
KLUE_STS = Task(
    name="klue-sts", title="KLUE STS", kind="regress", summary="how alike are two Korean sentences, 0 to 5",
    is_pair=True, is_symmetric=True,
    splits={
        split: (text_source(f"klue-sts-v1.1_{split}.json", columns=_KLUE_STS),) for split in ("train", "dev")
    },
    homes=_KLUE_HOMES, metrics=("pearson", "spearman"), score_range=(0, 5),
)  # fmt: skip

KLUE_NER = Task(
    name="klue-ner", title="KLUE NER", kind="tag", summary="Korean names, dates, times and quantities, by character",
    splits={
        split: (Source((f"klue-ner-v1.1_{split}.tsv",), read_klue_ner),) for split in ("train", "dev")
    },
    homes=_KLUE_HOMES, units="character", labels=tag_labels(_KLUE_TYPES),
    metrics=("f1", "f1_macro", "precision", "recall"),
)  # fmt: skip

NAVER_NER = Task(
    name="naver-ner", title="Naver NER", kind="tag", summary="Korean names and terms of 14 types, by word",
    splits={split: (Source((f"{split}.tsv",), read_naver_ner),) for split in ("train", "test")},
    homes=("naver-ner", "korean/naver-ner", ""), labels=tag_labels(_NAVER_TYPES),
    metrics=("f1", "precision", "recall"),
)  # fmt: skip

# Here 0 is "the same question", against the column's name.
_QUESTIONS = TextColumns("question1", "question2", label="is_duplicate", words={"0": "duplicate", "1": "not_duplicate"})
QUESTION_PAIR = Task(
    name="korean-question-pair", title="Korean question pair", kind="classify", is_pair=True, is_symmetric=True,
    summary="do two Korean questions ask the same",
    splits={split: (text_source(f"{split}.tsv", columns=_QUESTIONS),) for split in ("train", "dev", "test")},
    homes=("question-pair", "korean/question-pair", ""), labels=("duplicate", "not_duplicate"),
    words={"duplicate": "0", "not_duplicate": "1"}, positive="duplicate", metrics=("accuracy", "f1"),
)  # fmt: skip

_HATE_LABELS = ("none", "offensive", "hate")
_HATE = TextColumns("comment", label="hate", words=same(*_HATE_LABELS))
HATE_SPEECH = Task(
    name="korean-hate-speech", title="Korean hate speech", kind="classify", summary="is a Korean news comment hateful",
    splits={
        "train": (text_source("train.tsv", columns=_HATE),),
        "dev": (text_source("dev.tsv", columns=_HATE),),
    },
    homes=("hate-speech", "korean/hate-speech", "korean-hate-speech/labeled", "labeled", ""), labels=_HATE_LABELS,
    words=same(*_HATE_LABELS), metrics=("f1_macro", "accuracy"),
)  # fmt: skip

KOREAN_TASKS = (
    NSMC, KORNLI, KORSTS, KORQUAD, KLUE_NLI, KLUE_STS, KLUE_NER, NAVER_NER, QUESTION_PAIR, HATE_SPEECH,
)  # fmt: skip
