"""The faults that need a GPU: kills in the middle of a bf16 run with deterministic flags (F20), and what belongs to it.

A small BERT is trained for some hundred steps on data that this script makes. Then, each in processes of their own:
the same run again, which must give the same bytes (F16); runs that are killed at random instants and go on, which must
end with those bytes too (F20); numbers of an earlier time, where a file has them (F17); and the run without the flags,
to see what they cost. This process never touches the GPU: children are forked from it, with torch imported, and die
with all they have. `--tests` also runs the suite's tests that need a GPU, `pytest -m gpu`. `--device cpu` tries the
script where there is none.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # or a killed run would leave its compilers behind

import torch

from bertworks.config import validate
from bertworks.data.prepare import prepare
from bertworks.recipe import Recipe
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.pretrain import pretrain

NUM_WORDS = 500
NUMBERS = ("loss", "mlm_loss", "nsp_loss", "grad_norm")
REPOSITORY = Path(__file__).resolve().parents[1]
# By name: to collect the whole suite takes packages that a GPU machine may not have.
GPU_TESTS = (
    "tests/nn/test_gpu_attention.py",
    "tests/nn/test_gpu_gelu.py",
    "tests/train/test_optim.py",
    "tests/train/test_other_models_gpu.py",
    "tests/data/test_workers.py",
    "tests/finetuning/test_finetune_gpu.py",
)


class Row(NamedTuple):
    id: str
    what: str
    trials: int
    result: str
    seconds: float


class Bench(NamedTuple):
    """Where runs are made, and how."""

    folder: Path
    device: str
    steps: int
    compiled: bool

    def recipe(self, *, deterministic: bool = True) -> Recipe:
        sections = {
            "model": {"preset": "2x128", "max_positions": 128},
            "data": {"max_length": 128},
            "optim": {"lr": 1e-3, "warmup": 10},
            "train": {
                "max_steps": self.steps,
                "batch_size": 32 if self.device != "cpu" else 4,
                "log_every": 5,
                "eval_every": 50,
                "save_every": 7,
                "eval_batches": 1,
                "dtype": "bfloat16",
                "compile": self.compiled,
                "deterministic": deterministic,
            },
        }
        return validate(Recipe, sections, "faults_gpu")

    def start(self, name: str, *, deterministic: bool = True) -> int:
        """Train in a child, going on if there is something to go on from; returns its process."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            recipe = self.recipe(deterministic=deterministic)
            pretrain(recipe, data=self.folder / "data", out=self.folder / name, device=self.device, resume=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def train(self, name: str, *, deterministic: bool = True) -> Path:
        """Train to the end."""
        _, status = os.waitpid(self.start(name, deterministic=deterministic), 0)
        if status:
            sys.exit(f"the run {name} failed: {status}")
        return self.folder / name


def write_data(folder: Path) -> None:
    """Documents in which a word is mostly followed by the next one."""
    rng = random.Random(0)
    documents = []
    for _ in range(400):
        place, lines = rng.randrange(NUM_WORDS), []
        for _ in range(rng.randint(4, 9)):
            words = []
            for _ in range(rng.randint(6, 24)):
                place = (place + 1) % NUM_WORDS if rng.random() < 0.9 else rng.randrange(NUM_WORDS)
                words.append(f"word{place}")
            lines.append(" ".join(words) + ".")
        documents.append("\n".join(lines))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    tokenizer = Tokenizer([*SPECIAL_TOKENS, ".", *(f"word{number}" for number in range(NUM_WORDS))])
    prepare(Corpus([folder / "text.txt"]), tokenizer, folder / "data", holdout=0.1, workers=1)


def files_of(run: Path) -> dict[str, bytes]:
    timed = ("timing.jsonl", "report.html", ".lock")
    kept = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in timed]
    kept = [path for path in kept if path.parent.name != "tensorboard"]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in kept}


