"""What bfloat16 and int8 on a CPU cost in quality: a model is fine-tuned on five tasks and measured in each.

    python benchmarks/cpu_quality.py --tasks DIR --out RUNS [--json FILE] [TASK ...]

DIR holds the tasks' own files, unpacked: glue/STS-B, glue/SST-2, glue/MRPC, conll2003, squad. Models that RUNS has are
measured and not trained again. Training is on a GPU where there is one; measuring is on the CPU. The bar: 99.5 % of the
score in float32.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertworks as bw
from bertworks.nn.layers import cpu_instructions, is_fast_on_cpu
from bertworks.tasks import find_task

FOLDERS = {
    "stsb": "glue/STS-B", "sst2": "glue/SST-2", "mrpc": "glue/MRPC", "conll2003": "conll2003", "squad1": "squad",
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "int8")
BAR = 99.5


def measure(task: str, model: str, data: Path, run: Path, overrides: Sequence[str]) -> dict[str, Any]:
    if not (run / "model").exists():
        bw.finetune(task, model=model, data=data, out=run, overrides=list(overrides), resume=run.exists(), quiet=True)
    metric, scores, seconds = find_task(task).metrics[0], {}, {}
    for dtype in DTYPES:
        started = time.perf_counter()
        scores[dtype] = bw.evaluate(run, data, task=task, device="cpu", dtype=dtype)[metric]
        seconds[dtype] = round(time.perf_counter() - started, 1)
    return {"metric": metric, "scores": scores, "seconds": seconds}


def cosines(run: Path, texts: Sequence[str]) -> dict[str, float]:
    """Return the least cosine of a text's mean vector to that of float32."""
    expected = bw.load(run, device="cpu").embed(texts, truncate=True, normalize=True)
    found = {dtype: bw.load(run, device="cpu", dtype=dtype).embed(texts, truncate=True) for dtype in DTYPES[1:]}
    return {
        dtype: float(((vectors * expected).sum(1) / np.linalg.norm(vectors, axis=1)).min())
        for dtype, vectors in found.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", default=list(FOLDERS), metavar="TASK", help=", ".join(FOLDERS))
    options.add_argument("--tasks", type=Path, required=True, help="folder with the tasks' files")
    options.add_argument("--out", type=Path, required=True, help="folder for the runs")
    options.add_argument("--model", default="mini")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of fine-tuning")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    instructions = sorted(name for name in cpu_instructions() if name.startswith(("amx", "avx512_", "avx_vnni")))
    print("fast here:", ", ".join(dtype for dtype in DTYPES[1:] if is_fast_on_cpu(dtype)) or "nothing", flush=True)
    results: dict[str, Any] = {"model": given.model, "torch": torch.__version__, "instructions": instructions}
    for task in given.names:
        data = given.tasks / FOLDERS[task]
        found = results[task] = measure(task, given.model, data, given.out / task, given.set)
        texts = [" ".join(np.random.default_rng(n).choice(TEXT.split(), 1 + 3 * n % 90)) for n in range(64)]
        found["least cosine"] = cosines(given.out / task, texts)
        base = found["scores"]["float32"]
        shown = [f"{dtype} {100 * score:.2f} ({100 * score / base:.2f} %)" for dtype, score in found["scores"].items()]
        least = ", ".join(f"{dtype} {cosine:.5f}" for dtype, cosine in found["least cosine"].items())
        print(f"{task:<10} {found['metric']:<9} {'   '.join(shown)}   least cosine: {least}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    ratios = [100 * results[task]["scores"]["int8"] / results[task]["scores"]["float32"] for task in given.names]
    print(f"int8 keeps at least {min(ratios):.2f} % (bar {BAR})")


TEXT = (
    "the river bank was cold and the old man who lived there told a story about two ships money war 1918 London "
    "music she wrote played against a team in spring but nobody saw it again until markets fell by three percent"
)

if __name__ == "__main__":
    main()
