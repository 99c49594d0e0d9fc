"""Routes that the clients of other servers call, unchanged: their paths, their bodies, their answers, their errors.

| whose                                  | paths                                                                     |
|----------------------------------------|---------------------------------------------------------------------------|
| text-embeddings-inference (TEI)        | /embed, /embed_all, /predict, /rerank, /similarity, /tokenize, /info      |
| Cohere and vLLM                        | /v1/rerank, /v2/rerank; /rerank with `documents` in place of TEI's `texts` |
| Hugging Face's `InferenceClient`       | POST / and /models/NAME; these are in `pipelines.py`                      |
| OpenAI                                 | /v1/embeddings and /v1/models, which are in `routes.py`                   |

TEI and `InferenceClient` serve one model at one address and never name it. So each of their paths is also there below
/models/NAME, which is the address to give them where several models are served; without it a request goes to the only
model that can answer it, or among several to the only one that was made for it.

Texts that are too long are cut unless `truncate` is false, as by these servers. A parameter that we do not have is
refused by its name, for a client that sends it expects other numbers than ours.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from bertworks import __version__
from bertworks.errors import UserError, counted, shown, shown_names
from bertworks.inference.model import Model
from bertworks.inference.readings import (
    Reading,
    read_embed,
    read_examples,
    read_features,
    text_examples,
)
from bertworks.serving.batching import WORK
from bertworks.serving.http import JsonRoute
from bertworks.serving.routes import (
    ERRORS,
    FIRST,
    ErrorDetail,
    Lists,
    ServiceNeeded,
    Texts,
    array_json,
    as_json,
    check_numbers,
    first_numbers,
    joined_json,
    listed,
    read_tokens,
)
from bertworks.serving.service import How, Served, Service

router = APIRouter(route_class=JsonRoute)
_TASK_METHODS = {"classify", "tag", "answer", "choose"}
_NEGATIVE = re.compile(r"(?i)(no|not|non|none|neg\w*|false|0|(un|ir|dis|contra)\w+)([\W_].*)?")
Score = Callable[[Any], float]


class TextError(BaseModel):
    """The body of an error, in TEI's form."""

    error: str
    error_type: str
    status: int
    id: str | None = None


class MessageError(BaseModel):
    """The body of an error: in Cohere's form, and at `error` in OpenAI's and vLLM's."""

    message: str
    error: ErrorDetail


def errors(form: Any) -> dict[int | str, dict[str, Any]]:
    """Return what the document says of errors in a form."""
    return {status: one | {"model": form} for status, one in ERRORS.items()}


def _name_of(request: Request) -> str | None:
    name: str | None = request.path_params.get("name")
    return name


Name = Annotated[str | None, Depends(_name_of)]  # of the model, where the path has one


def _post(path: str, form: Any = TextError, **options: Any) -> Callable[[Any], Any]:
    """Register a route of TEI at its path, and below each model's own."""

    def register(route: Any) -> Any:
        router.post(f"/models/{{name}}{path}", include_in_schema=False)(route)
        return router.post(path, responses=errors(form), tags=["TEI"], **options)(route)

    return register


class Given(BaseModel):
    """What the bodies here have in common: a field that we do not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Cut(Given):
    """How texts are read; null is as if the field were not there."""

    truncate: bool | None = Field(default=None, description="false: refuse texts that are too long; else cut them.")
    truncation_direction: Literal["Right", "right"] | None = Field(default=None, description="They are cut at the end.")

    @property
    def is_cut(self) -> bool:
        """Whether texts that are too long are cut."""
        return self.truncate is not False

    @property
    def how(self) -> How:
        """How texts that are too long are read."""
        return "cut" if self.is_cut else "whole"


def find(
    service: Service, name: str | None, check: Callable[[Model], Any], is_meant: Callable[[Model], bool] | None = None
) -> Served:
    """Return the model that a request is for.

    Args:
        service: the models.
        name: as the request says; None: the only one that can, or of several the only one that is made for it.
        check: raises UserError for a model that cannot answer.
        is_meant: says of a model whether it is made for such requests; None: if it has no task of its own.
    """
    if name is not None or len(service.models) == 1 or not service.is_ready:
        served = service.find(name)
        check(served.model)
        return served
    able = []
    for served in service.models.values():
        try:
            check(served.model)
        except UserError:
            continue
        able.append(served)
    if len(able) > 1:
        able = [one for one in able if (is_meant or _has_no_task)(one.model)] or able
    if len(able) == 1:
        return able[0]
    what = f"{counted(len(able), 'served model')} can do this" if able else "no served model can do this"
    names = shown_names([one.name for one in able] or service.models)
    raise UserError(f"{what}; say which by `model` where there is such a field, else by the path /models/NAME: {names}")


def _has_no_task(model: Model) -> bool:
    return not _TASK_METHODS & set(model.methods)


def any_model(service: Service, name: str | None) -> Served:
    """Return the model that a request names, or the only one."""
    return find(service, name, lambda _: None, lambda _: False)


def can(method: str) -> Callable[[Model], None]:
    """Return the check of a model for a method."""
    return lambda model: model.check_can(method)


def _json(body: bytes, **headers: str) -> Response:
    return Response(body, media_type="application/json", headers=headers)


# Vectors: TEI's /embed, /embed_all and /similarity.


class EmbedBody(Cut):
    """TEI's request for vectors."""

    inputs: Texts | Annotated[list[int], FIRST] | Annotated[list[Annotated[list[int], FIRST]], FIRST] = Field(
        description="A text, a list of texts, or one or several lists of the model's token ids."
    )
    normalize: bool | None = Field(default=True, description="Scale to length 1; null: as the model's folder says.")
    prompt_name: str | None = Field(default=None, description="The name of one of the folder's prompts.")
    dimensions: int | None = Field(default=None, ge=1, description="Keep only so many numbers, scaled to length 1.")


