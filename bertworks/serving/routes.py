"""The server's own routes: one for each thing that a model can do, with typed bodies and answers.

Each takes a text or a list of texts as `input`, and answers with a list, `results`, that has a result for each. `model`
says which of the served models is meant; it may be left out where only one can do it. Results are those of the methods
of `Model`, to the last digit that float32 has.
"""

import base64
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pydantic_core
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, FailFast, Field

from bertworks.errors import UserError
from bertworks.inference.model import Model
from bertworks.inference.readings import (
    Reading,
    read_answering,
    read_attention,
    read_embed,
    read_features,
    read_fill,
    read_nsp,
    read_tagging,
)
from bertworks.serving.batching import WORK
from bertworks.serving.http import JsonRoute
from bertworks.serving.service import How, Served, Service, read_choose, read_classify
from bertworks.text.tokenizer import Encoding
from bertworks.text.vocabulary import MASK

router = APIRouter(route_class=JsonRoute)
_STATUSES = {
    400: "not JSON, or a field is wrong", 401: "a key is needed", 404: "no such model is served",
    413: "the body is too large", 415: "not JSON, or compressed", 422: "the model cannot do it, or a limit",
    429: "the queue is full; see Retry-After", 500: "the server has failed", 503: "the server is not ready",
    504: "out of time",
}  # fmt: skip


def service_of(request: Request) -> Service:
    """Return the models of the application that a request has come to."""
    service: Service = request.app.state.service
    return service


ServiceNeeded = Annotated[Service, Depends(service_of)]


class _FailFast(FailFast):
    """Report only the first wrong item of a list, which may have a million; can be part of a union."""

    __hash__ = object.__hash__


_NUMBERS_OF_A_GUESS = 16  # what a guess takes in memory
FIRST = _FailFast()
Texts = str | Annotated[list[str], FIRST]
Lists = Annotated[list[Annotated[list[str], FIRST]], FIRST]
FEW = Field(max_length=1_000)
Word = Annotated[str, Field(max_length=200)]  # no word of more letters is in pieces
TopK = Annotated[int, Field(ge=1, le=1_000)]


class Body(BaseModel):
    """What all requests may say."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    model: str | None = Field(default=None, description="The name of a served model; needed if several can do it.")


class TextBody(Body):
    """A request about texts."""

    input: Texts = Field(description="A text, or a list of texts.")
    truncate: bool = Field(default=False, description="Cut texts that are too long instead of refusing them.")

    @property
    def how(self) -> How:
        """How texts that are too long are read."""
        return "cut" if self.truncate else "whole"


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    status: int
    id: str | None = None


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what} for status, what in _STATUSES.items()
}


class Usage(BaseModel):
    """What an answer has cost."""

    tokens: int


class Answer(BaseModel):
    """An answer with a result for each input."""

    model: str
    usage: Usage


def listed(given: str | Sequence[str]) -> list[str]:
    """Return a text or a list of texts as a list, in which none is empty."""
    texts = [given] if isinstance(given, str) else list(given)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise UserError(f"text {number} of {len(texts)} is empty; give one with a word in it")
    return texts


def paired(pairs: str | Sequence[str] | None, count: int, field: str = "pair") -> list[str] | None:
    """Return second texts as a list: one for all first ones, or one for each."""
    if pairs is None:
        return None
    seconds = [pairs] * count if isinstance(pairs, str) else list(pairs)
    if len(seconds) != count:
        raise UserError(
            f"`input` has {count:,} texts and `{field}` {len(seconds):,}; give one for each, or one for all"
        )
    return seconds


def as_json(value: Any) -> bytes:
    """Return a value as JSON; UserError where it has numbers that are not finite."""
    found: bytes = pydantic_core.to_json(value, inf_nan_mode="constants")
    return found


def joined_json(values: Sequence[Any]) -> bytes:
    """Return a list as JSON, a value at a time: the event loop gets its turn between them."""
    return b"[" + b",".join(map(as_json, values)) + b"]"


def answered(served: Served, results: bytes) -> Response:
    """Return the answer of a route: the results, which are JSON already, the model's name and the tokens."""
    work = WORK.get()
    usage = as_json({"tokens": work.tokens if work else 0})
    parts = [b'{"model":', as_json(served.name), b',"results":', results, b',"usage":', usage, b"}"]
    return Response(b"".join(parts), media_type="application/json")


class Guess(BaseModel):
    """A guess at a mask."""

    token: str
    id: int
    score: float


class FillBody(TextBody):
    """Texts with [MASK], which is a special token here and nowhere else."""

    top_k: TopK = Field(default=5, description="Guesses for each mask.")
    targets: Word | Annotated[list[Word], FIRST, FEW] | None = Field(
        default=None, description="Only these words, each a piece of the vocabulary."
    )


