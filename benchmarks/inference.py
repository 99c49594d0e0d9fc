"""The encoder beside transformers' BertModel (SDPA, fp32) on this machine's cores, on the same weights and ids.

Equal lengths: 8 texts of 128 tokens. Mixed lengths: batches of 32 texts as they come, lengths log-normal with a median
of 40 tokens from 8 to 512; the peer pads each batch to its longest text, ours packs it. Batch 1: texts of 8 to 24
tokens. The rounds of the two alternate and the median of their ratios is given, for the machine's speed changes with
its load. Loading: a fresh process that opens the folder, imports not counted.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import parser, report, seconds

from bertworks.models.kinds import read_model, write_model
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, preset
from bertworks.nn.layers import freeze, initialise

SIZES = {"MiniLM-size": preset("6x384x12"), "base-size": preset("base")}
Batch = list[list[int]]


def batches(config: BertConfig, rng: np.random.Generator) -> dict[str, tuple[list[Batch], str]]:
    def texts(lengths: Any) -> Batch:
        return [rng.integers(1_000, config.vocab_size, length).tolist() for length in lengths]

    mixed = np.exp(rng.normal(np.log(40), 0.9, (2, 32))).clip(8, 512).astype(int)
    return {
        "equal lengths, 8 x 128": ([texts([128] * 8)], "1.0"),
        "mixed lengths, 32 as they come": ([texts(row) for row in mixed], "2.5"),
        "batch 1, short texts": ([texts([length]) for length in range(8, 25, 2)], "1.15"),
    }


def ours(net: Bert) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: net(pack(batch))


def peer(folder: Path) -> Callable[[Batch], torch.Tensor]:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def forward(batch: Batch) -> torch.Tensor:
        longest = max(map(len, batch))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in batch])
        if all(len(text) == longest for text in batch):
            return model(ids).last_hidden_state
        return model(ids, attention_mask=(ids != 0).long()).last_hidden_state

    return forward


def all_of(forward: Callable[[Batch], torch.Tensor], work: list[Batch]) -> None:
    for batch in work:
        forward(batch)


def ratio(first: Callable[[], object], second: Callable[[], object], rounds: int) -> float:
    """Return how many times as long the second takes."""
    first(), second()
    return statistics.median(seconds(second) / seconds(first) for _ in range(rounds))


def forward_ratios(name: str, config: BertConfig, folder: Path) -> dict[str, float]:
    opened = read_model(folder).net.eval()
    freeze(opened)
    net, theirs = ours(opened), peer(folder)
    results = {}
    for case, (work, bar) in batches(config, np.random.default_rng(0)).items():
        rounds = 5 if name == "base-size" else 15
        results[f"{name}, {case}: ratio (bar: {bar})"] = ratio(
            partial(all_of, net, work), partial(all_of, theirs, work), rounds
        )
    return results


_LOADERS = {
    "ours": "from bertworks.inference.model import load as f",
    "transformers": "from transformers import AutoModel; f = AutoModel.from_pretrained",
}
_LOAD = """
import sys, time
{imports}
started = time.perf_counter()
model = f(sys.argv[1])
seconds = time.perf_counter() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
"""


def load_once(kind: str, folder: Path) -> tuple[float, float]:
    """Return the seconds and the peak of memory in MB of opening a folder in a fresh process."""
    code = _LOAD.format(imports=_LOADERS[kind])
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    return float(found[-2]), float(found[-1])


def load_ratios(name: str, folder: Path) -> dict[str, float]:
    rounds = [(load_once("ours", folder), load_once("transformers", folder)) for _ in range(5)]
    return {
        f"{name}, loading: ratio (bar: 3)": statistics.median(theirs[0] / mine[0] for mine, theirs in rounds),
        f"{name}, loading: ours, ms": 1_000 * statistics.median(mine[0] for mine, _ in rounds),
        f"{name}, loading: peak memory, MB": statistics.median(mine[1] for mine, _ in rounds),
        f"{name}, loading: peak memory of the peer, MB": statistics.median(theirs[1] for _, theirs in rounds),
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    print(f"the encoder against transformers, fp32, {torch.get_num_threads()} threads")
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        for size, config in SIZES.items():
            folder = Path(name) / size
            folder.mkdir()
            net = Bert(config).eval()
            initialise(net, config.initializer_range, seed=0)
            write_model(folder, net)
            (folder / "vocab.txt").write_text(
                "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(30_517))]) + "\n"
            )
            results |= forward_ratios(size, config, folder) | load_ratios(size, folder)
    report(results, options.json)


if __name__ == "__main__":
    main()
