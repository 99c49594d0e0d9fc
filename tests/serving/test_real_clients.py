"""People's clients as they are installed, each against a server of ours: run by `make test-clients`, which keeps a log.

They need other versions of some libraries than we do, so they have an environment of their own. Nothing of them is
replaced but the table of tiktoken's pieces, which is downloaded at first use, by one of single bytes.
"""

import asyncio
import os
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from servers import running
from small_models import write_small_model

import bertworks as bw
from bertworks.tasks.conll import tag_labels

pytestmark = pytest.mark.clients
TEXTS = ["the cat sat on the mat", "a dog", "big cats ran far away, the small dog!"]
PAIR = {"task": {"kind": "classify", "name": "mine", "is_pair": True}}
KEY = "secret"
LOG = os.environ.get("CLIENTS_LOG")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    labels = list(tag_labels(("PER", "LOC")))
    return {
        "plain": write_small_model(root / "plain"),
        "topics": write_small_model(root / "topics", {"classify": 3}, labels=["x", "y", "z"]),
        "scorer": write_small_model(root / "scorer", {"classify": 1}, labels=["LABEL_0"]),
        "nli": write_small_model(
            root / "nli", {"classify": 3}, labels=["entailment", "neutral", "contradiction"], about=PAIR
        ),
        "tags": write_small_model(root / "tags", {"tag": len(labels)}, labels=labels),
        "spans": write_small_model(root / "spans", {"span": 2}, max_position_embeddings=64),
    }


@pytest.fixture(scope="module")
def url(folders):
    with running(*folders.values(), keys=[KEY]) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def plain(folders):
    return bw.load(folders["plain"], device="cpu")


@pytest.fixture(scope="module")
def scores(folders):
    """What the scorer says of the pairs of a query and each text, as the server gives it."""
    model = bw.load(folders["scorer"], device="cpu")
    return [1 / (1 + np.exp(-one["score"])) for one in model.classify(["a cat"] * len(TEXTS), TEXTS)]


@pytest.fixture(scope="module")
def log():
    lines = []
    yield lambda name, did: lines.append(f"{name} {version(name)}: {did}")
    if LOG:
        head = (
            "What unmodified clients did with a server of ours, compared with the model itself (make test-clients).\n"
        )
        Path(LOG).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def close(found, expected):
    assert np.allclose(found, expected, atol=1e-5)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_openai(url, plain, log):
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    expected = plain.embed(TEXTS)
    raw = client.embeddings.with_raw_response.create(model="plain", input=TEXTS)
    assert b'"encoding_format":"base64"' in raw.http_request.content  # what the client does by itself
    close([one.embedding for one in raw.parse().data], expected)
    [one] = client.embeddings.create(model="plain", input=TEXTS[0]).data
    close(one.embedding, expected[0])
    ids = [plain.encode(text).ids for text in TEXTS]
    close([one.embedding for one in client.embeddings.create(model="plain", input=ids).data], expected)
    [one] = client.embeddings.create(model="plain", input=ids[0], encoding_format="float").data
    close(one.embedding, expected[0])
    [one] = client.embeddings.create(model="plain", input=TEXTS[0], dimensions=4).data
    close(one.embedding, unit(expected[:1, :4])[0])
    with pytest.raises(openai.UnprocessableEntityError, match=r"100257 is not in the vocabulary .*LangChain"):
        client.embeddings.create(model="plain", input=[100_257])
    with pytest.raises(openai.NotFoundError, match="no model 'text-embedding-3-small' is served"):
        client.embeddings.create(model="text-embedding-3-small", input="a cat")
    with pytest.raises(openai.AuthenticationError, match="this server needs a key"):
        client.with_options(api_key="wrong").models.list()
    assert "plain" in [one.id for one in client.models.list()]
    assert client.models.retrieve("tags").id == "tags"

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            return (await client.embeddings.create(model="plain", input=TEXTS)).data

    close([one.embedding for one in asyncio.run(ask())], expected)
    did = "embeddings of a text, a list, token ids; base64 (its default), numbers, dimensions; models; async"
    log("openai", f"{did}; shows our messages (401, 404, 422)")


def test_langchain_openai(url, plain, log, monkeypatch):
    import openai
    import tiktoken
    from langchain_openai import OpenAIEmbeddings

    options = {"base_url": f"{url}/v1", "api_key": KEY, "model": "plain"}
    embeddings = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    close(embeddings.embed_documents(TEXTS), plain.embed(TEXTS))
    close(asyncio.run(embeddings.aembed_query(TEXTS[0])), plain.embed(TEXTS[0]))
    pieces = {bytes([byte]): 100_000 + byte for byte in range(256)}
    table = tiktoken.Encoding("bytes", pat_str=r".", mergeable_ranks=pieces, special_tokens={})
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: table)
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
        OpenAIEmbeddings(**options).embed_documents(TEXTS)
    log("langchain-openai", "OpenAIEmbeddings with check_embedding_ctx_length=False, which the error without it names")


