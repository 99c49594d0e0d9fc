"""Hugging Face's `InferenceClient`, unchanged: POST / and /models/NAME, or /models/NAME/pipeline/TASK.

| task                     | inputs                        | the answer                                                |
|--------------------------|-------------------------------|-----------------------------------------------------------|
| text-classification      | a text, {text, text_pair}     | [[{label, score}, ...]], the highest first                |
| token-classification     | a text of any length          | [{entity_group, score, word, start, end}, ...]            |
| question-answering       | {question, context}           | {answer, score, start, end}; a list with `top_k` beyond 1 |
| fill-mask                | a text with [MASK]            | [{score, token, token_str, sequence}, ...]                |
| feature-extraction       | a text                        | [[number, ...]], a vector a text                          |
| sentence-similarity      | {source_sentence, sentences}  | [cosine, ...]                                             |
| zero-shot-classification | a text, with candidate_labels | [{label, score}, ...], by a model of inference            |

Where the path does not say the task, the body does, or the model: each was made for one. Lists of texts get lists of
such answers.
"""

import itertools
import math
import operator
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from bertworks.errors import UserError, shown, shown_names
from bertworks.inference.model import Model
from bertworks.inference.readings import Reading, read_answering, read_fill, read_tagging
from bertworks.serving.clients import (
    Cut,
    Given,
    Similar,
    TextError,
    any_model,
    can,
    classes_of,
    cosines,
    descending,
    errors,
    find,
    read_rows,
    softmax,
    vectors,
)
from bertworks.serving.http import JsonRoute
from bertworks.serving.routes import (
    FEW,
    FIRST,
    ServiceNeeded,
    Texts,
    TopK,
    Word,
    as_json,
    check_guesses,
    check_numbers,
    joined_json,
    listed,
    masks_of,
)
from bertworks.serving.service import Served, Service
from bertworks.text.vocabulary import MASK

router = APIRouter(route_class=JsonRoute)
_TASKS = {"classify": "text-classification", "tag": "token-classification", "answer": "question-answering"}
_LISTS_SINCE = (1, 2)  # the version of huggingface_hub since which zero-shot classes are a list of objects


class TextPair(Given):
    """Two texts that are classified together."""

    text: str
    text_pair: str


class Question(Given):
    """A question, and the text to look in."""

    question: str
    context: str


class Parameters(Cut):
    """The parameters of all tasks; each task has some of them."""

    aggregation_strategy: Literal["simple", "first", "average", "max"] | None = Field(
        default=None, description="Each of these gives entities of whole words, as the model learnt to tag them."
    )
    ignore_labels: list[str] | None = Field(default=None, description="Entities that are left out.")
    stride: int | None = Field(default=None, description="Not used: windows are those of evaluation.")
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    top_k: TopK | None = None
    targets: Word | Annotated[list[Word], FIRST, FEW] | None = None
    align_to_words: bool | None = Field(default=None, description="Not used: answers are of whole words.")
    doc_stride: int | None = Field(default=None, description="Not used: windows are those of evaluation.")
    max_seq_len: int | None = Field(default=None, description="Not used: windows are those of evaluation.")
    max_question_len: int | None = Field(default=None, description="Not used: as in evaluation.")
    handle_impossible_answer: bool | None = Field(default=None, description="true: there may be no answer.")
    candidate_labels: Texts | None = None
    hypothesis_template: str | None = Field(default=None, max_length=1_000, description="With one {} for a label.")
    multi_label: bool | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: int | None = Field(default=None, ge=1)
    encoding_format: Literal["float"] | None = None
    truncation: bool | None = Field(default=None, description="Not used: see `truncate`.")


