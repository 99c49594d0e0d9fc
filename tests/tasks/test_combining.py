"""Several models as one: the mean of probabilities in float64, and the loss that belongs to it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import PIECES

from bertworks.tasks.evaluation import combine_rows, loss_of_rows
from bertworks.tasks.heads import KINDS, BatchLayout, make_items
from bertworks.text.tokenizer import Tokenizer


def rows_of(num_models, *shape, seed=0):
    return np.random.default_rng(seed).normal(0, 3, (num_models, *shape)).astype(np.float32)


def softmax(rows):
    shares = np.exp(rows.astype(np.float64) - rows.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", ["classify", "choose", "tag"])
def test_probabilities_are_averaged(kind):
    rows = rows_of(3, 8, *([5, 4] if kind == "tag" else [4]))
    together = combine_rows(kind, [list(one) for one in rows])
    np.testing.assert_allclose([softmax(row) for row in together], softmax(rows).mean(0), rtol=1e-5)


def test_the_probability_of_each_label_is_averaged():
    rows = rows_of(3, 8, 4)
    together = np.array(combine_rows("multilabel", list(rows)))
    np.testing.assert_allclose(1 / (1 + np.exp(-together)), (1 / (1 + np.exp(-rows.astype(float)))).mean(0), rtol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), [("regress", (1,)), ("answer", (6, 2))])
def test_scores_are_averaged_as_they_are(kind, shape):
    rows = rows_of(2, 8, *shape)
    np.testing.assert_allclose(np.array(combine_rows(kind, list(rows))), rows.mean(0), rtol=1e-6)


def test_a_surer_model_can_outvote_two():
    """A mean of probabilities, not a vote."""
    together = combine_rows("classify", [[np.float32([9, 0])], [np.float32([0, 0.1])], [np.float32([0, 0.1])]])
    assert together[0].argmax() == 0


def test_one_model_stays_as_it_is():
    rows = list(rows_of(1, 5, 3)[0])
    assert all(one is other for one, other in zip(combine_rows("classify", [rows]), rows, strict=True))


def test_an_ending_that_is_nearly_impossible_is_still_there():
    """What a float cannot hold must not become -inf, which says that there is no such ending."""
    together = combine_rows("choose", [[np.float32([900, -900, -np.inf])], [np.float32([900, -900])]])
    assert np.isfinite(together[0]).tolist() == [True, True]


def items_of(targets, counts=None):
    texts = ["a cat"] * sum(counts or [1] * len(targets))
    return make_items(Tokenizer(PIECES).encode_batch(texts), targets, counts=counts)


def test_the_loss_is_that_of_the_averaged_probabilities():
    rows, targets = rows_of(2, 30, 3), np.random.default_rng(1).integers(0, 3, 30)
    together = combine_rows("classify", list(rows))
    loss = loss_of_rows(KINDS["classify"], items_of(targets), together, BatchLayout(torch.device("cpu")))
    wanted = -np.log(softmax(rows).mean(0)[np.arange(30), targets]).mean()
    assert loss == pytest.approx(wanted, rel=1e-5)


def test_the_loss_of_choices_of_different_sizes():
    rows = [np.float32([1, 2]), np.float32([0, 1, 3]), np.float32([2, 0])]
    targets, counts = np.array([1, 2, 1]), [2, 3, 2]
    loss = loss_of_rows(KINDS["choose"], items_of(targets, counts), rows, BatchLayout(torch.device("cpu")))
    wanted = [
        F.cross_entropy(torch.from_numpy(row), torch.tensor(place)) for row, place in zip(rows, targets, strict=True)
    ]
    assert loss == pytest.approx(float(sum(wanted)) / 3, rel=1e-5)