@_post("/embed", response_model=list[list[float]])
async def embed(body: EmbedBody, service: ServiceNeeded, name: Name) -> Response:
    """Compute a vector for each text."""
    served = find(service, name, can("embed"))
    return _json(await vectors(served, body.inputs, body, body.normalize, body.prompt_name, body.dimensions))


async def vectors(
    served: Served, given: Any, cut: Cut, normalize: bool | None, prompt: str | None, dimensions: int | None
) -> bytes:
    """Return the vectors of texts or of lists of token ids, as JSON."""
    if isinstance(given, str) or (given and isinstance(given[0], str)):
        inputs: list[Any] = listed(given)
    else:
        inputs = [given] if given and isinstance(given[0], int) else list(given)
        if not inputs or not all(inputs):
            raise UserError("there is nothing to embed: `inputs` is empty, or has an empty list")

    def read(model: Model, inputs: list[Any]) -> Reading[Any]:
        texts = inputs if isinstance(inputs[0], str) else [served.encoded(ids) for ids in inputs]
        return read_embed(model, texts, normalize=normalize, prompt=prompt, truncate=cut.is_cut)

    def finish(vectors: Any) -> bytes:
        return array_json(first_numbers(vectors, dimensions))

    return await served.run(read, finish, inputs, how=cut.how)


class EmbedAllBody(Cut):
    """TEI's request for the vectors of all tokens."""

    inputs: Texts
    prompt_name: str | None = None


@_post("/embed_all", response_model=list[list[list[float]]])
async def embed_all(body: EmbedAllBody, service: ServiceNeeded, name: Name) -> Response:
    """Return the last layer's vector of every token, [CLS] and [SEP] among them."""
    served, texts = find(service, name, can("features")), listed(body.inputs)
    before = served.model.pooling.text_of(body.prompt_name)

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        reading = read_features(model, [before + text for text in texts], [-1], truncate=body.is_cut)
        check_numbers(served, sum(reading.lengths) * model.width)
        return reading

    def finish(found: Any) -> bytes:
        return b"[" + b",".join(array_json(one.hidden[0]) for one in found) + b"]"

    return _json(await served.run(read, finish, texts, how=body.how))


class Similar(Given):
    """A sentence, and those that it is compared with."""

    source_sentence: str
    sentences: Annotated[list[str], FIRST]


class SimilarOptions(Cut):
    """How sentences are read."""

    prompt_name: str | None = None


class SimilarityBody(Given):
    """TEI's request to compare sentences."""

    inputs: Similar
    parameters: SimilarOptions | None = None


@_post("/similarity", response_model=list[float])
async def similarity(body: SimilarityBody, service: ServiceNeeded, name: Name) -> Response:
    """Compute the cosine of a sentence's vector with the vector of each other."""
    options = body.parameters or SimilarOptions()
    served, given = find(service, name, can("embed")), body.inputs
    found = await cosines(served, given.source_sentence, given.sentences, options, options.prompt_name)
    return _json(as_json(found))


async def cosines(served: Served, text: str, others: Sequence[str], cut: Cut, prompt: str | None = None) -> list[float]:
    """Return the cosine of a text's vector with that of each other text."""
    listed(text)
    if not others:
        raise UserError("there is nothing to compare with: the list of texts is empty")

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        return read_embed(model, texts, normalize=True, prompt=prompt, truncate=cut.is_cut)

    def finish(vectors: Any) -> list[float]:
        found: list[float] = (vectors[1:] @ vectors[0]).tolist()
        return found

    return await served.run(read, finish, [text, *others], how=cut.how)