def lines_of(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def difference(run: Path, reference: Path) -> str:
    """Say where two runs part; nothing if they do not."""
    found, expected = files_of(run), files_of(reference)
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if not names:
        return ""
    pairs = zip(lines_of(run), lines_of(reference), strict=False)
    first = next((one["step"] for one, two in pairs if one != two), None)
    return f"differ in {', '.join(names[:3])}; logs part at step {first}"


def kill_and_resume(bench: Bench, name: str, after_s: float) -> bool:
    """Kill a run some time after its first lines in the log and let it go on; False if it was through before."""
    child, run = bench.start(name), bench.folder / name
    while not (run / "timing.jsonl").exists() or not (run / "timing.jsonl").stat().st_size:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            sys.exit(f"the run {name} ended before its first lines: {status}")
        time.sleep(0.005)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        return False
    bench.train(name)
    return True


def kills(bench: Bench, reference: Path, count: int, seed: int) -> str:
    """Kill runs at instants that are uniform over the reference's training."""
    timing = lines_of(reference, "timing.jsonl")
    seconds = timing[-1]["seconds"] - timing[0]["seconds"]
    rng, done, same, told = random.Random(seed), 0, 0, ""
    while done < count:
        name = f"killed-{done}"
        if kill_and_resume(bench, name, rng.uniform(0, seconds)):
            done += 1
            found = difference(bench.folder / name, reference)
            same, told = same + (not found), told or found
            print(f"  kill {done}: {found or 'the same bytes'}", flush=True)
        shutil.rmtree(bench.folder / name)
    return f"{same} of {count} the same bytes" + (f"; {told}" if told else "")


def tokens_per_second(run: Path) -> float:
    """Over all but the first lines of the log, in which things are compiled."""
    tokens = {line["step"]: line["tokens"] for line in lines_of(run) if "tokens" in line}
    seconds = {line["step"]: line["seconds"] for line in lines_of(run, "timing.jsonl")}
    first, last = sorted(tokens)[len(tokens) // 4], max(tokens)
    return (tokens[last] - tokens[first]) / (seconds[last] - seconds[first])


def golden(run: Path, path: Path, device: str) -> str:
    """Compare the log's numbers with those of a file, or write the file."""
    machine = {"torch": torch.__version__, "device": _device_name(device)}
    steps = [[line[name] for name in NUMBERS] for line in lines_of(run) if "lr" in line]
    if not path.exists():
        path.write_text(json.dumps({"class": machine, "numbers": NUMBERS, "steps": steps}, indent=0) + "\n")
        return f"written to {path}"
    kept = json.loads(path.read_text())
    pairs = zip(chain.from_iterable(steps), chain.from_iterable(kept["steps"]), strict=True)
    apart = max(abs(one - two) / max(abs(two), 1e-3) for one, two in pairs)
    on = "the same class" if kept["class"] == machine else f"another class, {kept['class']}"
    return "the same bits" if steps == kept["steps"] else f"within {apart:.1e} of numbers of {on}"


def _device_name(device: str) -> str:
    """Ask in a process of its own, so that this one stays without a GPU."""
    program = "import torch; print(torch.cuda.get_device_name())" if device != "cpu" else "print('cpu')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def suite() -> str:
    """Run the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", *GPU_TESTS]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    print(ended.stdout[-3_000:], flush=True)
    return f"exit code {ended.returncode}: {ended.stdout.strip().splitlines()[-1][:120]}"


def timed(id: str, what: str, trials: int, work: Callable[[], str]) -> Row:
    started = time.perf_counter()
    row = Row(id, what, trials, work(), time.perf_counter() - started)
    print(f"| {row.id} | {row.what} | {row.trials} | {row.result} | {row.seconds:.0f} |", flush=True)
    return row


def measure(bench: Bench, options: argparse.Namespace) -> list[Row]:
    write_data(bench.folder)
    print("| id | what | trials | result | seconds |\n|---|---|---|---|---|", flush=True)
    rows = [timed("", f"{bench.steps} steps, bf16, deterministic", 1, lambda: f"{bench.train('reference').name} made")]
    reference = bench.folder / "reference"
    again = timed("F16", "the same again", 1, lambda: difference(bench.train("again"), reference) or "the same bytes")
    rows.append(again)
    if options.golden:
        rows.append(timed("F17", "golden losses", 1, lambda: golden(reference, options.golden, bench.device)))
    rows.append(timed("F20", "kills", options.kills, lambda: kills(bench, reference, options.kills, options.seed)))
    plain = bench.train("plain", deterministic=False)
    speeds = tokens_per_second(reference), tokens_per_second(plain)
    cost = f"{speeds[0]:,.0f} tokens/s with, {speeds[1]:,.0f} without: {speeds[1] / speeds[0] - 1:+.1%}"
    rows.append(timed("P1", "what deterministic flags cost", 1, lambda: cost))
    if options.tests:
        rows.append(timed("", "pytest -m gpu", 1, suite))
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda")
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--seed", type=int, default=20, help="of the instants of the kills")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--no-compile", action="store_true", help="without torch.compile; on a CPU always")
    options.add_argument("--golden", type=Path, help="compare losses with this file, or write it")
    options.add_argument("--tests", action="store_true", help="also run the suite's tests that need a GPU")
    options.add_argument("--json", type=Path, help="also write the table to this file")
    given = options.parse_args()
    torch.set_num_threads(1 if given.device == "cpu" else torch.get_num_threads())
    with tempfile.TemporaryDirectory() as name:
        compiled = given.device != "cpu" and not given.no_compile
        rows = measure(Bench(Path(name), given.device, given.steps, compiled), given)
    if given.json:
        given.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
