"""Tags and answers of folders that transformers wrote, against what transformers' own models say (N7).

Weights are random and large, and texts longer than the models, so that a wrong place or window shows.
"""

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import transformers
from window_scores import predict_answers, predict_tags

import bertworks as bw
from bertworks.tasks.heads import BatchLayout
from bertworks.tasks.task import Cut, SpanExample, words_example
from bertworks.tasks.windows import encode_answers, encode_tags
from bertworks.text.vocabulary import SPECIAL_TOKENS

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = ["the", "cat", "sat", "on", "a", "mat", "##s", "dog", "ran", "far", ".", ","]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXT = "The cats sat on a mat, far. Dogs ran on a cat. " * 4
QUESTION = "the dog ran?"


def write_theirs(folder, architecture, **changes):
    """A folder of transformers' making, and the model in it."""
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=24, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    return model


@torch.no_grad()
def outputs_of(model, window):
    ids, segments = (torch.tensor(row.tolist())[None] for row in (window.ids, window.segment_ids))
    return model(input_ids=ids, token_type_ids=segments)


def test_tags_of_every_window_are_transformers(tmp_path):
    labels = dict(enumerate(LABELS))
    theirs = write_theirs(tmp_path, "BertForTokenClassification", id2label=labels)
    model = bw.load(tmp_path, device="cpu")
    assert model.labels == LABELS
    encoded = encode_tags(model.tokenizer, [words_example("0", TEXT.split(), None, 0)], max_length=24)
    assert len(encoded.windows) > 3
    numbers, probabilities = predict_tags(model.net, encoded, BatchLayout(torch.device("cpu")))
    for window in encoded.windows:
        shares = outputs_of(theirs, window).logits[0].softmax(-1).numpy()[window.positions]
        np.testing.assert_array_equal(numbers[window.units], shares.argmax(-1))
        np.testing.assert_allclose(probabilities[window.units], shares.max(-1), atol=1e-5)
    assert {entity["type"] for entity in model.tag(TEXT)} <= {"PER", "LOC"}


def test_entities_of_a_short_text_are_those_of_transformers_pipeline(tmp_path):
    """Its `first` aggregation labels a word by its first piece too, and gives the score of that piece."""
    theirs = write_theirs(tmp_path, "BertForTokenClassification", id2label=dict(enumerate(LABELS)))
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    pipeline = transformers.TokenClassificationPipeline(
        model=theirs, tokenizer=tokenizer, aggregation_strategy="first", ignore_labels=["O"], device="cpu"
    )
    model = bw.load(tmp_path, device="cpu")
    for text in ("the cats sat on a mat", "dog ran far", "a cat, a dog, a mat. far"):
        expected = [(one["entity_group"], one["start"], one["end"]) for one in pipeline(text)]
        found = model.tag(text)
        assert found
        assert [(one["type"], one["start"], one["end"]) for one in found] == expected
        np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in pipeline(text)], atol=1e-4)


def test_answers_are_the_best_pairs_of_transformers_scores(tmp_path):
    theirs = write_theirs(tmp_path, "BertForQuestionAnswering")
    model = bw.load(tmp_path, device="cpu")
    example = SpanExample("0", QUESTION, TEXT, (), False)
    settings = Cut(max_length=24, doc_stride=6)
    encoded = encode_answers(model.tokenizer, [example], settings)
    assert len(encoded.windows) > 3
    (answered,) = predict_answers(model.net, [example], encoded, BatchLayout(torch.device("cpu")))
    (pieces,), null_scores, best = encoded.contexts, [], (-np.inf, 0, 0)
    for window in encoded.windows:
        outputs = outputs_of(theirs, window)
        starts, ends = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        null_scores.append(starts[0] + ends[0])
        shift = window.context_start
        for i in np.flatnonzero(window.may_start):
            for j in range(i, len(window.may_start)):
                score = starts[shift + i] + ends[shift + j]
                best = max(best, (score, -(window.first_piece + i), -(window.first_piece + j)))
    assert answered.null_score == pytest.approx(min(null_scores), abs=1e-4)
    assert answered.guesses[0].score == pytest.approx(best[0], abs=1e-4)
    assert (answered.guesses[0].start, answered.guesses[0].end) == (pieces.starts[-best[1]], pieces.ends[-best[2]])
    assert model.answer(QUESTION, "the cat sat")[0]["text"] in "the cat sat"
