"""What other servers' clients send and get: InferenceClient itself, and the bodies of TEI's, Cohere's and vLLM's."""

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError
from servers import running
from small_models import write_small_model

import bertworks as bw
from bertworks.tasks.conll import tag_labels

TEXTS = ["the cat sat on the mat", "a dog", "big cats ran far away, the small dog!"]
LONG = "the cat sat on the mat . " * 20
TAGS = list(tag_labels(("PER", "LOC")))
PAIR = {"task": {"kind": "classify", "name": "mine", "is_pair": True}}
TOPIC = {"task": {"kind": "classify", "name": "topic"}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    nli = ["entailment", "neutral", "contradiction"]
    return {
        "plain": write_small_model(root / "plain"),
        "topics": write_small_model(root / "topics", {"classify": 3}, labels=["x", "y", "z"], about=TOPIC),
        "scorer": write_small_model(root / "scorer", {"classify": 1}, labels=["LABEL_0"]),
        "pairs": write_small_model(root / "pairs", {"classify": 2}, labels=["yes", "no"], about=PAIR),
        "nli": write_small_model(root / "nli", {"classify": 3}, labels=nli, about=PAIR),
        "tags": write_small_model(root / "tags", {"tag": len(TAGS)}, labels=TAGS),
        "spans": write_small_model(root / "spans", {"span": 2}, max_position_embeddings=64),
    }


@pytest.fixture(scope="module")
def server(folders):
    with running(*folders.values()) as server:
        yield server


@pytest.fixture(scope="module")
def models(folders):
    return {name: bw.load(folder, device="cpu") for name, folder in folders.items()}


def post(server, path, body, status=200):
    found, answer, _ = server.ask(path, body)
    assert found == status, answer
    return answer


def refusal(server, path, body, status=422):
    """The message of an error in TEI's form."""
    answer = post(server, path, body, status)
    assert answer["status"] == status
    return answer["error"]


def cosines(vectors):
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[1:] @ vectors[0]


def shares(logits):
    numbers = {label: np.exp(value) for label, value in logits.items()}
    return {label: value / sum(numbers.values()) for label, value in numbers.items()}


# Hugging Face's client.


def client(server, model=None, **options):
    return InferenceClient(f"http://127.0.0.1:{server.port}" + (f"/models/{model}" if model else ""), **options)


def test_inference_client_classifies(server, models):
    expected = models["topics"].classify(TEXTS[0])["scores"]
    found = client(server, "topics").text_classification(TEXTS[0])
    assert [one.label for one in found] == sorted(expected, key=expected.get, reverse=True)
    assert {one.label: one.score for one in found} == pytest.approx(expected, abs=1e-5)
    logits = client(server, "topics").text_classification(TEXTS[0], function_to_apply="none")
    assert shares({one.label: one.score for one in logits}) == pytest.approx(expected, abs=1e-5)
    assert client(server, "topics").text_classification(TEXTS[0], top_k=1) == found[:1]
    pair = {"inputs": {"text": TEXTS[0], "text_pair": TEXTS[1]}}
    [[best, _]] = post(server, "/models/pairs", pair)
    assert best["label"] == models["pairs"].classify(*TEXTS[:2])["label"]
    body = {"inputs": "a cat", "parameters": {"targets": ["a"]}}
    assert "text-classification has no parameter 'targets'" in refusal(server, "/models/topics", body)


def test_inference_client_tags(server, models):
    expected = models["tags"].tag(LONG)
    found = client(server, "tags").token_classification(LONG)
    assert [(one.entity_group, one.word, one.start, one.end) for one in found] == [
        (one["type"], one["text"], one["start"], one["end"]) for one in expected
    ]
    assert [one.score for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert {one.entity_group for one in found} == {"PER", "LOC"}
    some = client(server, "tags").token_classification(LONG, aggregation_strategy="simple", ignore_labels=["PER"])
    assert {one.entity_group for one in some} == {"LOC"}


def test_inference_client_answers(server, models):
    [best, *_] = models["spans"].answer("the cat", LONG, top_k=3)
    found = client(server, "spans").question_answering("the cat", LONG)
    assert (found.answer, found.start, found.end) == (best["text"], best["start"], best["end"])
    assert found.score == pytest.approx(best["score"], abs=1e-5)
    three = client(server, "spans").question_answering("the cat", LONG, top_k=3, handle_impossible_answer=False)
    assert len(three) == 3
    assert three[0].answer == found.answer
    asked = {"question": "the cat", "context": LONG}
    assert len(post(server, "/models/spans", {"inputs": [asked, asked]})) == 2
    assert post(server, "/", {"inputs": asked})["answer"] == found.answer  # the only model that answers


def test_a_question_is_without_an_answer_only_where_that_is_allowed(server, tmp_path):
    asked = {"inputs": {"question": "the cat", "context": LONG}}
    may_be_none = {"parameters": {"handle_impossible_answer": True}}
    unsure = write_small_model(tmp_path / "unsure", {"span": 2}, about={"threshold": -1000.0})
    with running(unsure) as other:
        assert post(other, "/", asked)["answer"] != ""
        found = post(other, "/", asked | may_be_none)
        assert (found["answer"], found["start"], found["end"]) == ("", 0, 0)
    assert post(server, "/models/spans", asked | may_be_none)["answer"] in LONG
    assert post(server, "/models/spans", {"inputs": {"question": "cat", "context": ""}})["answer"] == ""


def test_inference_client_fills_masks(server, models):
    [[expected]] = models["plain"].fill(["the [MASK] sat"], 3)
    found = client(server, "plain").fill_mask("the [MASK] sat", top_k=3)
    assert [(one.token_str, one.token) for one in found] == [(one["token"], one["id"]) for one in expected]
    sequences = {one.token_str: one.sequence for one in client(server, "plain").fill_mask("a big [MASK] ran", top_k=22)}
    assert (sequences["##s"], sequences["cat"]) == ("a bigs ran", "a big cat ran")
    first, second = post(server, "/models/plain", {"inputs": "a [MASK] [MASK]", "parameters": {"targets": ["cat"]}})
    assert (first[0]["sequence"], second[0]["sequence"]) == ("a cat [MASK]", "a [MASK] cat")
    with pytest.raises(HfHubHTTPError, match=r"no \[MASK\] to fill"):  # asked to fill, though there is nothing
        client(server, "plain").fill_mask("the cat", top_k=2)


def test_inference_client_gets_vectors(server, models):
    expected = models["plain"].embed(TEXTS)
    assert np.allclose(client(server, "plain").feature_extraction(TEXTS), expected, atol=1e-5)
    assert np.allclose(client(server, "plain").feature_extraction(TEXTS[0]), expected[:1], atol=1e-5)
    found = client(server, "plain").feature_extraction(TEXTS[0], normalize=True, truncate=True, dimensions=4)
    assert np.allclose(found, expected[:1, :4] / np.linalg.norm(expected[0, :4]), atol=1e-5)
    # A model that has a task gives vectors where the request or the path is plainly about them.
    tagger = models["tags"].embed(TEXTS[:1], normalize=True)
    assert np.allclose(client(server, "tags").feature_extraction(TEXTS[0], normalize=True), tagger, atol=1e-5)
    path = "/models/tags/pipeline/feature-extraction"
    assert np.allclose(post(server, path, {"inputs": TEXTS[0]}), models["tags"].embed(TEXTS[:1]), atol=1e-5)


def test_inference_client_compares_sentences(server, models):
    found = client(server, "plain").sentence_similarity(TEXTS[0], TEXTS[1:])
    assert found == pytest.approx(cosines(models["plain"].embed(TEXTS)), abs=1e-5)


def test_inference_client_classifies_zero_shot(server, models):
    classes = ["cat", "dog", "mat"]
    found = client(server, "nli").zero_shot_classification(TEXTS[0], classes)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    logits = {}
    for one in classes:
        pair = {"inputs": {"text": TEXTS[0], "text_pair": f"This example is {one}."}}
        [scores] = post(server, "/models/nli", pair | {"parameters": {"function_to_apply": "none"}})
        [logits[one]] = [score["score"] for score in scores if score["label"] == "entailment"]
    assert {one.label: one.score for one in found} == pytest.approx(shares(logits), abs=1e-5)
    several = client(server).zero_shot_classification(
        TEXTS[0], classes, multi_label=True, hypothesis_template="the {} sat"
    )
    expected = {}
    for one in classes:
        given = models["nli"].classify(TEXTS[0], f"the {one} sat")["scores"]
        expected[one] = given["entailment"] / (given["entailment"] + given["contradiction"])
    assert {one.label: one.score for one in several} == pytest.approx(expected, abs=1e-5)


def test_zero_shot_answers_in_the_form_of_the_clients_version(server):
    body = {"inputs": TEXTS[0], "parameters": {"candidate_labels": ["cat", "dog"]}}
    for version, is_list in (("0.36.2", False), ("1.1.0", False), ("1.2.0", True), ("2.4.0", True)):
        _, answer, _ = server.ask("/", body, headers={"User-Agent": f"unknown/None; hf_hub/{version}; python/3.11"})
        assert isinstance(answer, list) == is_list
        assert is_list or (answer["sequence"], len(answer["labels"]), len(answer["scores"])) == (TEXTS[0], 2, 2)
    assert isinstance(post(server, "/", body), list)


def test_inference_client_shows_our_messages(server, folders):
    with pytest.raises(HfHubHTTPError, match=r"no model 'tag' is served .did you mean 'tags'"):
        client(server, "tag").token_classification("a cat")
    with pytest.raises(HfHubHTTPError, match=r"say which by .* /models/NAME: 'plain', 'topics'"):
        client(server).text_classification("a cat")
    with pytest.raises(HfHubHTTPError, match="this model's classes are 'x', 'y', 'z'"):
        client(server, "topics").zero_shot_classification("a cat", ["cat"])
    with pytest.raises(BadRequestError, match="max_answer_len' is no field"):
        client(server, "spans").question_answering("a", "b", max_answer_len=3)
    with pytest.raises(HfHubHTTPError, match=r"text 1 of 1 has .* shorten it"):
        client(server, "plain").feature_extraction("a" * 10_000, truncate=False)
    with running(folders["plain"], keys=["secret"]) as locked:
        with pytest.raises(HfHubHTTPError, match="this server needs a key"):
            client(locked).fill_mask("a [MASK]")
        assert len(client(locked, token="secret").fill_mask("a [MASK]")) == 5
        assert client(locked, token="secret", provider="hf-inference").get_endpoint_info()["model_id"] == "plain"


# text-embeddings-inference.


def test_tei_vectors(server, models):
    expected = models["plain"].embed(TEXTS, normalize=True)
    assert np.allclose(post(server, "/embed", {"inputs": TEXTS}), expected, atol=1e-5)  # the one without a task
    sent = {"inputs": TEXTS[0], "truncate": None, "normalize": False, "prompt_name": None, "dimensions": None}
    assert np.allclose(post(server, "/models/plain/embed", sent), models["plain"].embed(TEXTS[:1]), atol=1e-5)
    ids = models["plain"].encode(TEXTS[0]).ids
    assert np.allclose(post(server, "/embed", {"inputs": [ids, ids]}), expected[[0, 0]], atol=1e-5)
    found = post(server, "/embed_all", {"inputs": TEXTS[:2]})
    for text, rows in zip(TEXTS, found, strict=False):
        assert np.allclose(rows, models["plain"].features(text, layers=[-1]).hidden[0], atol=1e-5)
    found = post(server, "/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}})
    assert found == pytest.approx(cosines(expected), abs=1e-5)


def test_tei_cuts_long_texts_unless_told_not_to(server, models):
    expected = models["plain"].embed([LONG], normalize=True, truncate=True)
    assert np.allclose(post(server, "/embed", {"inputs": LONG}), expected, atol=1e-5)
    assert "the model reads 20" in refusal(server, "/embed", {"inputs": LONG, "truncate": False})
    assert "'Right'" in refusal(server, "/embed", {"inputs": LONG, "truncation_direction": "Left"}, 400)


def test_tei_classes(server, models):
    expected = models["topics"].classify(TEXTS[0])["scores"]
    found = post(server, "/models/topics/predict", {"inputs": TEXTS[0]})
    assert {one["label"]: one["score"] for one in found} == pytest.approx(expected, abs=1e-5)
    assert [one["label"] for one in found] == sorted(expected, key=expected.get, reverse=True)
    pair = post(server, "/models/pairs/predict", {"inputs": TEXTS[:2]})  # two texts are a pair
    assert {one["label"]: one["score"] for one in pair} == pytest.approx(
        models["pairs"].classify(*TEXTS[:2])["scores"], abs=1e-5
    )
    batch = post(server, "/models/topics/predict", {"inputs": [[text] for text in TEXTS]})
    assert [max(one["scores"].values()) for one in models["topics"].classify(TEXTS)] == pytest.approx(
        [one[0]["score"] for one in batch], abs=1e-5
    )
    assert post(server, "/models/pairs/predict", {"inputs": [TEXTS[:2]]}) == [pair]
    [one] = post(server, "/models/scorer/predict", {"inputs": TEXTS[0]})
    [raw] = post(server, "/models/scorer/predict", {"inputs": TEXTS[0], "raw_scores": True})
    assert raw["score"] == pytest.approx(models["scorer"].classify(TEXTS[0])["score"], abs=1e-5)
    assert one["score"] == pytest.approx(1 / (1 + np.exp(-raw["score"])))
    for inputs in (TEXTS, [["a"], ["a", "b"]], [], [[]]):
        assert "a text, a pair of texts" in refusal(server, "/models/topics/predict", {"inputs": inputs})


def test_tei_tokens(server, models):
    encoding = models["plain"].encode("The Cats, sat")
    [found] = post(server, "/models/plain/tokenize", {"inputs": "The Cats, sat"})
    assert [one["id"] for one in found] == encoding.ids
    assert [(one["text"], one["special"], one["start"], one["stop"]) for one in found[:3]] == [
        ("[CLS]", True, None, None), ("The", False, 0, 3), ("Cat", False, 4, 7)
    ]  # fmt: skip
    body = {"inputs": ["The Cats, sat"], "add_special_tokens": False}
    assert post(server, "/models/plain/tokenize", body) == [found[1:-1]]


def test_tei_info(server, folders):
    _, facts, _ = server.ask("/models/plain/info")
    assert (facts["model_id"], facts["max_input_length"], facts["model_dtype"]) == ("plain", 20, "float32")
    assert facts["model_type"] == {"embedding": {"pooling": "mean"}}
    assert server.ask("/models/topics/info")[1]["model_type"]["classifier"]["id2label"] == {
        "0": "x", "1": "y", "2": "z"
    }  # fmt: skip
    assert "reranker" in server.ask("/models/scorer/info")[1]["model_type"]
    assert server.ask("/info")[0] == 422  # of which?
    with running(folders["plain"]) as one:
        assert one.ask("/info")[1] == facts


# Rerank.


def test_rerank_by_a_regression_two_classes_or_cosines(server, models):
    texts = [TEXTS[1], TEXTS[2], ""]

    def ranked(name, **more):
        _, found, headers = server.ask(f"/models/{name}/rerank", {"query": TEXTS[0], "texts": texts, **more})
        scores = [one["score"] for one in found]
        assert scores == sorted(scores, reverse=True)
        return [one["score"] for one in sorted(found, key=lambda one: one["index"])], headers["x-scores"]

    scores = np.array([one["score"] for one in models["scorer"].classify([TEXTS[0]] * 3, texts)])
    found, what = ranked("scorer")
    assert found == pytest.approx(1 / (1 + np.exp(-scores)), abs=1e-5)
    assert what == "sigmoid of the model's score"
    assert ranked("scorer", raw_scores=True)[0] == pytest.approx(scores, abs=1e-5)
    found, what = ranked("pairs")  # the class that is not "no", though it is the first
    shares = [one["scores"]["yes"] for one in models["pairs"].classify([TEXTS[0]] * 3, texts)]
    assert found == pytest.approx(shares, abs=1e-5)
    assert what == "probability of 'yes'"
    raw, what = ranked("pairs", raw_scores=True)
    assert raw == pytest.approx([np.log(share / (1 - share)) for share in shares], abs=1e-3)
    assert what == "log odds of 'yes'"
    found, what = ranked("plain")
    assert found == pytest.approx(cosines(models["plain"].embed([TEXTS[0], *texts])), abs=1e-5)
    assert what == "cosine of embeddings"


def test_rerank_tells_tei_from_vllm_by_the_body(server):
    path = "/models/scorer/rerank"
    tei = post(server, path, {"query": "a cat", "texts": TEXTS, "return_text": True, "truncate": True})
    assert [TEXTS[one["index"]] for one in tei] == [one["text"] for one in tei]
    vllm = post(server, "/rerank", {"model": "scorer", "query": "a cat", "documents": TEXTS, "top_n": 2})
    assert [one["index"] for one in vllm["results"]] == [one["index"] for one in tei][:2]
    assert [one["relevance_score"] for one in vllm["results"]] == [one["score"] for one in tei][:2]
    assert vllm["results"][0]["document"] == {"text": tei[0]["text"]}
    assert vllm["model"] == "scorer"
    assert vllm["usage"]["total_tokens"] > 0
    assert "`texts` (TEI) or as `documents`" in refusal(server, "/rerank", {"query": "a"})
    answer = post(server, "/rerank", {"model": "topics", "query": "a", "documents": TEXTS}, 422)  # in vLLM's form
    assert answer["error"]["message"] == answer["message"]
    assert "gives no score" in answer["message"]


def test_coheres_rerank(server):
    body = {"model": "scorer", "query": "a cat", "documents": TEXTS, "top_n": 2, "max_tokens_per_doc": 4096}
    second = post(server, "/v2/rerank", body)
    assert [sorted(one) for one in second["results"]] == [["index", "relevance_score"]] * 2
    assert second["scores"] == "sigmoid of the model's score"
    documents = [{"title": "a", "body": TEXTS[1]}, {"title": "the", "body": TEXTS[2]}]
    body = {"model": "scorer", "query": "a cat", "documents": documents, "rank_fields": ["title", "body"]}
    first = post(server, "/v1/rerank", body | {"return_documents": True, "max_chunks_per_doc": 10})
    assert {one["document"]["title"] for one in first["results"]} == {"a", "the"}
    joined = [f"{one['title']}\n{one['body']}" for one in documents]
    assert post(server, "/v1/rerank", {"model": "scorer", "query": "a cat", "documents": joined})["results"] == [
        {name: value for name, value in one.items() if name != "document"} for one in first["results"]
    ]
    for body, status, message in (
        ({"model": "rerank-v3.5", "query": "a", "documents": ["b"]}, 404, "no model 'rerank-v3.5' is served"),
        ({"model": "scorer", "query": "a", "documents": []}, 422, "nothing to order"),
        ({"model": "scorer", "query": "a", "documents": [{"title": "b"}]}, 422, "no text at 'text'"),
        ({"model": "scorer", "documents": ["b"]}, 400, "'query' is missing"),
    ):
        answer = post(server, "/v1/rerank", body, status)
        assert message in answer["message"] == answer["error"]["message"]


def test_the_only_scorer_is_found_without_a_name(folders):
    with running(folders["plain"], folders["topics"], folders["pairs"]) as server:
        assert post(server, "/v2/rerank", {"query": "a", "documents": TEXTS})["model"] == "pairs"
    with running(folders["plain"], folders["topics"]) as server:
        answer = post(server, "/v2/rerank", {"query": "a", "documents": TEXTS})
        assert (answer["model"], answer["scores"]) == ("plain", "cosine of embeddings")


# What all routes have.


def test_limits_and_metrics_are_those_of_all_routes(folders):
    with running(folders["plain"], limits=["inputs=3", "body=2000"]) as server:
        for path, body in (
            ("/embed", {"inputs": ["a"] * 4}),
            ("/", {"inputs": ["a"] * 4}),
            ("/rerank", {"query": "a", "texts": ["a"] * 4}),
            ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 4}}),
        ):
            assert "at most 3 in a request (limit `inputs`)" in refusal(server, path, body)
        assert "more than 2,000 bytes" in refusal(server, "/embed", {"inputs": "a" * 2000}, 413)
        answer = post(server, "/v2/rerank", {"query": "a", "documents": ["a" * 2000]}, 413)
        assert "more than 2,000 bytes" in answer["message"]
        post(server, "/embed", {"inputs": "a cat"})
        assert b'bertworks_requests_total{model="plain",route="/embed",status="200"} 1' in server.ask("/metrics")[1]


