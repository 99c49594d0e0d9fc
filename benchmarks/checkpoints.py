"""Reading a TensorFlow checkpoint of 400 MB, the size of BERT-base, with every checksum verified.

Beside it the floor, copying the same bytes out of the file without looking at them, and TensorFlow itself where it is
installed. The file lies in the system's memory already; each figure is the best of several. "first" is a fresh
process without anything compiled before: Python, imports, compiling and reading.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from measuring import parser, report, seconds

from bertworks.models.tf_bundle import Bundle, write_bundle

NUM_TENSORS, SHAPE = 50, (2_000, 1_000)
MEGABYTES = NUM_TENSORS * SHAPE[0] * SHAPE[1] * 4 / 1e6
NUM_ROUNDS = 5
FIRST = """
import sys
from bertworks.models.tf_bundle import Bundle
bundle = Bundle(sys.argv[1])
for name in bundle.names():
    bundle.read(name)
"""


def read_bundle(prefix: Path) -> None:
    bundle = Bundle(prefix)
    for name in bundle.names():
        bundle.read(name)


def copy_bytes(prefix: Path) -> None:
    with open(f"{prefix}.data-00000-of-00001", "rb") as stream:
        for _ in range(NUM_TENSORS):
            np.fromfile(stream, np.float32, SHAPE[0] * SHAPE[1])


def read_by_tensorflow(prefix: Path) -> None:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)


def read_in_a_fresh_process(prefix: Path, cache: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", FIRST, str(prefix)], check=True, env=environment)


def best(work: Callable[[Path], object], prefix: Path) -> float:
    return min(seconds(lambda: work(prefix)) for _ in range(NUM_ROUNDS))


def main() -> None:
    options = parser(__doc__).parse_args()
    print(f"reading a checkpoint of {MEGABYTES:.0f} MB, checksums verified")
    random = np.random.default_rng(0)
    tensors = {f"layer_{number}/kernel": random.random(SHAPE, np.float32) for number in range(NUM_TENSORS)}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model.ckpt"
        results["writing, MB/s"] = MEGABYTES / seconds(lambda: write_bundle(prefix, tensors))
        ours, floor = best(read_bundle, prefix), best(copy_bytes, prefix)
        results["reading, MB/s (bar: over 400)"] = MEGABYTES / ours
        results["copying the bytes unseen, MB/s"] = MEGABYTES / floor
        if find_spec("tensorflow"):
            theirs = best(read_by_tensorflow, prefix)
            results["TensorFlow reading, MB/s"] = MEGABYTES / theirs
            results["TensorFlow's time / ours"] = theirs / ours
        cache = Path(folder) / "cache"
        results["first, s"] = seconds(lambda: read_in_a_fresh_process(prefix, cache))
        results["fresh process, compiled before, s"] = seconds(lambda: read_in_a_fresh_process(prefix, cache))
    report(results, options.json)


if __name__ == "__main__":
    main()
