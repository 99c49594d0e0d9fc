"""Losses of tagging and answering against plain formulas, and the same whatever way a batch is cut."""

import numpy as np
import pytest
import torch
from small_models import scattered
from window_scores import predict_answers, predict_tags

from bertworks.nn.attention import pack, pack_lengths
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import initialise
from bertworks.tasks.heads import KINDS, BatchLayout, answer_items, answer_scores, by_sequence, tag_items, to_batch
from bertworks.tasks.task import Answer, Cut, SpanExample, words_example
from bertworks.tasks.windows import (
    UNKNOWN,
    AnswerWindow,
    AnswerWindows,
    TagWindow,
    TagWindows,
    choose_threshold,
    decode_tags,
    encode_answers,
    encode_tags,
)
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

LENGTHS = [7, 3, 12, 7]
SIZES = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 32, "max_position_embeddings": 16}  # fmt: skip


def small_net():
    return scattered(Bert(BertConfig(**SIZES), {"tag": 5, "span": 2}))


def random_texts():
    draw = np.random.default_rng(1)
    return [draw.integers(0, 40, length).astype(np.int32) for length in LENGTHS]


@pytest.fixture(scope="module")
def net():
    return small_net()


def tag_windows():
    draw = np.random.default_rng(0)
    made = []
    for row in random_texts():
        places = np.sort(draw.choice(len(row), len(row) // 2, replace=False))
        made.append(TagWindow(row, places, places, draw.integers(0, 5, len(places))))
    made[0].targets[0] = UNKNOWN
    return made


def span_windows():
    ends = [(2, 5), (0, 0), (4, 11), (6, 6)]
    return [
        AnswerWindow(row, 2, number, 0, np.ones(len(row) - 3, bool), *ends[number])
        for number, row in enumerate(random_texts())
    ]


CPU = BatchLayout(torch.device("cpu"))


def tag_batch(windows):
    return to_batch(tag_items(TagWindows(windows, np.zeros(1, int), np.zeros(0, int))), range(len(windows)), CPU)


def span_batch(windows):
    return to_batch(answer_items(AnswerWindows(windows, [])), range(len(windows)), CPU)


def tag(net, batch):
    kind = KINDS["tag"]
    return kind.sums(kind.scores(net, batch), batch)


def span(net, batch):
    kind = KINDS["answer"]
    return kind.sums(kind.scores(net, batch), batch)


def hidden_of(net, window):
    return net(pack([window.ids.tolist()], [window.segment_ids.tolist()]))


@torch.no_grad()
def test_tag_is_cross_entropy_at_the_labelled_tokens(net):
    windows = tag_windows()
    loss = correct = total = 0
    for window in windows:
        logits = net.heads["tag"](hidden_of(net, window)).double()
        for place, target in zip(window.positions, window.targets, strict=True):
            if target != UNKNOWN:
                loss -= float(logits[place].log_softmax(-1)[target])
                correct += int(logits[place].argmax() == target)
                total += 1
    sums = tag(net, tag_batch(windows))
    assert float(sums.loss) == pytest.approx(loss, rel=1e-5)
    assert (float(sums.correct), float(sums.total)) == (correct, total)


@torch.no_grad()
def test_span_is_the_mean_of_two_cross_entropies_over_all_tokens(net):
    """The question's tokens and [CLS] compete too, as in the original."""
    windows = span_windows()
    loss = correct = 0
    for window in windows:
        logits = net.heads["span"](hidden_of(net, window)).double().T
        targets = (window.start, window.end)
        loss -= sum(float(row.log_softmax(-1)[place]) for row, place in zip(logits, targets, strict=True)) / 2
        correct += all(int(row.argmax()) == place for row, place in zip(logits, targets, strict=True))
    sums = span(net, span_batch(windows))
    assert float(sums.loss) == pytest.approx(loss, rel=1e-5)
    assert (float(sums.correct), float(sums.total)) == (correct, len(windows))


def test_a_right_start_with_a_wrong_end_is_not_right(net):
    windows = span_windows()
    with torch.no_grad():
        best = by_sequence(answer_scores(net, batch := span_batch(windows)), batch.tokens.packing).argmax(1).tolist()
        both = [window._replace(start=start, end=end) for window, (start, end) in zip(windows, best, strict=True)]
        half = [both[0], *(window._replace(end=(window.end + 1) % len(window.ids)) for window in both[1:])]
        assert float(span(net, span_batch(both)).correct) == 4
        assert float(span(net, span_batch(half)).correct) == 1


@pytest.mark.parametrize(
    ("objective", "collate", "windows"), [(tag, tag_batch, tag_windows()), (span, span_batch, span_windows())]
)
def test_parts_of_a_batch_add_up_to_its_gradient(objective, collate, windows):
    """Sums, not means: accumulation and ranks agree by construction."""

    def gradients(parts):
        net = small_net()
        found = [objective(net, collate(part)) for part in parts]
        torch.stack([sums.loss for sums in found]).sum().backward()
        rows = [parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None]
        return torch.cat(rows), sum(float(sums.total) for sums in found)

    whole, total = gradients([windows])
    parts, same_total = gradients([windows[:1], windows[1:]])
    assert total == same_total
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)


def test_rows_lie_beside_their_sequence():
    rows = torch.arange(12.0).reshape(6, 2)
    laid = by_sequence(rows, pack_lengths([2, 0, 4]))
    lowest = torch.finfo(torch.float32).min
    assert laid[0, :, 0].tolist() == [0, 2, lowest, lowest]
    assert laid[1, :, 1].tolist() == [lowest] * 4
    assert laid[2, :, 1].tolist() == [5, 7, 9, 11]


def test_an_empty_sequence_of_weight_0_makes_no_nan(net):
    windows = span_windows()[:2]
    batch = span_batch(windows)
    lengths = [*(len(window.ids) for window in windows), 0]
    more = batch._replace(
        tokens=batch.tokens._replace(packing=pack_lengths(lengths)),
        targets=torch.cat([batch.targets, torch.zeros(1, 2, dtype=torch.long)]),
        weights=torch.tensor([1.0, 1.0, 0.0]),
    )
    sums = span(net, more)
    assert sums.loss.item() == pytest.approx(span(net, batch).loss.item())
    sums.loss.backward()
    assert all(row.grad is None or row.grad.isfinite().all() for row in net.parameters())


def test_a_batch_without_labels_is_no_error(net):
    window = tag_windows()[0]._replace(positions=np.zeros(0, int), units=np.zeros(0, int), targets=np.zeros(0, int))
    sums = tag(net, tag_batch([window]))
    assert (sums.loss.item(), sums.total.item()) == (0, 0)


def learnt(net, objective, batch, num_steps=60):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(num_steps):
        sums = objective(net, batch)
        optimizer.zero_grad()
        (sums.loss / sums.total).backward()
        optimizer.step()
    return net


def test_a_small_net_learns_to_tag_and_to_answer():
    """From examples to windows, a loss, scores and back to tags and texts: nothing is off by one."""
    torch.manual_seed(0)
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "ada", "##s", "in", "rome", "ran", "who", "where", "?"])
    net = Bert(
        BertConfig(**SIZES | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}), {"tag": 3, "span": 2}
    )
    initialise(net, 0.02, 0)
    sentences = [("adas ran in rome", "B O O I"), ("rome", "I"), ("in rome ran ada ran ran in in", "O I O B O O O O")]
    labels = ["O", "B", "I"]
    tagged = [words_example("0", text.split(), tuple(tags.split()), 0) for text, tags in sentences]
    encoded = encode_tags(tokenizer, tagged, labels, max_length=9, is_training=True)
    learnt(net, tag, tag_batch(encoded.windows))
    prediction = encode_tags(tokenizer, tagged, max_length=9)
    assert len(prediction.windows) > 2
    found, _ = predict_tags(net.eval(), prediction, CPU)
    assert [tuple(tags) for tags in decode_tags(prediction, found, labels)] == [one.tags for one in tagged]

    context = "in in in adas ran ran in rome ran ran ran"
    answers = {"who?": "adas", "where?": "in rome", "ran?": None}
    asked = [
        SpanExample(text, text, context, (Answer(context.index(answer), answer),) if answer else (), not answer)
        for text, answer in answers.items()
    ]
    windows = encode_answers(tokenizer, asked, Cut(max_length=14, doc_stride=4))
    assert len(windows.windows) > 3
    learnt(net.train(), span, span_batch(windows.windows), 150)
    said = predict_answers(net.eval(), asked, windows, CPU)
    threshold = choose_threshold(asked, said)
    assert [None if one.null_odds > threshold else one.guesses[0].text for one in said] == list(answers.values())
