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


def train(task: str, model: str, data: Path, run: Path, overrides: Sequence[str]) -> None:
    started = time.perf_counter()
    bw.finetune(task, model=model, data=data, out=run, overrides=list(overrides), resume=run.exists(), quiet=True)
    print(f"{task}: trained in {time.perf_counter() - started:.0f} s", flush=True)


def measure(task: str, data: Path, run: Path) -> dict[str, Any]:
    metric, scores, seconds = find_task(task).metrics[0], {}, {}
    for dtype in DTYPES:
        started = time.perf_counter()
        scores[dtype] = bw.evaluate(run, data, task=task, device="cpu", dtype=dtype)[metric]
        seconds[dtype] = round(time.perf_counter() - started, 1)
    return {"metric": metric, "scores": scores, "seconds": seconds}


def cosines(run: Path, texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean cosine of texts' mean vectors to those of float32, and the least one."""
    expected = bw.load(run, device="cpu").embed(texts, truncate=True, normalize=True)
    found = {dtype: bw.load(run, device="cpu", dtype=dtype).embed(texts, truncate=True) for dtype in DTYPES[1:]}
    of_each = {dtype: (v * expected).sum(1) / np.linalg.norm(v, axis=1) for dtype, v in found.items()}
    return {dtype: [round(float(of.mean()), 6), round(float(of.min()), 6)] for dtype, of in of_each.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", default=list(FOLDERS), metavar="TASK", help=", ".join(FOLDERS))
    options.add_argument("--tasks", type=Path, required=True, help="folder with the tasks' files")
    options.add_argument("--out", type=Path, required=True, help="folder for the runs")
    options.add_argument("--model", default="mini")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of fine-tuning")
    options.add_argument("--train-only", action="store_true", help="measure nothing")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    instructions = sorted(name for name in cpu_instructions() if name.startswith(("amx", "avx512_", "avx_vnni")))
    print("fast here:", ", ".join(dtype for dtype in DTYPES[1:] if is_fast_on_cpu(dtype)) or "nothing", flush=True)
    results: dict[str, Any] = {"model": given.model, "torch": torch.__version__, "instructions": instructions}
    for task in given.names:
        data = given.tasks / FOLDERS[task]
        if not (given.out / task / "model").exists():
            train(task, given.model, data, given.out / task, given.set)
        if given.train_only:
            continue
        found = results[task] = measure(task, data, given.out / task)
        texts = [" ".join(np.random.default_rng(n).choice(TEXT.split(), 1 + 3 * n % 90)) for n in range(64)]
        found["cosines"] = cosines(given.out / task, texts)
        base = found["scores"]["float32"]
        unit = 1 if find_task(task).kind == "answer" else 100  # SQuAD's script gives percent
        shown = [f"{dtype} {unit * score:.2f} ({100 * score / base:.2f} %)" for dtype, score in found["scores"].items()]
        cosine = ", ".join(
            f"{dtype} {mean:.5f} (least {least:.5f})" for dtype, (mean, least) in found["cosines"].items()
        )
        print(f"{task:<10} {found['metric']:<9} {'   '.join(shown)}   cosine: {cosine}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if given.train_only:
        return
    ratios = [100 * results[task]["scores"]["int8"] / results[task]["scores"]["float32"] for task in given.names]
    print(f"int8 keeps at least {min(ratios):.2f} % (bar {BAR})")


TEXT = (
    "the river bank was cold and the old man who lived there told a story about two ships money war 1918 London "
    "music she wrote played against a team in spring but nobody saw it again until markets fell by three percent"
)

if __name__ == "__main__":
    main()
