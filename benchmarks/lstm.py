"""Training steps of LSTMs on a CPU: sequences of about the same length padded, as ours are, beside torch's packed rows.

    python benchmarks/lstm.py [--threads 1] [--rounds 3]

Shapes are those of ELMo's and of BiLSTMs on features. Medians of the ratios of rounds in which both take turns.
"""

import argparse
import platform
import statistics
from pathlib import Path

import torch
from measuring import seconds

from bertworks.nn import bilstm
from bertworks.nn.attention import pack_lengths

SHAPES = {  # sequences, words of each, width, cells, what cells are projected to
    "ELMo mini, 16 x 128": (16, 128, 128, 512, 128),
    "ELMo mini, 64 x 128": (64, 128, 128, 512, 128),
    "BiLSTM of two layers, 32 x 128": (32, 128, 512, 256, 0),
    "BiLSTM of two layers, 32 x 16 to 60": (32, 60, 512, 256, 0),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{processor()}, {given.threads} threads, torch {torch.__version__}")
    for name, (sequences, longest, width, cells, projected) in SHAPES.items():
        lengths = [longest] * sequences
        if "to" in name:
            lengths = torch.randint(16, longest + 1, (sequences,), generator=torch.manual_seed(0)).tolist()
        packing, x_TD = pack_lengths(lengths), torch.randn(sum(lengths), width, requires_grad=True)
        options_of = {"proj_size": projected} if projected else {"num_layers": 2, "bidirectional": True}
        lstm = torch.nn.LSTM(width, cells, **options_of)
        steps = bilstm.steps_of(packing)

        def step(most: float) -> None:
            bilstm._MOST_PADDED = most
            bilstm.run_lstm(lstm, x_TD, packing, steps).sum().backward()  # noqa: B023 -- called at once

        step(0)
        step(2)
        times = [(seconds(lambda: step(2)), seconds(lambda: step(0))) for _ in range(given.rounds)]
        padded, packed = (1_000 * statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(theirs / own for own, theirs in times)
        print(f"  {name:<38} padded {padded:8,.1f} ms, packed {packed:8,.1f} ms: {ratio:.1f} times as fast")


def processor() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


if __name__ == "__main__":
    main()