class FillAnswer(Answer):
    """For each text a list of its masks, and for each of these a list of guesses."""

    results: list[list[list[Guess]]]


@router.post("/v1/fill", response_model=FillAnswer, responses=ERRORS, tags=["models"])
async def fill(body: FillBody, service: ServiceNeeded) -> Response:
    """Predict the word at each [MASK] of texts."""
    served, texts = service.find(body.model, "fill"), listed(body.input)

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        reading = read_fill(model, texts, body.top_k, body.targets, truncate=body.truncate)
        check_guesses(served, body.top_k * sum(masks_of(model, reading)))
        return reading

    return answered(served, await served.run(read, joined_json, texts, how=body.how))


class ClassifyBody(Body):
    """Texts, or pairs of them; what is longer than the model reads is cut as it was in fine-tuning."""

    input: Texts = Field(description="A text, or a list of texts.")
    pair: Texts | None = Field(default=None, description="Second texts, for a model of pairs: one for all, or each.")


class ClassifyAnswer(Answer):
    """For each text {"label", "score", "scores"}; {"score"} of a regression; {"labels", "scores"} of several labels."""

    results: list[dict[str, Any]]


@router.post("/v1/classify", response_model=ClassifyAnswer, responses=ERRORS, tags=["models"])
async def classify(body: ClassifyBody, service: ServiceNeeded) -> Response:
    """Predict the class, the score or the labels of texts or pairs of texts."""
    served, texts = service.find(body.model, "classify"), listed(body.input)
    pairs = paired(body.pair, len(texts))
    return answered(served, await served.run(read_classify, joined_json, texts, pairs, how="cut"))


class TagBody(Body):
    """Texts of any length."""

    input: Texts = Field(description="A text, or a list of texts.")
    units: Literal["word", "character"] | None = Field(default=None, description="What is tagged; as in training.")


class Entity(BaseModel):
    """A part of a text; `text[start:end]` in characters."""

    type: str
    text: str
    start: int
    end: int
    score: float


class TagAnswer(Answer):
    """For each text its entities."""

    results: list[list[Entity]]


@router.post("/v1/tag", response_model=TagAnswer, responses=ERRORS, tags=["models"])
async def tag(body: TagBody, service: ServiceNeeded) -> Response:
    """Find the entities in texts of any length."""
    served, texts = service.find(body.model, "tag"), listed(body.input)

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        return read_tagging(model, texts, body.units)

    return answered(served, await served.run(read, joined_json, texts, how="windows"))


class AnswerBody(Body):
    """Questions, and the texts to look in, of any length; either may be one for all of the other."""

    question: Texts
    context: Texts
    top_k: TopK = Field(default=1, description="Answers to each question.")
    threshold: float | None = Field(
        default=None, description="Say that there is no answer where that scores more than so much above the best one."
    )


class Found(BaseModel):
    """An answer: `context[start:end]`; where there is none, the text is empty and there is no start."""

    text: str
    start: int | None
    end: int | None
    score: float


class AnswerAnswer(Answer):
    """For each question its answers, the best first."""

    results: list[list[Found]]


@router.post("/v1/answer", response_model=AnswerAnswer, responses=ERRORS, tags=["models"])
async def answer(body: AnswerBody, service: ServiceNeeded) -> Response:
    """Find the answers to questions in texts of any length."""
    served = service.find(body.model, "answer")
    questions, contexts = listed(body.question), [body.context] if isinstance(body.context, str) else body.context
    if len(questions) != len(contexts) and 1 not in (len(questions), len(contexts)):
        raise UserError(
            f"{len(questions):,} questions and {len(contexts):,} contexts; give one for each, or one for all"
        )
    count = max(len(questions), len(contexts)) if contexts else 0
    questions, contexts = ([*given] * (count if len(given) == 1 else 1) for given in (questions, contexts))

    check_guesses(served, body.top_k * len(questions))

    def read(model: Model, questions: list[str], contexts: list[str]) -> Reading[Any]:
        return read_answering(model, questions, contexts, body.top_k, body.threshold)

    return answered(served, await served.run(read, joined_json, questions, contexts, how="windows"))


class ChooseBody(Body):
    """A context and its possible endings; or a list of contexts, with a list of endings for each."""

    context: Texts
    endings: Lists | Annotated[list[str], FIRST]


class Choice(BaseModel):
    """The number of the most likely ending, from 0, and how likely each is."""

    choice: int
    score: float
    scores: list[float]


