"""The server's own routes: every method of a model over HTTP, with the results that the method itself gives."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
from servers import running
from small_models import PIECES, write_small_elmo, write_small_model

import bertworks as bw
from bertworks.serving.settings import KEY_VARIABLE, Limits, read_keys
from bertworks.tasks.conll import tag_labels

TEXTS = ["the cat sat on the mat", "a dog", "big cats ran far away, the small dog!"]
LONG = "the cat sat on the mat . " * 20
TAGS = list(tag_labels(("PER", "LOC")))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    pair = {"task": {"kind": "classify", "name": "mine", "is_pair": True}}
    return {
        "plain": write_small_model(root / "plain"),
        "classes": write_small_model(root / "classes", {"classify": 3}, labels=["x", "y", "z"]),
        "pairs": write_small_model(root / "pairs", {"classify": 2}, labels=["no", "yes"], about=pair),
        "tags": write_small_model(root / "tags", {"tag": len(TAGS)}, labels=TAGS),
        "spans": write_small_model(root / "spans", {"span": 2}, max_position_embeddings=64),
        "endings": write_small_model(root / "endings", {"choose": 1}),
        "elmo": write_small_elmo(root / "elmo"),
    }


@pytest.fixture(scope="module")
def server(folders):
    with running(*folders.values()) as server:
        yield server


@pytest.fixture(scope="module")
def models(folders):
    return {name: bw.load(folder, device="cpu") for name, folder in folders.items()}


def close(found, expected):
    """Compare results: numbers to 1e-5, everything else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            close(found[key], value)
    elif isinstance(expected, list | tuple | np.ndarray):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, float | np.floating):
        assert found == pytest.approx(float(expected), abs=1e-5)
    else:
        assert found == expected


def test_masks_are_filled(server, models):
    texts = ["the [MASK] sat", "a [MASK] [MASK]"]
    close(server.results("/v1/fill", model="plain", input=texts, top_k=3), models["plain"].fill(texts, 3))
    found = server.results("/v1/fill", model="plain", input=texts[0], targets=["cat", "dog"])
    close(found, models["plain"].fill(texts[:1], targets=["cat", "dog"]))


def test_next_sentences(server, models):
    [one] = server.results("/v1/nsp", model="plain", input=TEXTS[0], following=TEXTS[1])
    assert one["is_next"] == pytest.approx(models["plain"].nsp(*TEXTS[:2]), abs=1e-5)
    assert one["is_next"] + one["is_random"] == pytest.approx(1)
    three = server.results("/v1/nsp", model="plain", input=TEXTS[1], following=TEXTS)
    close([each["is_next"] for each in three], models["plain"].nsp(TEXTS[1], TEXTS))


def test_texts_and_pairs_are_classified(server, models):
    close(server.results("/v1/classify", model="classes", input=TEXTS), models["classes"].classify(TEXTS))
    found = server.results("/v1/classify", model="pairs", input=TEXTS, pair="a cat")
    close(found, models["pairs"].classify(TEXTS, ["a cat"] * 3))
    status, answer, _ = server.ask("/v1/classify", {"model": "pairs", "input": "a cat"})
    assert (status, "pairs of texts" in answer["error"]["message"]) == (422, True)


def test_entities_of_long_texts(server, models):
    close(server.results("/v1/tag", model="tags", input=[LONG, *TEXTS]), models["tags"].tag([LONG, *TEXTS]))
    found = server.results("/v1/tag", model="tags", input=TEXTS[0], units="character")
    close(found, [models["tags"].tag(TEXTS[0], units="character")])


def test_answers_in_long_texts_and_no_answer(server, models):
    body = {"model": "spans", "question": ["the cat", "a dog"], "context": LONG}
    close(server.results("/v1/answer", **body, top_k=3), models["spans"].answer(["the cat", "a dog"], LONG, top_k=3))
    [[none]] = server.results("/v1/answer", **body | {"question": "the cat"}, threshold=-1000.0)
    assert (none["text"], none["start"], none["end"]) == ("", None, None)


def test_endings_are_chosen(server, models):
    endings = ["the dog", "a mat", "far away"]
    [one] = server.results("/v1/choose", model="endings", context=TEXTS[0], endings=endings)
    close(one, models["endings"].choose(TEXTS[0], endings))
    two = server.results("/v1/choose", model="endings", context=TEXTS[:2], endings=[endings, endings[:2]])
    close(two, models["endings"].choose(TEXTS[:2], [endings, endings[:2]]))


