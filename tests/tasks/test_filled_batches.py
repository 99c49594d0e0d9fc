"""Batches filled up to few sizes: what fills up changes nothing, and wastes little."""

import numpy as np
import pytest
import torch
from small_models import write_small_model
from toy_tasks import SIZES, write_task

import bertworks as bw
from bertworks.tasks.heads import KINDS, BatchLayout, filling, kind_of, to_batch
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import Cut

CPU = BatchLayout(torch.device("cpu"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_item_that_fills_up_adds_nothing_to_a_loss_or_a_gradient(tmp_path, kind):
    train, dev = write_task(tmp_path / "files", kind)
    dataset = open_own(kind, {"train": train, "dev": dev})
    head = KINDS[kind].head
    folder = write_small_model(tmp_path / "model", {head: KINDS[kind].num_outputs(dataset.task)}, **SIZES)
    model = bw.load(folder, device="cpu")
    net = model.net.requires_grad_(True)
    examples = list(dataset.examples("train"))
    items = kind_of(dataset.task).encode(examples, model.tokenizer, dataset.task, Cut(16), is_training=True)
    found = []
    first = int(items.targets.reshape(len(items), -1)[:, 0].argmax())  # of a choice, one that a lone ending has not
    for layout in (CPU, CPU._replace(filled=16)):
        batch = to_batch(items, range(first, first + 7), layout)
        sums = KINDS[kind].sums(KINDS[kind].scores(net, batch), batch)
        net.zero_grad()
        sums.loss.backward()
        found.append([*sums, *(weight.grad for weight in net.parameters() if weight.grad is not None)])
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-4, atol=1e-5)


def test_batches_of_a_task_have_few_sizes():
    draw = np.random.default_rng(0)
    for mean, longest in ((13, 66), (53, 128), (170, 384), (1, 3)):
        totals = draw.poisson(mean, (500, 32)).clip(1, longest).sum(1)
        missing = np.array([filling(int(total), longest) for total in totals])
        assert missing.min() >= 1
        assert missing.max() <= longest
        assert len(set(totals + missing)) <= 20
        assert missing.mean() / totals.mean() < 0.08