class ChooseAnswer(Answer):
    """For each context a choice."""

    results: list[Choice]


@router.post("/v1/choose", response_model=ChooseAnswer, responses=ERRORS, tags=["models"])
async def choose(body: ChooseBody, service: ServiceNeeded) -> Response:
    """Choose the ending that best fits each context."""
    served, contexts = service.find(body.model, "choose"), listed(body.context)
    endings: list[Any] = [body.endings] if isinstance(body.context, str) else body.endings
    if any(isinstance(one, str) or any(not isinstance(text, str) for text in one) for one in endings):
        raise UserError("give one context a list of endings, and a list of contexts a list of such lists")
    flat = [text for some in endings for text in some]

    def read(model: Model, contexts: list[str], flat: list[str]) -> Reading[Any]:
        rest = iter(flat)
        return read_choose(model, contexts, [list(itertools.islice(rest, len(some))) for some in endings])

    return answered(served, await served.run(read, joined_json, contexts, flat, how="cut"))


class NspBody(TextBody):
    """Texts, and the texts that may follow them: one for all, or one for each."""

    following: Texts


class Next(BaseModel):
    """How likely the second text follows the first, and how likely it is from elsewhere."""

    is_next: float
    is_random: float


class NspAnswer(Answer):
    """For each pair its probabilities."""

    results: list[Next]


@router.post("/v1/nsp", response_model=NspAnswer, responses=ERRORS, tags=["models"])
async def nsp(body: NspBody, service: ServiceNeeded) -> Response:
    """Predict how likely one text follows another."""
    served, texts, following = service.find(body.model, "nsp"), listed(body.input), listed(body.following)
    texts = texts * len(following) if len(texts) == 1 else texts
    seconds = paired(following if len(following) > 1 else following[0], len(texts), "following") if following else []

    def finish(shares: list[float]) -> bytes:
        return joined_json([{"is_next": share, "is_random": 1 - share} for share in shares])

    def read(model: Model, texts: list[str], seconds: list[str]) -> Reading[Any]:
        return read_nsp(model, texts, seconds, truncate=body.truncate)

    return answered(served, await served.run(read, finish, texts, seconds or [], how=body.how))


class FeaturesBody(TextBody):
    """Texts, and the layers whose output is asked for."""

    layers: Annotated[list[int], FIRST] | Literal["all"] = Field(
        default=[-1], description="Numbers of layers: 0 the embeddings, -1 the last; or all."
    )