def test_features_and_attention(server, models):
    [one] = server.results("/v1/features", model="plain", input=TEXTS[0], layers=[0, -1])
    expected = models["plain"].features(TEXTS[0], layers=[0, -1])
    close(one["hidden"], expected.hidden)
    assert (one["tokens"], one["layers"]) == (expected.encoding.tokens, [0, 3])
    [pair] = server.results("/v1/attend", model="plain", input=TEXTS[1], pair=TEXTS[0], layers=[2])
    encoding, weights = models["plain"].attention(TEXTS[1], TEXTS[0])
    close(pair["weights"], weights[1:2])
    assert pair["segment_ids"] == encoding.segment_ids
    status, answer, _ = server.ask("/v1/attend", {"model": "plain", "input": "a cat", "layers": [0]})
    assert (status, "layer 0" in answer["error"]["message"]) == (422, True)


def test_tokens(server, models):
    for name in ("plain", "elmo"):
        [one] = server.results("/v1/tokenize", model=name, input="The cats, [SEP] sat")
        encoding = models[name].encode("The cats, [SEP] sat")
        assert (one["tokens"], one["ids"]) == (encoding.tokens, encoding.ids)
        assert [tuple(pair) for pair in one["offsets"]] == encoding.offsets
    _, answer, _ = server.ask("/v1/tokenize", {"model": "plain", "input": ["the cat", ""]})
    assert answer["usage"]["tokens"] == 6


def test_embeddings_in_openais_form(server, models):
    expected = models["plain"].embed(TEXTS)
    _, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": TEXTS})
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    close([one["embedding"] for one in answer["data"]], expected)
    num_tokens = sum(len(models["plain"].encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    _, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": TEXTS[0], "encoding_format": "base64"})
    close(np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4"), expected[0])
    _, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": TEXTS[0], "dimensions": 4, "user": "me"})
    close(answer["data"][0]["embedding"], expected[0][:4] / np.linalg.norm(expected[0][:4]))
    _, answer, _ = server.ask("/v1/embeddings", {"model": "elmo", "input": TEXTS[0]})
    close(answer["data"][0]["embedding"], models["elmo"].embed(TEXTS[0]))


def test_embeddings_of_token_ids(server, models):
    ids = models["plain"].encode(TEXTS[0]).ids
    for given in (ids, ids[1:-1], [ids]):
        _, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": given})
        close([one["embedding"] for one in answer["data"]], models["plain"].embed(TEXTS[:1]))
    status, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": [5, 100_257]})
    assert status == 422
    assert "100257 is not in the vocabulary" in answer["error"]["message"]
    assert "check_embedding_ctx_length=False" in answer["error"]["message"]
    for empty in ("", [], [[]], ["a", " "]):
        assert server.ask("/v1/embeddings", {"model": "plain", "input": empty})[0] == 422
    assert server.ask("/v1/embeddings", {"model": "plain", "input": TEXTS[0], "dimensions": 17})[0] == 422


def test_long_texts_are_refused_or_cut(server, models):
    status, answer, _ = server.ask("/v1/features", {"model": "plain", "input": LONG})
    assert status == 422
    assert "the model reads 20" in answer["error"]["message"]
    [one] = server.results("/v1/features", model="plain", input=LONG, truncate=True)
    assert len(one["tokens"]) == 20
    _, answer, _ = server.ask("/v1/embeddings", {"model": "plain", "input": LONG})
    close(answer["data"][0]["embedding"], models["plain"].embed(LONG, truncate=True))


def test_models_are_listed_and_found(server, folders):
    _, answer, _ = server.ask("/v1/models")
    assert [one["id"] for one in answer["data"]] == list(folders)
    assert answer["data"][0]["methods"] == ["fill", "nsp", "embed", "features", "attention"]
    assert answer["data"][1]["facts"]["labels"] == ["x", "y", "z"]
    assert server.ask("/v1/models/tags")[1] == answer["data"][3]
    assert server.results("/v1/tag", input="the cat") == server.results("/v1/tag", model="tags", input="the cat")
    status, answer, _ = server.ask("/v1/classify", {"input": "the cat"})  # two models can do it
    assert (status, "'classes'" in answer["error"]["message"]) == (422, True)
    status, answer, _ = server.ask("/v1/tag", {"model": "tag", "input": "the cat"})
    assert (status, "did you mean 'tags'" in answer["error"]["message"]) == (404, True)
    status, answer, _ = server.ask("/v1/tag", {"model": "plain", "input": "the cat"})
    assert (status, "it can: fill masks" in answer["error"]["message"]) == (422, True) or "cannot tag" in str(answer)


def test_answers_say_what_they_cost(server):
    _, answer, headers = server.ask("/v1/fill", {"model": "plain", "input": "the [MASK] sat"})
    assert answer["usage"] == {"tokens": 5}
    assert headers["x-tokens"] == "5"
    assert [part.partition(";")[0] for part in headers["server-timing"].split(", ")] == [
        "read", "queue", "compute", "total"
    ]  # fmt: skip
    assert len(headers["x-request-id"]) == 16


def test_the_document_describes_every_route(server):
    _, document, _ = server.ask("/openapi.json")
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posts >= {f"/v1/{name}" for name in ("fill", "classify", "tag", "answer", "choose", "nsp", "features",
                                                 "attend", "tokenize", "embeddings")}  # fmt: skip
    for path in posts:
        post = document["paths"][path]["post"]
        assert "application/json" in post["requestBody"]["content"]
        assert {"400", "401", "422", "429"} <= post["responses"].keys()
    assert "http" not in json.dumps(document).replace("HTTP", "")  # nothing to load from elsewhere


def test_the_docs_name_every_route_and_every_limit_with_its_default(server):
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / name).read_text(encoding="utf-8") for name in ("serving.md", "clients.md"))
    stated = {}
    for names, defaults in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\d,; ]+) \|", text, re.MULTILINE):
        numbers = [int(number.replace(",", "")) for number in defaults.split(";")]
        stated |= dict(zip(re.findall(r"\w+", names), numbers, strict=True))
    assert stated == Limits().model_dump()
    _, document, _ = server.ask("/openapi.json")
    named = re.sub("POST |GET ", "", text).replace("NAME", "{name}").replace("TASK", "{task}")
    assert [path for path in document["paths"] if f"`{path}`" not in named] == []