_VECTORS = {"normalize", "prompt_name", "dimensions", "encoding_format"}
_OWN_PARAMETERS: dict[str, set[str]] = {
    "text-classification": {"top_k", "function_to_apply", "truncation"},
    "token-classification": {"aggregation_strategy", "ignore_labels", "stride"},
    "question-answering": {
        "top_k", "handle_impossible_answer", "align_to_words", "doc_stride", "max_seq_len", "max_question_len"
    },
    "fill-mask": {"top_k", "targets"},
    "feature-extraction": {*_VECTORS, "truncate", "truncation_direction", "truncation"},
    "sentence-similarity": {"prompt_name", "truncate", "truncation_direction"},
    "zero-shot-classification": {"candidate_labels", "hypothesis_template", "multi_label"},
}  # fmt: skip


class TaskBody(Parameters):
    """A request of `InferenceClient`; it sends the parameters of feature-extraction beside `inputs`."""

    inputs: Texts | Similar | TextPair | Question | Annotated[list[Question], FIRST]
    parameters: Parameters | None = None
    options: dict[str, Any] | None = Field(default=None, description="Not used.")

    def given(self, task: str) -> Parameters:
        """Return the parameters of a request for a task; one that the task does not have is refused."""
        sent = self.model_dump(exclude={"inputs", "options", "parameters"}, exclude_unset=True)
        sent |= self.parameters.model_dump(exclude_unset=True) if self.parameters else {}
        if foreign := [name for name, value in sent.items() if value is not None and name not in _OWN_PARAMETERS[task]]:
            known = ", ".join(sorted(_OWN_PARAMETERS[task]))
            raise UserError(f"{task} has no parameter {shown(foreign[0])} (it has: {known})")
        return Parameters(**sent)


@router.post("/", response_model=Any, responses=errors(TextError), tags=["Hugging Face"])
async def only_model(body: TaskBody, request: Request, service: ServiceNeeded) -> Response:
    """Do the task of the only model that can, as the body says or the model is for."""
    return await _do_task(body, request, service, None, None)


@router.post("/models/{name}", response_model=Any, responses=errors(TextError), tags=["Hugging Face"])
async def named_model(body: TaskBody, request: Request, service: ServiceNeeded, name: str) -> Response:
    """Do the task of a model, as the body says or the model is for."""
    return await _do_task(body, request, service, name, None)


@router.post("/models/{name}/pipeline/{task}", response_model=Any, responses=errors(TextError), tags=["Hugging Face"])
async def named_task(body: TaskBody, request: Request, service: ServiceNeeded, name: str, task: str) -> Response:
    """Do a task with a model."""
    return await _do_task(body, request, service, name, task)


async def _do_task(body: TaskBody, request: Request, service: Service, name: str | None, task: str | None) -> Response:
    if task is not None and task not in _DO:
        raise UserError(f"there is no task {shown(task)}; tasks are {', '.join(_DO)}")
    task = task or _task_of_body(body) or _task_of_model(any_model(service, name).model, body)
    check, do = _DO[task]
    served = find(service, name, check)
    found = await do(served, body.inputs, body.given(task), request.headers.get("user-agent", ""))
    return Response(found, media_type="application/json")


def _task_of_body(body: TaskBody) -> str | None:
    """Return the task that a body is about, where it says so."""
    inputs = body.inputs[0] if isinstance(body.inputs, list) and body.inputs else body.inputs
    for kind, task in (
        (Similar, "sentence-similarity"), (Question, "question-answering"), (TextPair, "text-classification")
    ):  # fmt: skip
        if isinstance(inputs, kind):
            return task
    sent = body.model_fields_set | (body.parameters.model_fields_set if body.parameters else set())
    return (
        "zero-shot-classification" if "candidate_labels" in sent else "feature-extraction" if sent & _VECTORS else None
    )


def _task_of_model(model: Model, body: TaskBody) -> str:
    """Return the task that a model is for; of one that was not fine-tuned, filling masks where there are some."""
    for method, task in _TASKS.items():
        if method in model.methods:
            return task
    given = body.parameters or body
    texts = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    has_masks = all(isinstance(text, str) and MASK in text for text in texts)
    is_fill = "fill" in model.methods and (has_masks or given.top_k is not None or given.targets is not None)
    return "fill-mask" if is_fill else "feature-extraction"