# Classes: TEI's /predict.


class PredictBody(Cut):
    """TEI's request for classes; what is longer than the model reads is cut as it was in fine-tuning."""

    inputs: Texts | Lists = Field(
        description="A text, a pair [first, second], or a batch of texts [[text], ...] or pairs [[first, second], ...]."
    )
    raw_scores: bool | None = Field(default=None, description="Scores as the model computes them.")


class ClassScore(BaseModel):
    """A class and its score."""

    label: str
    score: float


@_post("/predict", response_model=list[ClassScore] | list[list[ClassScore]])
async def predict(body: PredictBody, service: ServiceNeeded, name: Name) -> Response:
    """Predict the scores of all classes of a text, a pair or a batch, the highest first."""
    served, given = find(service, name, can("classify")), body.inputs
    is_batch = not isinstance(given, str) and bool(given) and not isinstance(given[0], str)
    lists: list[Any] = list(given) if is_batch else [[given] if isinstance(given, str) else given]
    if not lists or any(len(one) != len(lists[0]) or len(one) not in (1, 2) for one in lists):
        raise UserError("`inputs` is a text, a pair of texts, or a list of lists that have all one text or all two")
    function = "none" if body.raw_scores else "sigmoid" if served.model.task.kind == "regress" else None
    firsts = listed([one[0] for one in lists])
    seconds = [one[1] for one in lists] if len(lists[0]) == 2 else None
    found = await classes_of(served, firsts, seconds, function)
    return _json(joined_json(found) if is_batch else as_json(found[0]))


def read_rows(model: Model, firsts: Sequence[str], seconds: Sequence[str] | None) -> Reading[Any]:
    """Read texts or pairs to classify; the result has the numbers that the head computes of each."""
    reading: Reading[Any] = read_examples(model, *text_examples(model, firsts, seconds))
    return reading._replace(answer=list)


async def classes_of(
    served: Served, firsts: Sequence[str], seconds: Sequence[str] | None, function: str | None, most: int | None = None
) -> list[list[dict[str, Any]]]:
    """Return the classes of each text or pair with their scores, the highest first.

    Args:
        served: a model that classifies.
        firsts: the texts, or the first ones of pairs.
        seconds: the second ones.
        function: what makes scores of the head's numbers: softmax, sigmoid or none; None: as the model was trained.
        most: how many classes are given; None: all.
    """
    task = served.model.task
    function = function or {"classify": "softmax", "multilabel": "sigmoid"}.get(task.kind, "none")
    labels = task.labels or ("score",)

    def finish(rows: Any) -> list[list[dict[str, Any]]]:
        found = []
        for row in rows:
            scores = row.astype(np.float64)
            scores = softmax(scores) if function == "softmax" else _sigmoid(scores) if function == "sigmoid" else scores
            order = np.argsort(-scores, kind="stable")[:most]
            found.append([{"label": labels[number], "score": float(scores[number])} for number in order])
        return found

    return await served.run(read_rows, finish, firsts, seconds, how="cut")


def softmax(row: Any) -> Any:
    """Return the shares of numbers along the last axis."""
    shares = np.exp(row - row.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _sigmoid(row: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * row))  # which does not overflow


# Rerank: TEI's, Cohere's and vLLM's.


Documents = Annotated[
    list[str | dict[str, Any]],
    FIRST,
    Field(description="Texts, or objects with a field `text`, or with those of `rank_fields`."),
]


class RankBody(Given):
    """What requests to order documents have in common."""

    model: str | None = Field(default=None, description="The name of a served model; needed if several can do it.")
    query: str
    top_n: int | None = Field(default=None, ge=0, description="Only so many of the best; 0: all.")
    return_documents: bool | None = Field(default=None, description="Have the documents in the answer.")
    rank_fields: list[str] | None = Field(
        default=None, max_length=100, description="The fields of objects that are read, in order."
    )
    max_tokens_per_doc: int | None = Field(default=None, description="Not used: texts are cut as the model reads them.")
    max_chunks_per_doc: int | None = Field(default=None, description="Not used, as documents are read in one piece.")
    priority: int | None = Field(default=None, description="Not used.")
    user: str | None = Field(default=None, description="Not used.")


class DocumentsBody(RankBody):
    """Cohere's request to order documents."""

    documents: Documents


