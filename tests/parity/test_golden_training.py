"""N6: five updates by the original code (google-research/bert) and by ours: the same losses, weights and state.

The original's numbers were made for this project; see the note in tests/golden.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.models.google import read_google, turned
from bertworks.models.kinds import to_ours
from bertworks.models.names import GLOBAL_STEP, SLOTS, huggingface_names, parameters
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.recipe import OptimSettings
from bertworks.train.objectives import ModelWithLoss, TrainBatch, mlm_and_nsp
from bertworks.train.optim import Optimizer, learning_rate

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = OptimSettings(lr=1e-3, warmup=2)
NUM_STEPS = 5
MOST_APART = {"weights": 5e-6, "adam_m": 2e-7, "adam_v": 2e-10}  # m is up to some 0.01, v up to some 1e-5


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "train5.npz"))


def open_network(name):
    """The network of one of the original's folders, without dropout, and what state of Adam the folder has."""
    read = read_google(GOLDEN / name, with_optimizer=True)
    known = {key: value for key, value in read.config.items() if key in BertConfig.model_fields}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net = Bert(BertConfig(**(known | still)), {"mlm": 0, "nsp": 2})
    names = [name for name, _ in net.named_parameters()]
    net.load_state_dict(to_ours(names, tensors_of(read.tensors)))
    state = {}
    if read.optimizer:
        state = {GLOBAL_STEP: torch.tensor(int(read.optimizer[GLOBAL_STEP]))}
        for slot in SLOTS:
            slots = {key.removesuffix(f".{slot}"): value for key, value in read.optimizer.items() if key.endswith(slot)}
            state |= {f"{key}.{slot}": value for key, value in to_ours(names, tensors_of(slots)).items()}
    return net.train(), state


def tensors_of(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def batch_of(golden, step):
    """One of the original's batches with its padding left out."""
    arrays = {key.split("/")[1]: value for key, value in golden.items() if key.startswith(f"batch{step}/")}
    lengths = arrays["input_mask"].sum(1)
    rows = range(len(lengths))
    ids, segments = (
        [arrays[key][row, : lengths[row]].tolist() for row in rows] for key in ("input_ids", "segment_ids")
    )
    starts = np.cumsum(lengths) - lengths
    return TrainBatch(
        pack(ids, segments),
        torch.from_numpy((arrays["masked_lm_positions"] + starts[:, None]).ravel()),
        torch.from_numpy(arrays["masked_lm_ids"].ravel()).long(),
        torch.from_numpy(arrays["masked_lm_weights"].ravel()),
        torch.from_numpy(arrays["next_sentence_labels"].ravel()).long(),
        torch.ones(len(lengths)),
    )


def train(net, optimizer, golden, steps):
    """Yield the losses (total, MLM, NSP), the norm and the rate of each update, after it was made."""
    trainee = ModelWithLoss(net, mlm_and_nsp)
    for step in steps:
        batch = batch_of(golden, step)
        # The original divides by 1e-5 more than there are masked pieces.
        counts = torch.tensor([batch.masked_weights.sum() + 1e-5, len(batch.next_labels)])
        loss, sums = trainee(batch, counts)
        loss.backward()
        norm, rate = optimizer.gradient_norm(), learning_rate(SETTINGS, step, NUM_STEPS)
        optimizer.step(rate, norm)
        net.zero_grad()
        yield np.array([loss.item(), *(sums[:, 0] / counts).tolist()]), norm.item(), rate


def originals(golden, prefix, num_layers):
    """The original's tensors under a prefix by Hugging Face's names, Adam's state included."""
    every = [p for parameter in parameters(num_layers) for p in (parameter, *parameter.slots())]
    return {p.huggingface: turned(golden[prefix + p.google], p) for p in every if prefix + p.google in golden}


def ours_by_their_names(net, optimizer):
    found = {}
    state = optimizer.state_dict()
    for name, parameter in net.named_parameters():
        theirs = huggingface_names(name)
        for ending, tensor in [("", parameter.detach()), *((f".{slot}", state[f"{name}.{slot}"]) for slot in SLOTS)]:
            parts = tensor.chunk(len(theirs))
            found |= {other + ending: part.numpy() for other, part in zip(theirs, parts, strict=True)}
    return found


def furthest(net, optimizer, expected):
    """The largest difference of weights, m and v from the original's."""
    ours, apart = ours_by_their_names(net, optimizer), {"weights": 0.0, "adam_m": 0.0, "adam_v": 0.0}
    assert len(expected) >= 12
    for name, tensor in expected.items():
        kind = name.rpartition(".")[2]
        kind = kind if kind in SLOTS else "weights"
        apart[kind] = max(apart[kind], float(np.abs(ours[name] - tensor).max()))
    return apart


def test_five_steps_are_the_originals(golden):
    net, _ = open_network("model_plain")
    optimizer = Optimizer(net, SETTINGS)
    kinds = ("loss_total", "loss_mlm", "loss_nsp")
    for step, (losses, norm, rate) in enumerate(train(net, optimizer, golden, range(NUM_STEPS))):
        apart = np.abs(losses - [golden[kind][step] for kind in kinds]).max()
        norm_apart = abs(norm / golden["grad_global_norm_before_clip"][step] - 1)
        after = furthest(net, optimizer, originals(golden, f"step{step + 1}/", 3))
        print(f"step {step + 1}: losses {apart:.1e}, norm {norm_apart:.1e}, weights {after['weights']:.1e}")
        assert apart < 1e-5
        assert norm_apart < 1e-5
        assert rate == pytest.approx(golden["learning_rate_by_formula"][step], rel=1e-12)
        assert after["weights"] < MOST_APART["weights"]
    check_the_end(net, optimizer, golden)


def test_resumed_after_three_steps_the_last_two_are_the_originals(golden):
    net, state = open_network("model_trained3")
    optimizer = Optimizer(net, SETTINGS)
    optimizer.load_state_dict(state)
    for step, (losses, _, _) in enumerate(train(net, optimizer, golden, (3, 4)), start=3):
        assert abs(losses[0] - golden["loss_total"][step]) < 1e-5
    check_the_end(net, optimizer, golden)


def check_the_end(net, optimizer, golden):
    expected = originals(golden, "final/", 3)
    assert sum(name.endswith(SLOTS) for name in expected) >= 20
    apart = furthest(net, optimizer, expected)
    print("at the end:", ", ".join(f"{kind} {value:.1e}" for kind, value in apart.items()))
    assert all(apart[kind] < most for kind, most in MOST_APART.items())
    assert optimizer.state_dict()[GLOBAL_STEP] == golden["final/global_step"]


def test_the_state_after_three_steps_is_the_originals(golden):
    net, _ = open_network("model_plain")
    optimizer = Optimizer(net, SETTINGS)
    for _ in train(net, optimizer, golden, range(3)):
        pass
    _, expected = open_network("model_trained3")
    ours = optimizer.state_dict()
    assert ours.keys() == expected.keys()
    assert ours.pop(GLOBAL_STEP) == expected[GLOBAL_STEP] == 3
    for name, tensor in ours.items():
        assert (tensor - expected[name]).abs().max() < MOST_APART[name.rpartition(".")[2]], name