class TokenFeatures(BaseModel):
    """The tokens of a text, where each is in it, and [layers, tokens, width] numbers."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    layers: list[int]
    hidden: list[list[list[float]]]


class FeaturesAnswer(Answer):
    """For each text its features."""

    results: list[TokenFeatures]


@router.post("/v1/features", response_model=FeaturesAnswer, responses=ERRORS, tags=["models"])
async def features(body: FeaturesBody, service: ServiceNeeded) -> Response:
    """Return the hidden states of every token of texts."""
    served, texts = service.find(body.model, "features"), listed(body.input)
    layers = served.model.check_layers(body.layers)

    def read(model: Model, texts: list[str]) -> Reading[Any]:
        reading = read_features(model, texts, layers, truncate=body.truncate)
        check_numbers(served, sum(reading.lengths) * len(layers) * model.width)
        return reading

    def finish(found: Any) -> bytes:
        return b"[" + b",".join(
            _with_tokens(one.encoding, b'"layers":' + as_json(layers) + b',"hidden":' + array_json(one.hidden))
            for one in found
        ) + b"]"  # fmt: skip

    return answered(served, await served.run(read, finish, texts, how=body.how))


class AttendBody(TextBody):
    """Texts, or pairs of them, and the layers whose attention is asked for."""

    pair: Texts | None = Field(default=None, description="Second texts: one for all, or one for each.")
    layers: Annotated[list[int], FIRST] | Literal["all"] = Field(
        default="all", description="Numbers of layers from 1, -1 the last; or all."
    )


class Attended(BaseModel):
    """The tokens of a text or a pair, their segments, and [layers, heads, from token, to token] weights."""

    tokens: list[str]
    segment_ids: list[int]
    offsets: list[tuple[int, int]]
    layers: list[int]
    weights: list[list[list[list[float]]]]


class AttendAnswer(Answer):
    """For each text its attention."""

    results: list[Attended]


@router.post("/v1/attend", response_model=AttendAnswer, responses=ERRORS, tags=["models"])
async def attend(body: AttendBody, service: ServiceNeeded) -> Response:
    """Return what each token attends to."""
    served, texts = service.find(body.model, "attention"), listed(body.input)
    pairs = paired(body.pair, len(texts))
    num_layers = served.model.num_layers
    layers = served.model.check_layers(body.layers if body.layers != "all" else list(range(1, num_layers + 1)))
    if 0 in layers:
        raise UserError(f"layer 0, the embeddings, has no attention; layers are 1 to {num_layers}, or -1 back")

    def read(model: Model, texts: list[str], pairs: list[str] | None) -> Reading[Any]:
        reading = read_attention(model, texts, pairs, truncate=body.truncate)
        num_heads = model.net.config.num_attention_heads
        check_numbers(served, sum(length * length for length in reading.lengths) * len(layers) * num_heads)
        return reading

    def finish(found: Any) -> bytes:
        chosen = [layer - 1 for layer in layers]
        return b"[" + b",".join(
            _with_tokens(
                encoding,
                b'"segment_ids":' + as_json(encoding.segment_ids) + b',"layers":' + as_json(layers)
                + b',"weights":' + array_json(weights[chosen]),
            )
            for encoding, weights in found
        ) + b"]"  # fmt: skip

    return answered(served, await served.run(read, finish, texts, pairs, how=body.how))


def check_numbers(served: Served, count: int) -> None:
    """Refuse an answer with more numbers than the server gives."""
    if count > served.limits.numbers:
        raise UserError(
            f"the answer would have {count:,} numbers; at most {served.limits.numbers:,} (limit `numbers`): ask for "
            "fewer layers or guesses, or send shorter or fewer texts"
        )


def masks_of(model: Model, reading: Reading[Any]) -> list[int]:
    """Return how many masks each text has."""
    mask_id = model.tokenizer.id_of(MASK)
    return [ids.count(mask_id) for ids, *_ in reading.units]


def check_guesses(served: Served, count: int) -> None:
    """Refuse an answer with more guesses than the server gives."""
    if _NUMBERS_OF_A_GUESS * count > served.limits.numbers:
        raise UserError(
            f"the answer would have {count:,} guesses; at most {served.limits.numbers // _NUMBERS_OF_A_GUESS:,} "
            f"(limit `numbers`, {_NUMBERS_OF_A_GUESS} for each): lower top_k, or send fewer texts"
        )


def _with_tokens(encoding: Encoding, rest: bytes) -> bytes:
    return b'{"tokens":' + as_json(encoding.tokens) + b',"offsets":' + as_json(encoding.offsets) + b"," + rest + b"}"


def array_json(array: Any) -> bytes:
    """Return an array as nested lists, a row of a matrix at a time."""
    if array.ndim == 1:
        return as_json(array.tolist())
    return b"[" + b",".join(map(array_json, array)) + b"]"


class TokenizeBody(Body):
    """Texts, or pairs of them, of any length up to the server's limits."""

    input: Texts = Field(description="A text, or a list of texts.")
    pair: Texts | None = Field(default=None, description="Second texts: one for all, or one for each.")


class Tokens(BaseModel):
    """The pieces of a text, their ids, where each is in the text, its segment and the number of its word."""

    tokens: list[str]
    ids: list[int]
    offsets: list[tuple[int, int]]
    segment_ids: list[int]
    word_ids: list[int | None]


class TokenizeAnswer(Answer):
    """For each text its tokens."""

    results: list[Tokens]


