"""A fine-tuned model of another kind than BERT, to use: what `bw.load` gives for its folder.

It does what it was fine-tuned for, with the same methods and results as a BERT; what else only a BERT can do is refused
in words that say so.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch

from bertworks.errors import UserError
from bertworks.inference.answering import answer_questions
from bertworks.inference.predictions import (
    Predictor,
    choose_endings,
    classify_texts,
    stated_cut,
    stated_threshold,
    task_of,
)
from bertworks.inference.tagging import Text, Units, tag_texts
from bertworks.interop.compound_folder import write_compound
from bertworks.interop.elmo_task_folder import write_elmo_task
from bertworks.interop.folder import save_tokenizer
from bertworks.interop.gpt_folder import write_gpt
from bertworks.interop.model_folder import ModelFolder
from bertworks.nn.attention import can_flash
from bertworks.nn.compound import Compound
from bertworks.nn.elmo_tasks import ElmoTasks
from bertworks.nn.gpt import Gpt
from bertworks.nn.hidden_states import in_pairs, texts_of
from bertworks.nn.layers import freeze
from bertworks.tasks.answer_windows import ORIGINAL_CUT
from bertworks.tasks.items import Laying
from bertworks.text.gpt_inputs import GptInputs
from bertworks.text.spelt_words import SpeltTokenizer
from bertworks.text.tokenizer import Tokenizer

_METHODS = ("classify", "choose", "tag", "answer", "predictor", "save")
_NO_LIMIT = 65_536  # words that an ELMo reads at once: as many as may be learnt with


class Traits(NamedTuple):
    """What is particular to a kind of network.

    Attributes:
        name: as an error calls it.
        max_length: the most tokens that it reads.
        head_widths: of its attention's heads; none where it has no such attention.
        write: writes config, weights and bertworks.json into a folder.
        tokenizer: makes a task's inputs, given the tokenizer of the folder; None: that one makes them.
    """

    name: str
    max_length: int
    head_widths: list[int]
    write: Callable[..., None]
    tokenizer: Callable[[Any], Any] | None = None


def _traits_of(net: Any) -> Traits:
    if isinstance(net, Gpt):
        width = net.config.n_embd // net.config.n_head
        return Traits("a fine-tuned GPT-1", net.config.n_positions, [width], write_gpt, GptInputs)
    if isinstance(net, ElmoTasks):
        return Traits("a fine-tuned ELMo", _NO_LIMIT, [], write_elmo_task, partial(_spelling_for, net))
    assert isinstance(net, Compound), net
    widths = [encoder.head_width for encoder in net.config.encoders]
    length = net.config.max_position_embeddings
    return Traits("a model of several parts", length, widths, write_compound)


def _spelling_for(net: ElmoTasks, tokenizer: SpeltTokenizer) -> SpeltTokenizer:
    """Have a network read the words that its tokenizer numbers."""
    net.read_words(tokenizer.met)
    return tokenizer


class TaskModel:
    """A network with a task's head and its tokenizer.

    Attributes:
        net: the network, in evaluation mode; its weights must not change any more.
        tokenizer: what makes its inputs.
        labels: of its classes or tags.
        about: what the folder says of where it comes from.
        max_length: the most tokens that it reads at once.
    """

    def __init__(self, folder: ModelFolder[Any], tokenizer: Any, device: torch.device) -> None:
        self.net: Any = folder.net.eval()
        freeze(self.net)
        self._traits = _traits_of(self.net)
        self.tokenizer: Tokenizer = self._traits.tokenizer(tokenizer) if self._traits.tokenizer else tokenizer
        self.labels, self.about, self.unused = folder.labels, folder.about, folder.unused
        self.max_length, dtype = self._traits.max_length, next(self.net.parameters()).dtype
        widths = self._traits.head_widths
        self._laying = Laying(device, bool(widths) and all(can_flash(width, dtype, device) for width in widths))

    def __repr__(self) -> str:
        from bertworks.inference.model_report import summary_of

        return summary_of(self)

    def __getattr__(self, name: str) -> Any:
        from bertworks.inference.model import Model

        if name.startswith("_") or not hasattr(Model, name):
            raise AttributeError(f"a fine-tuned model has no {name}")
        raise UserError(f"{self._traits.name} has no {name}, which is BERT's; it has {', '.join(_METHODS)}")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder."""
        from bertworks.files import atomic_folder

        with atomic_folder(folder) as temporary:
            self._traits.write(Path(temporary), self.net, labels=self.labels, about=self.about)
            save_tokenizer(self.tokenizer, temporary)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None
    ) -> dict[str, Any]: ...
    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]: ...
    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell the class, the score or the labels of each text, or pair of texts; see `Model.classify`."""
        results = classify_texts(self.predictor(), texts, pairs)
        return results[0] if isinstance(texts, str) else results

    @overload
    def choose(  # type: ignore[overload-overlap]
        self, context: str, endings: Sequence[str]
    ) -> dict[str, Any]: ...
    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[dict[str, Any]]: ...
    def choose(self, context: str | Sequence[str], endings: Sequence[Any]) -> dict[str, Any] | list[dict[str, Any]]:
        """Tell which ending goes best with a context; see `Model.choose`."""
        self._need("choose", "choose")
        if isinstance(context, str):
            return choose_endings(self.predictor(), [context], [endings])[0]
        return choose_endings(self.predictor(), context, endings)

    def predictor(self) -> Predictor:
        """Return what predicts for the examples of the task that the model was fine-tuned for."""
        task, cut = task_of(self.net, self.labels, self.about), stated_cut(self.about, self.max_length, self.max_length)
        return Predictor(self.net, self.tokenizer, task, cut, self._laying, is_told=bool(self.about.get("task")))

    def tag(self, texts: str | Sequence[Text], *, units: Units | None = None) -> list[Any]:
        """Find the entities of texts of any length; see `Model.tag`."""
        self._need("tag", "tag")
        labels = self.labels or [f"LABEL_{number}" for number in range(self.net.heads["tag"].num_outputs)]
        found = tag_texts(
            self.net, self.tokenizer, texts, labels, laying=self._laying,
            cut=stated_cut(self.about, self.max_length, self.max_length),
            units=units or self.about.get("units", "word"),
        )  # fmt: skip
        entities = [tagged.entities(labels) for tagged in found]
        return entities[0] if isinstance(texts, str) else entities

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int = 1,
        threshold: float | None = None,
    ) -> list[Any]:
        """Look for the answer to a question in a text of any length, or for several; see `Model.answer`."""
        self._need("span", "answer questions")
        texts_of("answer", question, "question")
        found = answer_questions(
            self.net, self.tokenizer, *in_pairs("answer", question, context), top_k=top_k, laying=self._laying,
            cut=stated_cut(self.about, ORIGINAL_CUT.max_length, self.max_length),
            threshold=stated_threshold(self.about) if threshold is None else threshold,
        )  # fmt: skip
        return found[0] if isinstance(question, str) and isinstance(context, str) else found

    def _need(self, head: str, what: str) -> None:
        if head not in self.net.heads:
            found = ", ".join(self.net.heads) or "none"
            raise UserError(
                f"the model cannot {what}: it has no {head} head (heads: {found}); see `bertworks finetune`"
            )