class RerankBody(RankBody, Cut):
    """TEI's request to order `texts`, or vLLM's to order `documents`."""

    documents: Documents | None = None
    texts: Annotated[list[str], FIRST] | None = None
    raw_scores: bool | None = Field(default=None, description="Scores as the model computes them.")
    return_text: bool | None = Field(default=None, description="Have the texts in the answer.")


class Ranked(BaseModel):
    """A text by its number in the request."""

    index: int
    score: float
    text: str | None = None


class RankedDocument(BaseModel):
    """A document by its number in the request."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class DocumentsAnswer(BaseModel):
    """Documents, the most relevant first; `scores` says what a score is."""

    id: str
    model: str
    results: list[RankedDocument]
    scores: str
    usage: dict[str, int]


@_post("/rerank", TextError | MessageError, response_model=list[Ranked] | DocumentsAnswer)
async def rerank(body: RerankBody, service: ServiceNeeded, name: Name) -> Response:
    """Order texts by how well they answer a query; the header X-Scores says what a score is."""
    if (body.texts is None) == (body.documents is None):
        raise UserError("give what is to be ordered, either as `texts` (TEI) or as `documents` (Cohere, vLLM)")
    if body.texts is None:
        if work := WORK.get():
            work.form = "message"
        return await _rank_documents(service, body, body.model or name, returns_documents=True)
    served, texts = find(service, body.model or name, _scorer, _is_scorer), body.texts
    scores, what = await _relevance(served, body.query, texts, body, is_raw=body.raw_scores is True)
    ranked = [{"index": number, "score": scores[number]} | ({"text": texts[number]} if body.return_text else {})
              for number in descending(scores)[: body.top_n or None]]  # fmt: skip
    return _json(as_json(ranked), **{"x-scores": _ascii(what)})


@router.post("/v1/rerank", response_model=DocumentsAnswer, responses=errors(MessageError), tags=["Cohere, vLLM"])
@router.post("/v2/rerank", response_model=DocumentsAnswer, responses=errors(MessageError), tags=["Cohere, vLLM"])
async def rerank_documents(body: DocumentsBody, service: ServiceNeeded) -> Response:
    """Order documents by how well they answer a query."""
    return await _rank_documents(service, body, body.model, returns_documents=False)


async def _rank_documents(
    service: Service, body: DocumentsBody | RerankBody, name: str | None, *, returns_documents: bool
) -> Response:
    served, documents = find(service, name, _scorer, _is_scorer), body.documents or []
    texts = [_text_of(document, number, body.rank_fields) for number, document in enumerate(documents)]
    is_raw = isinstance(body, RerankBody) and body.raw_scores is True
    scores, what = await _relevance(served, body.query, texts, body if isinstance(body, Cut) else Cut(), is_raw=is_raw)
    results: list[dict[str, Any]] = []
    for number in descending(scores)[: body.top_n or None]:
        result: dict[str, Any] = {"index": number, "relevance_score": scores[number]}
        if returns_documents if body.return_documents is None else body.return_documents:
            document = documents[number]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    work = WORK.get()
    answer = {
        "id": work.id if work else "", "model": served.name, "results": results, "scores": what,
        "usage": {"total_tokens": work.tokens if work else 0},
    }  # fmt: skip
    return _json(as_json(answer), **{"x-scores": _ascii(what)})


def _text_of(document: str | dict[str, Any], number: int, fields: list[str] | None) -> str:
    if isinstance(document, str):
        return document
    names = list(dict.fromkeys(fields or ["text"]))
    found = [document.get(name) for name in names]
    if not all(isinstance(one, str) for one in found):
        raise UserError(
            f"document {number} has no text at {shown_names(names)}; say by `rank_fields` which of its fields are read"
        )
    return "\n".join(str(one) for one in found)


def descending(scores: Sequence[float]) -> list[int]:
    """Return the numbers of scores, that of the highest first; equal ones keep their order."""
    return sorted(range(len(scores)), key=lambda number: -scores[number])


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _scorer(model: Model) -> tuple[str, Score]:
    """Return what a model of pairs scores, and the number that is its score; "" for the cosine of vectors."""
    if "classify" not in model.methods:
        if not _has_no_task(model):
            raise UserError(f"this {model.title} does not compare texts; rerank with a model of pairs or of vectors")
        model.check_can("embed")
        return "", float
    task = model.task
    is_pairs = task.is_pair or not model.names_task
    if is_pairs and task.kind == "regress":
        return "the model's score", lambda row: float(row[0])
    if is_pairs and task.kind == "classify" and len(task.labels) == 2:
        relevant = _relevant(task.labels, task.positive)
        return shown(task.labels[relevant]), lambda row: float(row[relevant]) - float(row[1 - relevant])
    raise UserError(
        f"this model, {task.kind} with {counted(len(task.labels), 'label')} of {'pairs' if is_pairs else 'texts'}, "
        "gives no score of how well two texts belong together; rerank with a regression or two classes of pairs, or "
        "with a model of vectors"
    )


def _is_scorer(model: Model) -> bool:
    return bool(_scorer(model)[0])


def _relevant(labels: Sequence[str], positive: str) -> int:
    """Return which of two classes says that texts belong together: the task's positive one, or the one without a no."""
    if positive in labels:
        return labels.index(positive)
    is_negative = [bool(_NEGATIVE.fullmatch(label)) for label in labels]
    return 0 if is_negative == [False, True] else 1