def test_what_a_small_body_would_multiply_is_bounded(server, folders):
    labels = {"candidate_labels": ["a"] * 2000}
    message = refusal(server, "/models/nli", {"inputs": ["a", "b"], "parameters": labels})
    assert "2 texts with 2,000 labels are 4,000 pairs; at most 2,048" in message
    twice = {"candidate_labels": ["a"], "hypothesis_template": "{} {}"}
    assert "{} once" in refusal(server, "/models/nli", {"inputs": "a", "parameters": twice})
    asked = [{"question": "a", "context": "b"}] * 200
    message = refusal(server, "/models/spans", {"inputs": asked, "parameters": {"top_k": 1000}})
    assert "would have 200,000 guesses" in message
    with running(folders["plain"], limits=["numbers=20000"]) as small:
        body = {"inputs": "[MASK]" + " " * 20_000, "parameters": {"top_k": 20}}
        assert "the answer would have 50,015 numbers" in refusal(small, "/", body)
        assert len(post(small, "/", body | {"parameters": {"top_k": 5}})) == 5
    documents = [{"text": "a " * 5000}]
    body = {"model": "scorer", "query": "a", "documents": documents, "rank_fields": ["text"] * 100}
    assert len(post(server, "/v1/rerank", body)["results"]) == 1
    assert "rank_fields" in post(server, "/v1/rerank", body | {"rank_fields": ["text"] * 101}, 400)["message"]


def test_numbers_are_those_that_are_computed_alone(server, models):
    """Whatever shares a batch, a list gives what its texts give one by one."""
    alone = [post(server, "/embed", {"inputs": text})[0] for text in TEXTS]
    assert np.allclose(post(server, "/embed", {"inputs": TEXTS}), alone, atol=1e-5)