def _texts_of(inputs: Any, task: str) -> list[str]:
    if not isinstance(inputs, str) and not (isinstance(inputs, list) and all(isinstance(one, str) for one in inputs)):
        raise UserError(f"{task} takes a text or a list of texts as `inputs`")
    return listed(inputs)


def _one_or_all(found: Sequence[Any], inputs: Any) -> bytes:
    """Return results as JSON: a list for a list of inputs, else the only one."""
    return joined_json(found) if isinstance(inputs, list) else as_json(found[0])


async def _text_classification(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    if isinstance(inputs, TextPair):
        texts, pairs = listed(inputs.text), [inputs.text_pair]
    else:
        texts, pairs = _texts_of(inputs, "text-classification"), None
    return joined_json(await classes_of(served, texts, pairs, given.function_to_apply, given.top_k))


async def _token_classification(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    texts, ignored = _texts_of(inputs, "token-classification"), set(given.ignore_labels or ())

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        return read_tagging(model, texts, None)

    def finish(found: Any) -> bytes:
        groups = [
            [{"entity_group": one["type"], "score": one["score"], "word": one["text"], "start": one["start"],
              "end": one["end"]} for one in some if one["type"] not in ignored]
            for some in found
        ]  # fmt: skip
        return _one_or_all(groups, inputs)

    return await served.run(read, finish, texts, how="windows")


async def _question_answering(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    asked = inputs if isinstance(inputs, list) else [inputs]
    if not asked or not all(isinstance(one, Question) for one in asked):
        raise UserError("question-answering takes {question, context} as `inputs`, or a list of them")
    questions, contexts = listed([one.question for one in asked]), [one.context for one in asked]
    top_k, own = given.top_k or 1, served.model.about.get("threshold")
    check_guesses(served, top_k * len(asked))
    # Without a threshold there always is an answer. A model that knows questions without one has a threshold of its
    # own, which one that is never reached turns off.
    threshold = (own or 0.0) if given.handle_impossible_answer else math.inf if own is not None else None

    def read(model: Model, questions: list[str], contexts: list[str]) -> Reading[Any]:
        return read_answering(model, questions, contexts, top_k, threshold)

    def finish(found: Any) -> bytes:
        answers = [
            [{"answer": one["text"], "score": one["score"], "start": one["start"] or 0, "end": one["end"] or 0}
             for one in some] or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]
            for some in found
        ]  # fmt: skip
        return _one_or_all([some if top_k > 1 else some[0] for some in answers], inputs)

    return await served.run(read, finish, questions, contexts, how="windows")


async def _fill_mask(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    texts, top_k = _texts_of(inputs, "fill-mask"), given.top_k or 5
    lengths = list(map(len, texts))  # as they came: each guess has its whole text in it

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        reading = read_fill(model, texts, top_k, given.targets, truncate=True)
        num_masks = masks_of(model, reading)
        check_guesses(served, top_k * sum(num_masks))
        check_numbers(served, top_k * sum(map(operator.mul, num_masks, lengths)) // 8)  # as many bytes
        return reading

    def finish(found: Any) -> bytes:
        filled = []
        for text, masks in zip(texts, found, strict=True):
            lists = [
                [{"score": one["score"], "token": one["id"], "token_str": one["token"],
                  "sequence": _filled(text, number, one["token"])} for one in guesses]
                for number, guesses in enumerate(masks)
            ]  # fmt: skip
            filled.append(lists[0] if len(lists) == 1 else lists)
        return _one_or_all(filled, inputs)

    return await served.run(read, finish, texts, how="cut")


def _filled(text: str, number: int, piece: str) -> str:
    """Return a text with a piece in place of one of its masks; one that continues a word is joined to it."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    return (before.rstrip() + piece[2:] if piece.startswith("##") else before + piece) + after


async def _feature_extraction(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    texts = _texts_of(inputs, "feature-extraction")
    return await vectors(served, texts, given, given.normalize, given.prompt_name, given.dimensions)


async def _sentence_similarity(served: Served, inputs: Any, given: Parameters, _: str) -> bytes:
    if not isinstance(inputs, Similar):
        raise UserError("sentence-similarity takes {source_sentence, sentences} as `inputs`")
    return as_json(await cosines(served, inputs.source_sentence, inputs.sentences, given, given.prompt_name))


async def _zero_shot(served: Served, inputs: Any, given: Parameters, agent: str) -> bytes:
    """Score classes that a model has not learnt, by whether a text entails a sentence with the class in it."""
    texts, classes = _texts_of(inputs, "zero-shot-classification"), given.candidate_labels or []
    classes = [one.strip() for one in classes.split(",")] if isinstance(classes, str) else classes
    template = given.hypothesis_template or "This example is {}."
    if not classes or template.count("{}") != 1:
        raise UserError("zero-shot-classification needs `candidate_labels`, and {} once in its `hypothesis_template`")
    if (count := len(texts) * len(classes)) > served.limits.inputs:
        raise UserError(
            f"{len(texts):,} texts with {len(classes):,} labels are {count:,} pairs; at most {served.limits.inputs:,} "
            "in a request (limit `inputs`)"
        )
    entails, contradicts = _entailment(served.model)
    pairs = list(itertools.product(texts, [template.replace("{}", one) for one in classes]))

    def finish(rows: Any) -> list[list[float]]:
        logits = np.stack(rows).astype(np.float64).reshape(len(texts), len(classes), -1)
        if given.multi_label or len(classes) == 1:
            found: list[list[float]] = softmax(logits[..., [contradicts, entails]])[..., 1].tolist()
        else:
            found = softmax(logits[..., entails]).tolist()
        return found

    firsts, seconds = ([pair[number] for pair in pairs] for number in (0, 1))
    results: list[Any] = []
    for text, scores in zip(texts, await served.run(read_rows, finish, firsts, seconds, how="cut"), strict=True):
        order = descending(scores)
        labels, sorted_scores = [classes[number] for number in order], [scores[number] for number in order]
        version = re.search(r"\bhf_hub/(\d+)\.(\d+)", agent)
        if version and tuple(map(int, version.groups())) < _LISTS_SINCE:
            results.append({"sequence": text, "labels": labels, "scores": sorted_scores})
        else:
            both = zip(labels, sorted_scores, strict=True)
            results.append([{"label": label, "score": score} for label, score in both])
    return _one_or_all(results, inputs)


def _entailment(model: Model) -> tuple[int, int]:
    """Return the numbers of an NLI model's classes "entailment" and "contradiction" (of two classes, the other one)."""
    model.check_can("classify")
    labels = [label.casefold() for label in model.task.labels]
    entails = [number for number, label in enumerate(labels) if label.startswith("entail")]
    contradicts = [number for number, label in enumerate(labels) if label.startswith("contra")]
    if len(entails) == 1 and len(labels) == 2:
        return entails[0], 1 - entails[0]
    if len(entails) != 1 or len(contradicts) != 1 or model.task.kind != "classify":
        raise UserError(
            "zero-shot-classification needs a model of natural language inference, with a class `entailment` and a "
            f"class `contradiction`; this model's classes are {shown_names(model.task.labels)}"
        )
    return entails[0], contradicts[0]


_DO: dict[str, tuple[Callable[[Model], Any], Callable[[Served, Any, Parameters, str], Awaitable[bytes]]]] = {
    "text-classification": (can("classify"), _text_classification),
    "token-classification": (can("tag"), _token_classification),
    "question-answering": (can("answer"), _question_answering),
    "fill-mask": (can("fill"), _fill_mask),
    "feature-extraction": (can("embed"), _feature_extraction),
    "sentence-similarity": (can("embed"), _sentence_similarity),
    "zero-shot-classification": (_entailment, _zero_shot),
}