async def _relevance(
    served: Served, query: str, texts: Sequence[str], cut: Cut, *, is_raw: bool
) -> tuple[list[float], str]:
    """Return the score of each text for a query, and what it is."""
    listed(query)
    if not texts:
        raise UserError("there is nothing to order: the list of texts is empty")
    what, score = _scorer(served.model)
    if not what:
        return await cosines(served, query, texts, cut), "cosine of embeddings"

    def read(model: Model, texts: list[str], queries: list[str]) -> Reading[Any]:
        return read_rows(model, queries, texts)

    def finish(rows: Any) -> list[float]:
        found = [score(row) for row in rows]
        return found if is_raw else [float(_sigmoid(one)) for one in found]

    found = await served.run(read, finish, texts, [query] * len(texts), how="cut")
    if served.model.task.kind == "regress":
        return found, what if is_raw else f"sigmoid of {what}"
    return found, f"log odds of {what}" if is_raw else f"probability of {what}"


# Tokens and facts: TEI's /tokenize and /info.


class TokensBody(Given):
    """TEI's request for tokens."""

    inputs: Texts
    add_special_tokens: bool | None = True
    prompt_name: str | None = None


class Token(BaseModel):
    """A piece: text[start:stop] in characters; a special token is nowhere in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@_post("/tokenize", response_model=list[list[Token]])
async def tokenize(body: TokensBody, service: ServiceNeeded, name: Name) -> Response:
    """Split texts into the pieces that a model reads."""
    served = any_model(service, name)
    before = served.model.pooling.text_of(body.prompt_name)
    texts = [before + text for text in ([body.inputs] if isinstance(body.inputs, str) else body.inputs)]

    def finish(encodings: Any) -> bytes:
        return joined_json([
            [token for token in _tokens(text, one) if body.add_special_tokens is not False or not token["special"]]
            for text, one in zip(texts, encodings, strict=True)
        ])  # fmt: skip

    return _json(await served.run(partial(read_tokens, served), finish, texts, how="windows"))


def _tokens(text: str, encoding: Any) -> list[dict[str, Any]]:
    columns = (encoding.ids, encoding.tokens, encoding.offsets, encoding.word_ids)
    return [
        {"id": id, "text": piece, "special": True, "start": None, "stop": None} if word is None
        else {"id": id, "text": text[start:stop], "special": False, "start": start, "stop": stop}
        for id, piece, (start, stop), word in zip(*columns, strict=True)
    ]  # fmt: skip


@router.get("/info", response_model=dict[str, Any], responses=errors(TextError), tags=["TEI"])
@router.get("/models/{name}/info", include_in_schema=False)
async def info(service: ServiceNeeded, name: Name) -> Response:
    """Say what the model is, in TEI's words."""
    served = any_model(service, name)
    model, limits = served.model, served.limits
    kind: dict[str, Any] = {"embedding": {"pooling": "+".join(model.pooling.modes)}}
    if "classify" in model.methods:
        ids = {label: number for number, label in enumerate(model.task.labels)}
        is_reranker = model.task.kind == "regress" and (model.task.is_pair or not model.names_task)
        labels = {"id2label": {str(number): label for label, number in ids.items()}, "label2id": ids}
        kind = {"reranker" if is_reranker else "classifier": labels}
    facts = {
        "model_id": served.name, "model_sha": None, "model_dtype": served.about["dtype"], "model_type": kind,
        "max_concurrent_requests": limits.queue, "max_input_length": served.about["max_length"],
        "max_batch_tokens": limits.tokens, "max_batch_requests": None, "max_client_batch_size": limits.inputs,
        "auto_truncate": True, "tokenization_workers": 2, "version": __version__, "sha": None, "docker_label": None,
    }  # fmt: skip
    return _json(as_json(facts))