@router.post("/v1/tokenize", response_model=TokenizeAnswer, responses=ERRORS, tags=["models"])
async def tokenize(body: TokenizeBody, service: ServiceNeeded) -> Response:
    """Split texts into the pieces that a model reads."""
    served = service.find(body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input  # an empty one has its special tokens
    pairs = paired(body.pair, len(texts))

    def finish(encodings: Any) -> bytes:
        return joined_json([
            {"tokens": one.tokens, "ids": one.ids, "offsets": one.offsets, "segment_ids": one.segment_ids,
             "word_ids": one.word_ids}
            for one in encodings
        ])  # fmt: skip

    return answered(served, await served.run(partial(read_tokens, served), finish, texts, pairs, how="windows"))


def read_tokens(served: Served, model: Model, texts: list[str], pairs: list[str] | None = None) -> Reading[Any]:
    """Split texts or pairs into pieces, which is all: there is nothing to compute."""
    if hasattr(model.tokenizer, "encode_batch"):
        encodings = model.tokenizer.encode_batch(texts, pairs)
    elif pairs is None:
        encodings = [model.tokenizer.encode(text) for text in texts]
    else:
        raise UserError(f"the model {served.name} reads single texts, not pairs")
    return Reading(("tokenize",), [], list(map(len, encodings)), lambda _: encodings)


class EmbeddingsBody(Body):
    """OpenAI's request for embeddings."""

    input: (
        str
        | Annotated[list[str], FIRST]
        | Annotated[list[int], FIRST]
        | Annotated[list[Annotated[list[int], FIRST]], FIRST]
    ) = Field(description="A text, a list of texts, or one or several lists of the model's token ids.")
    encoding_format: Literal["float", "base64"] = Field(default="float", description="base64: of float32 numbers.")
    dimensions: int | None = Field(default=None, ge=1, description="Keep only so many numbers, scaled to length 1.")
    user: str | None = Field(default=None, description="Not used.")
    truncate: bool = Field(default=True, description="Cut texts that are too long; as embedding servers do.")
    pooling: Literal["cls", "mean", "max", "last", "mean_sqrt_len_tokens", "weightedmean"] | None = None
    normalize: bool | None = Field(default=None, description="Scale to length 1; as the model's folder says.")
    prompt: str | None = Field(default=None, description="The name of one of the folder's prompts.")


def first_numbers(vectors: Any, count: int | None) -> Any:
    """Return vectors that keep so many of their numbers, scaled to length 1; None: as they are."""
    if count is None:
        return vectors
    if count > vectors.shape[1]:
        raise UserError(f"`dimensions` is {count}, and the model's vectors have {vectors.shape[1]:,} numbers")
    vectors = vectors[:, :count]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Embedding(BaseModel):
    """The vector of an input: numbers, or base64 of them."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """What an answer has cost, in OpenAI's words."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """OpenAI's list of embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, responses=ERRORS, tags=["models"])
async def embeddings(body: EmbeddingsBody, service: ServiceNeeded) -> Response:
    """Compute a vector for each text, in the form of OpenAI's API."""
    served, given = service.find(body.model, "embed"), body.input
    width = served.model.width
    if body.dimensions is not None and body.dimensions > width and not served.model.pooling.steps:
        raise UserError(f"`dimensions` is {body.dimensions}, and the model's vectors have {width:,} numbers")
    inputs: list[Any] = listed(given) if isinstance(given, str) or (given and isinstance(given[0], str)) else []
    if not inputs:
        inputs = [given] if given and isinstance(given[0], int) else list(given)
        if not inputs or not all(inputs):
            raise UserError("there is nothing to embed: `input` is empty, or has an empty list")

    def read(model: Model, inputs: list[Any]) -> Reading[Any]:
        texts = inputs if isinstance(inputs[0], str) else [served.encoded(ids) for ids in inputs]
        return read_embed(
            model, texts, pooling=body.pooling, normalize=body.normalize, prompt=body.prompt, truncate=body.truncate
        )

    def finish(vectors: Any) -> bytes:
        vectors = first_numbers(vectors, body.dimensions)
        rows = []
        for index, vector in enumerate(vectors):
            value = (
                as_json(vector.tolist())
                if body.encoding_format == "float"
                else b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'
            )
            rows.append(b'{"object":"embedding","index":' + str(index).encode() + b',"embedding":' + value + b"}")
        return b"[" + b",".join(rows) + b"]"

    data = await served.run(read, finish, inputs, how="cut" if body.truncate else "whole")
    work = WORK.get()
    tokens = work.tokens if work else 0
    usage = as_json({"prompt_tokens": tokens, "total_tokens": tokens})
    parts = [b'{"object":"list","data":', data, b',"model":', as_json(served.name), b',"usage":', usage, b"}"]
    return Response(b"".join(parts), media_type="application/json")


class ModelFacts(BaseModel):
    """A served model: OpenAI's fields, and what it is and can do."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    methods: list[str]
    facts: dict[str, Any]


class ModelsAnswer(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"]
    data: list[ModelFacts]


def _facts(served: Served, service: Service) -> dict[str, Any]:
    return {
        "id": served.name, "object": "model", "created": int(service.started), "owned_by": "bertworks",
        "methods": served.about["methods"],
        "facts": {name: value for name, value in served.about.items() if name != "methods"},
    }  # fmt: skip


@router.get("/v1/models", response_model=ModelsAnswer, tags=["models"])
async def models(service: ServiceNeeded) -> Response:
    """List the served models: what each is, and what it can do."""
    data = [_facts(served, service) for served in service.models.values()]
    return Response(as_json({"object": "list", "data": data}), media_type="application/json")


@router.get("/v1/models/{name}", response_model=ModelFacts, responses={404: ERRORS[404]}, tags=["models"])
async def one_model(name: str, service: ServiceNeeded) -> Response:
    """Say what one of the served models is and can do."""
    return Response(as_json(_facts(service.find(name), service)), media_type="application/json")
