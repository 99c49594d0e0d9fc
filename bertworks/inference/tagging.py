"""Tags and entities in texts of any length, by a model with a tag head.

A text is a document: its windows overlap, and each unit is labelled where it has most text on both sides. Units are the
tokenizer's words (punctuation is one of its own), the words that a person gives, or, for models that learnt to tag
characters, all characters but spaces.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from bertworks.errors import UserError
from bertworks.nn.bert import Bert
from bertworks.nn.hidden_states import texts_of
from bertworks.tasks.conll import OUTSIDE, tag_problem, to_iob2
from bertworks.tasks.cut import Cut
from bertworks.tasks.entity_scores import entities
from bertworks.tasks.evaluation import score_items
from bertworks.tasks.examples import TagExample, words_example
from bertworks.tasks.items import Laying
from bertworks.tasks.kinds import KINDS
from bertworks.tasks.tag_windows import NO_UNIT, TagWindows, UnitLabels, decode_tags, encode_tags, unit_labels
from bertworks.tasks.window_kinds import tag_items
from bertworks.text.by_words import check_text
from bertworks.text.tokenizer import Tokenizer

Units = Literal["word", "character"]
UNITS = ("word", "character")
Text = str | Sequence[str]  # as it is, or its words


class Tagged(NamedTuple):
    """A text and what a model says of its units."""

    text: str
    spans: tuple[tuple[int, int], ...]  # of the units
    tags: list[str]  # one for each
    scores: list[float]  # how likely each is

    def entities(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Return {"type", "text", "start", "end", "score"} of each entity; its score is the mean of its units'.

        Where labels are not made of B-, I- and the like, each unit that is not O is returned by itself.
        """
        if any(tag_problem(label, None) for label in labels):
            found = [(tag, place, place + 1) for place, tag in enumerate(self.tags) if tag != OUTSIDE]
        else:
            found = list(entities(to_iob2(self.tags)))
        return [self._entity(kind, first, last) for kind, first, last in found]

    def _entity(self, kind: str, first: int, last: int) -> dict[str, Any]:
        start, end = self.spans[first][0], self.spans[last - 1][1]
        score = sum(self.scores[first:last]) / (last - first)
        return {"type": kind, "text": self.text[start:end], "start": start, "end": end, "score": score}


def predict_tags(net: Bert, encoded: TagWindows, laying: Laying) -> UnitLabels:
    """Return the best label of every unit, by a network in evaluation mode."""
    rows = score_items(net, KINDS["tag"], tag_items(encoded), laying).rows
    windows = zip(encoded.windows, rows, strict=True)
    return unit_labels(encoded, enumerate(row[window.places] for window, row in windows))


def tag_texts(
    net: Bert,
    tokenizer: Tokenizer,
    texts: str | Sequence[Text],
    labels: Sequence[str],
    *,
    cut: Cut,
    laying: Laying,
    units: Units = "word",
) -> list[Tagged]:
    """Tag the units of texts.

    Args:
        net: in evaluation mode, with a tag head.
        tokenizer: the network's.
        texts: one as it is, or several, each as it is or as a list of words, which spaces then divide.
        labels: in the order of the head's outputs.
        cut: how much of a text is read at once.
        laying: how tokens are laid for the network.
        units: what is tagged in a text that is not given as words.
    """
    texts = texts_of("tag", [texts] if isinstance(texts, str) else texts)  # an empty one has no tags
    if units not in UNITS:
        raise UserError(f"no tags are given to each {str(units)[:40]!r}; choose {' or '.join(UNITS)}")
    examples = [_example(tokenizer, number, text, units) for number, text in enumerate(texts)]
    encoded = encode_tags(tokenizer, examples, max_length=cut.max_length, context=cut.context, stride=cut.stride)
    found = predict_tags(net, encoded, laying)
    # The last number stands for NO_UNIT: that such a unit is O is not the model's word.
    scores = np.append(found.scores, 1.0)[encoded.labelled_by]
    assert NO_UNIT == -1
    tags = decode_tags(encoded, found, labels)
    return [
        Tagged(example.text, example.spans, own, scores[first:last].tolist())
        for example, own, first, last in zip(examples, tags, encoded.bounds[:-1], encoded.bounds[1:], strict=True)
    ]


def _example(tokenizer: Tokenizer, number: int, text: Text, units: Units) -> TagExample:
    if not isinstance(text, str):
        for word in text if isinstance(text, Sequence) else [text]:
            check_text(word)
        return words_example(str(number), text, None, number)
    if units == "character":
        spans = [(place, place + 1) for place, character in enumerate(text) if not character.isspace()]
    else:
        spans = _word_spans(tokenizer, text)
    return TagExample(str(number), text, tuple(spans), None, number)


def _word_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    encoding = tokenizer.encode(text)
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            spans[word] = (spans[word][0] if word in spans else start, end)
    return list(spans.values())
