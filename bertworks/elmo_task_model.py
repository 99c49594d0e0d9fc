"""An ELMo that was fine-tuned, to use: what `bw.load` gives for its folder."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from bertworks.answering import answer_question
from bertworks.errors import UserError
from bertworks.interop.elmo_task_folder import write_elmo_task
from bertworks.interop.model_folder import ModelFolder
from bertworks.nn.elmo_tasks import ElmoTasks
from bertworks.nn.layers import freeze
from bertworks.predictions import Predictor, classify_texts, stated_threshold, task_of
from bertworks.tagging import Text, Units, tag_texts
from bertworks.tasks.answer_windows import AnswerSettings
from bertworks.tasks.examples import ChoiceExample
from bertworks.tasks.items import Cut, Laying
from bertworks.text.spelt_words import SpeltTokenizer

_METHODS = ("classify", "choose", "tag", "answer", "save")
_USUAL_LENGTH = 512  # words at once, where the folder does not say what was learnt with


class ElmoTaskModel:
    """A fine-tuned ELMo.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: numbers the words that it meets.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
    """

    def __init__(self, folder: ModelFolder[ElmoTasks], tokenizer: SpeltTokenizer, device: torch.device) -> None:
        # What the functions of tasks say of a Bert and a Tokenizer is more than they use.
        self.net: Any = folder.net.eval()
        self.tokenizer: Any = tokenizer
        freeze(self.net)
        self.net.read_words(tokenizer.met)
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self._laying = Laying(device)

    def __getattr__(self, name: str) -> Any:
        from bertworks.model import Model

        if name.startswith("_") or not hasattr(Model, name):
            raise AttributeError(f"a fine-tuned ELMo has no {name}")
        raise UserError(f"a fine-tuned ELMo has no {name}, which is BERT's; it has {', '.join(_METHODS)}")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            write_elmo_task(temporary, self.net, labels=self.labels, about=self.about)
            self.tokenizer.save(temporary)

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Tell the class, the score or the labels of each text, or pair of texts; see `Model.classify`."""
        if "classify" in self.net.heads and (pairs is not None) != self.net.reader.pairs:
            raise UserError(f"the model reads {'pairs of texts' if self.net.reader.pairs else 'single texts'}")
        return classify_texts(self.predictor(), texts, pairs)

    def choose(self, context: str, endings: Sequence[str]) -> dict[str, Any]:
        """Tell which ending goes best with a context: {"choice", "score", "scores"}, its place counted from 0."""
        self._need("choose", "choose")
        if isinstance(endings, str) or len(endings) < 2:
            raise UserError("choose takes a list of at least two endings")
        return next(self.predictor().results([ChoiceExample("", context, tuple(endings), None)]))

    def tag(self, texts: str | Sequence[Text], *, units: Units | None = None) -> list[Any]:
        """Find the entities of one text or of several; see `Model.tag`."""
        self._need("tag", "tag")
        labels = self.labels or [f"LABEL_{number}" for number in range(len(self.net.heads["tag"].out.bias))]
        given: Sequence[Text] = [texts] if isinstance(texts, str) else texts
        found = tag_texts(
            self.net, self.tokenizer, given, labels, cut=self._cut_of(_USUAL_LENGTH), laying=self._laying,
            units=units or self.about.get("units", "word"),
        )  # fmt: skip
        entities = [tagged.entities(labels) for tagged in found]
        return entities[0] if isinstance(texts, str) else entities

    def answer(
        self, question: str, context: str, *, top_k: int = 1, threshold: float | None = None
    ) -> list[dict[str, Any]]:
        """Look for the answer to a question in a text of any length; see `Model.answer`."""
        self._need("span", "answer questions")
        return answer_question(
            self.net, self.tokenizer, question, context, top_k=top_k, cut=self._cut_of(AnswerSettings().max_length),
            laying=self._laying, threshold=stated_threshold(self.about) if threshold is None else threshold,
        )  # fmt: skip

    def predictor(self) -> Predictor:
        """Return what predicts for the examples of the task that the model was fine-tuned for."""
        task, is_told = task_of(self.net, self.labels, self.about), bool(self.about.get("task"))
        cut = self._cut_of(_USUAL_LENGTH)
        return Predictor(self.net, self.tokenizer, task, cut, self._laying, is_told=is_told)

    def _cut_of(self, usual_length: int) -> Cut:
        """Return how much is read at once: as in fine-tuning, as far as the folder says."""
        told = self.about.get("task")
        told = {name: told[name] for name in Cut._fields if name in told} if isinstance(told, dict) else {}
        return Cut(**{"max_length": usual_length} | told)

    def _need(self, head: str, what: str) -> None:
        if head not in self.net.heads:
            found = ", ".join(self.net.heads)
            raise UserError(f"the model cannot {what}: it has no {head} head (heads: {found})")
