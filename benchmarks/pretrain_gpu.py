"""Pre-training steps on one GPU: ours beside transformers' BertForPreTraining, same shapes, same dropout, same run.

The peer has SDPA, bf16 autocast, fused AdamW, torch.compile, and computes the MLM head on every position, as it does.
Where all lengths are equal it gets the faster of with and without a mask. A step is forward, backward, clipping and
update. Each figure is the median of several rounds of steps, the two sides' rounds alternating.

With `--data`, a folder of `bertworks prepare` (uncased, 30,522 pieces), real batches are measured too: ours is then the
training loop itself with its loader, and the share of time that it waits for a batch is given; the peer gets ready-made
instances of the same loader, 512 of them padded to 128. There the figure is instances a second times 128.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.config import DataSettings
from bertworks.data.loader import Loader, shape_for
from bertworks.data.shards import Dataset
from bertworks.nn.attention import Tokens, pack_lengths
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, preset
from bertworks.nn.layers import initialise
from bertworks.recipe import OptimSettings, load_recipe
from bertworks.train.cuda_graph import Replayed
from bertworks.train.log import Progress
from bertworks.train.objectives import ModelWithLoss, TrainBatch, mlm_and_nsp
from bertworks.train.optim import Optimizer
from bertworks.train.pretrain import Pretraining
from bertworks.train.trainer import Trainer

Step = Callable[[], torch.Tensor]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MASK_RATE = 0.15
VOCABULARY = 30_522
ADAMW = OptimSettings(name="adamw")


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
    trainee = ModelWithLoss(net, mlm_and_nsp, torch.bfloat16 if flash else torch.float32).to(DEVICE).train()
    optimizer = Optimizer(net, ADAMW)
    batch = ours_batch(lengths, flash)
    batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=seed))
    counts = torch.tensor([len(batch.masked_ids), len(lengths)], dtype=torch.float32, device=DEVICE)
    forward = torch.compile(trainee) if compiled and flash else trainee
    recorded = Replayed(forward, optimizer.weights()) if flash else None

    def step() -> torch.Tensor:
        seed.add_(1)
        if recorded:
            sums = recorded(batch, counts)
        else:
            loss, sums = forward(batch, counts)
            loss.backward()
        optimizer.step(1e-4, optimizer.gradient_norm())
        optimizer.clear_gradients()
        return (sums[:, 0] / counts).sum()

    return step


class WithLoader:
    """The training loop on prepared data: how long it takes, how much of it is waiting, and how many instances."""

    def __init__(self, data: Path, size: str, batch_size: int, length: int) -> None:
        settings = [f"model.preset={size}", f"data.max_length={length}", f"train.batch_size={batch_size}"]
        recipe = load_recipe("tiny-cpu", [*settings, "model.max_positions=512", "optim.name=adamw", "optim.lr=1e-4"])
        self.trainer = Trainer(Pretraining(recipe, Dataset(data)), recipe, Path(), torch.device(DEVICE))
        nothing: Any = lambda *_: None  # noqa: E731
        self.trainer.report = self.trainer.evaluate = self.trainer.save = nothing  # type: ignore[method-assign]
        self.batches = self.trainer.task.batches(Progress())
        self.trainer.task.batches = lambda _: self  # type: ignore[assignment, method-assign, return-value]
        self.progress, self.waited, self.instances = Progress(), 0.0, 0.0
        self.batch_size, self.elapsed = batch_size, 0.0

    def __next__(self) -> Any:
        started = time.perf_counter()
        parts, state = next(self.batches)
        self.waited += time.perf_counter() - started
        self.instances += sum(part.counts[1] for part in parts)
        return parts, state

    def close(self) -> None:
        """Keep the batches open: training goes on with them."""

    def milliseconds(self, num_steps: int) -> float:
        """Train so many steps; returns the time for as many instances as a batch of the peer has."""
        self.waited = self.instances = 0.0
        update = {"max_steps": self.progress.step + num_steps}
        self.trainer.settings = self.trainer.settings.model_copy(update=update)
        started = time.perf_counter()
        self.progress = self.trainer.train(self.progress).progress
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        self.elapsed = time.perf_counter() - started
        return self.elapsed / self.instances * self.batch_size * 1e3


def real_inputs(data: Path, num_sequences: int, longest: int) -> dict[str, torch.Tensor]:
    """Return instances of our loader as the peer wants them."""
    settings = DataSettings(max_length=longest)
    loader = Loader(Dataset(data), settings, shape_for(settings, sequences=num_sequences))
    ((packed,), _) = next(loader.batches())
    starts = packed.cumulative_lengths[: num_sequences + 1]
    assert packed.next_weights.sum() == num_sequences, "a micro-batch of that many sequences is full"
    labels = np.full(len(packed.token_ids), -100)
    real = packed.masked_weights > 0
    labels[packed.masked_positions[real]] = packed.masked_ids[real]

    def rows(values: np.ndarray, filler: int) -> torch.Tensor:
        table = torch.full((num_sequences, longest), filler)
        for number, (first, end) in enumerate(itertools.pairwise(starts)):
            table[number, : end - first] = torch.from_numpy(values[first:end])
        return table

    return {
        "input_ids": rows(packed.token_ids, 0),
        "token_type_ids": rows(packed.segment_ids, 0),
        "labels": rows(labels, -100),
        "next_sentence_label": torch.from_numpy(packed.next_labels).long(),
        "attention_mask": rows(np.ones_like(packed.token_ids), 0),
    }


def equal_inputs(num_sequences: int, longest: int, masked: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1_000, VOCABULARY, (num_sequences, longest), generator=generator)
    chosen = torch.rand(ids.shape, generator=generator) < MASK_RATE
    return {
        "input_ids": ids,
        "token_type_ids": (torch.arange(longest)[None].expand(ids.shape) > 60).long(),
        "labels": torch.where(chosen, ids, -100),
        "next_sentence_label": torch.randint(0, 2, (num_sequences,), generator=generator),
    } | ({"attention_mask": torch.ones_like(ids)} if masked else {})


def peer(config: BertConfig, inputs: dict[str, torch.Tensor]) -> Step:
    from transformers import BertConfig as PeerConfig
    from transformers import BertForPreTraining

    raw = {name: value for name, value in config if name not in ("direction", "positions")}
    model = BertForPreTraining(PeerConfig(**raw, attn_implementation="sdpa")).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=DEVICE == "cuda")
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
    "base@128": {"size": "base", "batch": 512, "length": 128, "dropout": 0.1, "bar": 1.45},
    "base@512": {"size": "base", "batch": 128, "length": 512, "dropout": 0.1, "bar": 1.45},
    "large@128": {"size": "large", "batch": 256, "length": 128, "dropout": 0.1, "bar": 1.25},
    "base@128-no-dropout": {"size": "base", "batch": 512, "length": 128, "dropout": 0.0, "bar": 1.5},
    "base@128-real": {"size": "base", "batch": 512, "length": 128, "dropout": 0.1, "bar": 1.5, "real": True},
    # Bars of their own, in thousand tokens/s; the peer is not measured.
    "small@128": {"size": "small", "batch": 1024, "length": 128, "dropout": 0.1, "bar": 3_400, "alone": True},
    "mini@128": {"size": "mini", "batch": 1024, "length": 128, "dropout": 0.1, "bar": 8_000, "alone": True},
}
# For trying this script without a GPU.
TINY = {"size": "2x64", "batch": 8, "length": 32, "dropout": 0.1, "bar": None}
CASES_ALL = CASES | {"tiny": TINY, "tiny-real": TINY | {"real": True}}


def measure(
    name: str, rounds: int, num_steps: int, data: Path | None, *, with_peer: bool, mask_only: bool
) -> dict[str, Any]:
    case = CASES_ALL[name]
    changes = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
    config, size = preset(case["size"], **changes), (case["batch"], case["length"])
    works: dict[str, Callable[[int], float]] = {}
    loop = WithLoader(data, case["size"], *size) if case.get("real") and data else None
    works["ours"] = loop.milliseconds if loop else partial(milliseconds, ours(config, np.full(*size)))
    if with_peer and not case.get("alone"):
        inputs = {"peer, mask": real_inputs(data, *size) if loop and data else equal_inputs(*size, masked=True)}
        if not loop and not mask_only:
            inputs["peer, no mask"] = equal_inputs(*size, masked=False)
        works |= {kind: partial(milliseconds, peer(config, batch)) for kind, batch in inputs.items()}
    result = {"case": name} | timed(name, works, rounds, num_steps, case["batch"] * case["length"])
    speeds = {kind: value for kind, value in result.items() if kind.startswith("peer")}
    reached = result["ours, thousand tokens/s"]
    if speeds:
        reached = result["ratio"] = reached / max(speeds.values())
    result |= {"bar": case["bar"], "reached": case["bar"] is None or reached >= case["bar"]}
    if loop:
        result["waited for input, share"] = loop.waited / loop.elapsed
    if DEVICE == "cuda":
        result["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return result


def timed(
    name: str, works: dict[str, Callable[[int], float]], rounds: int, num_steps: int, num_tokens: int
) -> dict[str, Any]:
    """Return thousand tokens a second of each, their rounds alternating."""
    times: dict[str, list[float]] = {kind: [] for kind in works}
    for kind, work in works.items():
        started = time.perf_counter()
        work(3)
        print(f"  {name} {kind}: warm after {time.perf_counter() - started:.0f} s", flush=True)
    for _ in range(rounds):
        for kind, work in works.items():
            times[kind].append(work(num_steps))
    return {f"{kind}, thousand tokens/s": num_tokens / statistics.median(values) for kind, values in times.items()}


def profile(name: str) -> None:
    """Print where the time of our step goes, by kernel."""
    case = CASES_ALL[name]
    changes = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
    step = ours(preset(case["size"], **changes), np.full(case["batch"], case["length"]))
    milliseconds(step, 5)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        milliseconds(step, 5)
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=70))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    options.add_argument("--data", type=Path, help="prepared data for the case with real batches")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--no-peer", action="store_true")
    options.add_argument("--mask-only", action="store_true", help="leave out the peer without a mask")
    options.add_argument("--profile", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    results = []
    for name in given.cases:
        if given.profile:
            profile(name)
            continue
        if CASES_ALL[name].get("real") and not given.data:
            print(f"  {name}: left out, it needs --data")
            continue
        peers = {"with_peer": not given.no_peer, "mask_only": given.mask_only}
        results.append(measure(name, given.rounds, given.steps, given.data, **peers))
        print(json.dumps(results[-1]), flush=True)
        torch.compiler.reset()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
