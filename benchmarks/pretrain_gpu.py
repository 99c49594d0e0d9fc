"""Pre-training steps on one GPU: ours beside transformers' BertForPreTraining, same shapes, same dropout, same run.

The peer has SDPA, bf16 autocast, fused AdamW, torch.compile, and computes the MLM head on every position, as it does.
Where all lengths are equal it gets the faster of with and without a mask. Real lengths are those of batches from our
own loader; there the peer pads to 128, and the ratio is that of the time per batch. A step is forward, backward,
clipping and update. Each figure is the median of several rounds of steps, the two sides' rounds alternating.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, preset
from bertworks.nn.layers import initialise
from bertworks.nn.packing import Tokens, pack_lengths
from bertworks.train.batch import TrainBatch
from bertworks.train.objectives import mlm_and_nsp
from bertworks.train.trainee import Trainee

Step = Callable[[], torch.Tensor]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MASK_RATE = 0.15
VOCABULARY = 30_522


def lengths_of(case: str, num_sequences: int, max_length: int) -> np.ndarray:
    """Equal lengths, or lengths like those of the original data script: most full, a tenth short."""
    if case == "equal":
        return np.full(num_sequences, max_length)
    rng = np.random.default_rng(0)
    full = rng.integers(max_length - 24, max_length + 1, num_sequences)
    return np.where(rng.random(num_sequences) < 0.12, rng.integers(5, max_length + 1, num_sequences), full)


def ours_batch(lengths: np.ndarray, flash: bool) -> TrainBatch:
    num_tokens = int(lengths.sum())
    room = -(-num_tokens // 128) * 128
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1_000, VOCABULARY, (room,), generator=generator)
    positions = np.concatenate([np.arange(length) for length in lengths] + [np.arange(room - num_tokens)])
    all_lengths = [*lengths.tolist(), room - num_tokens]
    masked = torch.randperm(num_tokens, generator=generator)[: int(MASK_RATE * num_tokens)].sort().values
    position_ids = torch.from_numpy(positions)
    packing = pack_lengths(all_lengths, DEVICE, flash=flash)._replace(max_length=int(lengths.max()))
    tokens = Tokens(ids.to(DEVICE), (position_ids > 60).long().to(DEVICE), position_ids.to(DEVICE), packing)
    weights = torch.ones(len(masked), device=DEVICE)
    labels = torch.randint(0, 2, (len(lengths),), generator=generator).to(DEVICE)
    return TrainBatch(
        tokens, masked.to(DEVICE), ids[masked].to(DEVICE), weights, labels, torch.ones(len(lengths), device=DEVICE)
    )


def ours(config: BertConfig, lengths: np.ndarray, compiled: bool = True) -> Step:
    flash = DEVICE == "cuda"
    seed = torch.zeros((), dtype=torch.int32, device=DEVICE)
    net = Bert(config, {"mlm": 0, "nsp": 2})
    initialise(net, config.initializer_range, seed=0)
    trainee = Trainee(net, mlm_and_nsp, torch.bfloat16 if flash else torch.float32).to(DEVICE).train()
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=1e-4, weight_decay=0.01, fused=flash)
    batch = ours_batch(lengths, flash)
    batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=seed))
    counts = torch.tensor([len(batch.masked_ids), len(lengths)], dtype=torch.float32, device=DEVICE)
    forward = torch.compile(trainee) if compiled and flash else trainee

    def step() -> torch.Tensor:
        seed.add_(1)
        loss, _ = forward(batch, counts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainee.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def peer(config: BertConfig, lengths: np.ndarray, masked: bool) -> Step:
    from transformers import BertConfig as PeerConfig
    from transformers import BertForPreTraining

    raw = {name: value for name, value in config if name not in ("direction", "positions")}
    model = BertForPreTraining(PeerConfig(**raw, attn_implementation="sdpa")).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=DEVICE == "cuda")
    num_sequences, longest = len(lengths), int(lengths.max())
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1_000, VOCABULARY, (num_sequences, longest), generator=generator)
    real = torch.arange(longest)[None] < torch.from_numpy(lengths)[:, None]
    chosen = (torch.rand(ids.shape, generator=generator) < MASK_RATE) & real
    inputs = {
        "input_ids": ids,
        "token_type_ids": (torch.arange(longest)[None].expand(ids.shape) > 60).long(),
        "labels": torch.where(chosen, ids, -100),
        "next_sentence_label": torch.randint(0, 2, (num_sequences,), generator=generator),
    } | ({"attention_mask": real.long()} if masked else {})
    inputs = {name: value.to(DEVICE) for name, value in inputs.items()}
    forward = torch.compile(model) if DEVICE == "cuda" else model

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def milliseconds(step: Step, num_steps: int) -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(num_steps):
        step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / num_steps * 1e3


CASES: dict[str, dict[str, Any]] = {
    "base@128": {"size": "base", "batch": 512, "length": 128, "lengths": "equal", "dropout": 0.1, "bar": 1.45},
    "base@512": {"size": "base", "batch": 128, "length": 512, "lengths": "equal", "dropout": 0.1, "bar": 1.45},
    "large@128": {"size": "large", "batch": 256, "length": 128, "lengths": "equal", "dropout": 0.1, "bar": 1.25},
    "base@128-no-dropout": {
        "size": "base",
        "batch": 512,
        "length": 128,
        "lengths": "equal",
        "dropout": 0.0,
        "bar": 1.5,
    },
    "base@128-real": {"size": "base", "batch": 512, "length": 128, "lengths": "real", "dropout": 0.1, "bar": 1.5},
    "small@128": {"size": "small", "batch": 1024, "length": 128, "lengths": "equal", "dropout": 0.1, "bar": None},
    "mini@128": {"size": "mini", "batch": 1024, "length": 128, "lengths": "equal", "dropout": 0.1, "bar": None},
    "tiny": {"size": "2x64", "batch": 4, "length": 32, "lengths": "real", "dropout": 0.1, "bar": None},
}


def measure(name: str, rounds: int, num_steps: int, with_peer: bool) -> dict[str, Any]:
    case = CASES[name]
    changes = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
    config = preset(case["size"], **changes)
    lengths = lengths_of(case["lengths"], case["batch"], case["length"])
    steps = {"ours": ours(config, lengths)}
    if with_peer:
        steps["peer, mask"] = peer(config, lengths, masked=True)
        if case["lengths"] == "equal":
            steps["peer, no mask"] = peer(config, lengths, masked=False)
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for kind, step in steps.items():
        started = time.perf_counter()
        milliseconds(step, 3)
        print(f"  {name} {kind}: warm after {time.perf_counter() - started:.0f} s", flush=True)
    for _ in range(rounds):
        for kind, step in steps.items():
            times[kind].append(milliseconds(step, num_steps))
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    tokens = case["batch"] * case["length"]  # padding counted, for both
    result = {"case": name, **{f"{kind}, thousand tokens/s": tokens / ms for kind, ms in medians.items()}}
    if with_peer:
        fastest = min(ms for kind, ms in medians.items() if kind != "ours")
        result |= {"ratio": fastest / medians["ours"], "bar": case["bar"]}
    if DEVICE == "cuda":
        result["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return result


def profile(name: str) -> None:
    """Print where the time of our step goes, by kernel."""
    case = CASES[name]
    changes = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
    step = ours(preset(case["size"], **changes), lengths_of(case["lengths"], case["batch"], case["length"]))
    milliseconds(step, 5)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        milliseconds(step, 5)
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=70))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", default=[name for name in CASES if name != "tiny"])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--no-peer", action="store_true")
    options.add_argument("--profile", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    results = []
    for name in given.cases:
        if given.profile:
            profile(name)
            continue
        results.append(measure(name, given.rounds, given.steps, not given.no_peer))
        print(json.dumps(results[-1]), flush=True)
        torch.compiler.reset()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