def test_two_models_of_one_name_are_refused(tmp_path, bertworks):
    for place in ("a", "b"):
        write_small_model(tmp_path / place / "same")
    code, _, message = bertworks("serve", tmp_path / "a" / "same", tmp_path / "b" / "same", "--port", 0)
    assert (code, "would both be served as 'same'" in message) == (2, True)
    code, _, message = bertworks("serve", "mini", "--limits", "input=3")
    assert (code, "did you mean 'inputs'" in message) == (2, True)
    code, _, message = bertworks("serve", tmp_path / "nothing", "--port", 0)
    assert code == 2
    assert "nothing" in message


def test_no_control_token_comes_from_a_text(server):
    """H22"""
    typed = "[CLS] [SEP] [MASK] [PAD] [unused1] the cat"
    control = {PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}
    [one] = server.results("/v1/tokenize", model="plain", input=typed)
    assert not control & set(one["ids"][1:-1])
    [one] = server.results("/v1/tokenize", model="plain", input=typed, pair=typed)
    assert sum(id in control for id in one["ids"]) == 3


def test_an_exported_model_is_served_by_the_name_of_its_file(folders, models, tmp_path):
    pytest.importorskip("onnxruntime")
    models["plain"].export(tmp_path / "exported.onnx")
    with running(tmp_path / "exported.onnx") as server:
        assert [one["id"] for one in server.ask("/v1/models")[1]["data"]] == ["exported"]
        found = server.results("/v1/fill", input="the [MASK] sat")
        right = models["plain"].fill("the [MASK] sat")
        assert [guess["token"] for guess in found[0][0]] == [guess["token"] for guess in right[0]]
        _, answer, _ = server.ask("/v1/embeddings", {"input": TEXTS})
        np.testing.assert_allclose(
            [one["embedding"] for one in answer["data"]], models["plain"].embed(TEXTS), atol=1e-4
        )


def test_pages_of_other_sites_may_call_only_where_that_is_allowed(folders):
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    with running(folders["plain"], cors=["https://a.example"], keys=["key"]) as server:
        status, _, headers = server.ask("/v1/fill", method="OPTIONS", headers=asked)  # a browser sends no key here
        assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert "authorization" in headers["access-control-allow-headers"]
        status, _, headers = server.ask("/v1/models", headers={"Origin": "https://a.example"}, key="key")
        assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
        _, _, headers = server.ask("/v1/models", headers={"Origin": "https://b.example"}, key="key")
        assert "access-control-allow-origin" not in headers
    with running(folders["plain"]) as server:
        _, _, headers = server.ask("/v1/models", headers={"Origin": "https://a.example"})
        assert "access-control-allow-origin" not in headers


def test_keys_come_from_the_environment_and_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "one")
    (tmp_path / "keys").write_text("# ours\ntwo\n\n three \n")
    assert read_keys(str(tmp_path / "keys")) == ["one", "two", "three"]
    for text, message in (("# none\n", "has no key"), ("a b\n", "has spaces"), ("\u00e9\n", "beyond ASCII")):
        (tmp_path / "keys").write_text(text, encoding="utf-8")
        with pytest.raises(bw.UserError, match=message):
            read_keys(str(tmp_path / "keys"))
    with pytest.raises(bw.UserError, match="cannot read the keys"):
        read_keys(str(tmp_path / "nothing"))