def test_huggingface_hub(url, plain, log):
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    def client(model):
        return InferenceClient(f"{url}/models/{model}", token=KEY)

    assert [one.label for one in client("topics").text_classification(TEXTS[0])] != []
    assert {one.entity_group for one in client("tags").token_classification(TEXTS[2])} <= {"PER", "LOC"}
    found = client("spans").question_answering("the cat", TEXTS[2])
    assert TEXTS[2][found.start : found.end] == found.answer
    assert len(client("plain").fill_mask("the [MASK] sat", top_k=3)) == 3
    close(client("plain").feature_extraction(TEXTS), plain.embed(TEXTS))
    vectors = unit(plain.embed(TEXTS))
    close(client("plain").sentence_similarity(TEXTS[0], TEXTS[1:]), vectors[1:] @ vectors[0])
    found = client("nli").zero_shot_classification(TEXTS[0], ["cat", "dog"])
    assert sum(one.score for one in found) == pytest.approx(1)
    with pytest.raises(HfHubHTTPError, match="did you mean 'tags'"):
        client("tag").token_classification("a cat")
    log("huggingface_hub", "InferenceClient: seven tasks; its errors show our messages")


def test_langchain_huggingface(url, plain, log):
    from huggingface_hub import AsyncInferenceClient, InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings

    embeddings = HuggingFaceEndpointEmbeddings(model="ours/plain", huggingfacehub_api_token=KEY)
    embeddings.client = InferenceClient(f"{url}/models/plain", token=KEY)  # as `model` it takes no address
    embeddings.async_client = AsyncInferenceClient(f"{url}/models/plain", token=KEY)
    close(embeddings.embed_documents(TEXTS), plain.embed(TEXTS))
    close(asyncio.run(embeddings.aembed_query(TEXTS[0])), plain.embed(TEXTS[0]))
    log("langchain-huggingface", "HuggingFaceEndpointEmbeddings, given an InferenceClient with our address")


def test_llama_index_embeds(url, plain, log):
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    embeddings = TextEmbeddingsInference(model_name="plain", base_url=f"{url}/models/plain", auth_token=KEY)
    expected = unit(plain.embed(TEXTS))
    close(embeddings.get_text_embedding_batch(TEXTS), expected)
    close(embeddings.get_query_embedding(TEXTS[0]), expected[0])
    close(asyncio.run(embeddings.aget_text_embedding_batch(TEXTS)), expected)
    assert len(embeddings.get_text_embedding("the cat " * 500)) == 16  # cut, as it asks
    log("llama-index-embeddings-text-embeddings-inference", "texts, a query, a long text; async")


def test_llama_index_reranks(url, scores, log):
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    reranker = TextEmbeddingInference(base_url=f"{url}/models/scorer", auth_token=KEY, top_n=2)  # sends a bare key
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = reranker.postprocess_nodes(nodes, QueryBundle("a cat"))
    close([one.score for one in found], sorted(scores, reverse=True)[:2])
    assert found[0].text == TEXTS[int(np.argmax(scores))]
    log("llama-index-postprocessor-tei-rerank", "nodes ordered by a pair model")


def test_cohere(url, scores, log):
    import cohere

    order = sorted(range(len(TEXTS)), key=lambda number: -scores[number])
    second = cohere.ClientV2(KEY, base_url=url)
    found = second.rerank(model="scorer", query="a cat", documents=TEXTS, top_n=2)
    assert [one.index for one in found.results] == order[:2]
    close([one.relevance_score for one in found.results], [scores[number] for number in order[:2]])
    assert found.scores == "sigmoid of the model's score"
    documents = [{"text": text, "id": str(number)} for number, text in enumerate(TEXTS)]
    found = cohere.Client(KEY, base_url=url).rerank(
        model="scorer", query="a cat", documents=documents, return_documents=True
    )
    assert [one.document.text for one in found.results] == [TEXTS[number] for number in order]
    with pytest.raises(cohere.NotFoundError, match=r"no model 'rerank-v3.5' is served"):
        second.rerank(model="rerank-v3.5", query="a cat", documents=TEXTS)
    with pytest.raises(cohere.UnprocessableEntityError) as error:
        second.rerank(model="topics", query="a cat", documents=TEXTS)
    assert "gives no score" in error.value.body["message"]
    with pytest.raises(cohere.UnauthorizedError, match="this server needs a key"):
        cohere.ClientV2("wrong", base_url=url).rerank(model="scorer", query="a cat", documents=TEXTS)
    log("cohere", "rerank of versions 1 and 2, of texts and of objects; its errors show our messages")


def test_the_examples_of_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with running("mini") as server:
        for example in examples:
            names = {}
            exec(example.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}"), names)
            if "vectors" in names:
                assert np.shape(names["vectors"]) == (2, 256)
            if "cohere" in names:
                assert names["found"].results[0].index == 1
                assert names["found"].scores == "cosine of embeddings"
    assert len(examples) == 6
