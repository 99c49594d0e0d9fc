"""Pre-training steps of `tiny-cpu` on this machine's cores, beside transformers' Trainer on the same instances.

Ours is the whole command: batches are made while training, from shards of Python's own help. The peer is a
BertForPreTraining of the same sizes with everything at its default but what the recipe says (batch, learning rate,
clipping); its instances are those of our loader, made and padded to 64 beforehand, so that it does no work for data.
Both are measured in real tokens a second, from the tenth step on, in rounds that alternate. A vocabulary of 2,000
pieces is `make demo`'s; with 30,522 the peer's scores of every position against every piece cost it more.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import parser, report

from bertworks.data.loader import Loader, shape_for
from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.demo.stages import write_topics
from bertworks.nn.config import preset
from bertworks.recipe import Recipe, load_recipe
from bertworks.text.corpus import Corpus
from bertworks.text.learn import learn_vocabulary
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.pretrain import pretrain

WARM_STEPS, NUM_STEPS, ROUNDS = 10, 60, 3
BATCH, LENGTH = 32, 64
NOTHING = -100  # the label of a position that is not to be guessed


def prepared(folder: Path, vocab_size: int) -> Path:
    """Write shards of Python's help topics, with as many pieces as were asked for, the rest of them made up."""
    write_topics(folder / "topics.txt")
    corpus = Corpus([folder / "topics.txt"])
    pieces = learn_vocabulary(corpus, size=2_000, min_count=2).pieces
    pieces = [*pieces, *(f"[unused{number}]" for number in range(vocab_size - len(pieces)))]
    prepare(corpus, Tokenizer(pieces), folder / "data", workers=1)
    return folder / "data"


def ours(recipe: Recipe, data: Path, run: Path) -> float:
    """Return real tokens a second."""
    pretrain(recipe, data=data, out=run, device="cpu")
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in metrics if "tokens" in line]
    return (tokens[-1] - tokens[0]) / (timing[-1]["seconds"] - timing[0]["seconds"])


def instances(recipe: Recipe, data: Path, count: int) -> list[dict[str, torch.Tensor]]:
    """Return instances of our loader as the peer wants them."""
    loader = Loader(Dataset(data), recipe.data, shape_for(recipe.data, tokens=BATCH * LENGTH))
    rows: list[dict[str, torch.Tensor]] = []
    for (packed,), _ in loader.batches():
        labels = torch.full((len(packed.token_ids),), NOTHING)
        real = packed.masked_weights > 0
        labels[torch.from_numpy(packed.masked_positions[real]).long()] = torch.from_numpy(
            packed.masked_ids[real]
        ).long()
        for number in range(int(packed.next_weights.sum())):
            first, end = packed.cumulative_lengths[number : number + 2]
            row = {
                "input_ids": padded(torch.from_numpy(packed.token_ids[first:end]).long(), 0),
                "token_type_ids": padded(torch.from_numpy(packed.segment_ids[first:end]).long(), 0),
                "attention_mask": padded(torch.ones(end - first, dtype=torch.long), 0),
                "labels": padded(labels[first:end], NOTHING),
                "next_sentence_label": torch.tensor(int(packed.next_labels[number])),
            }
            rows.append(row)
            if len(rows) == count:
                return rows
    raise AssertionError("a loader has no end")


def padded(values: torch.Tensor, filler: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, LENGTH - len(values)), value=filler)


def peer(recipe: Recipe, rows: list[dict[str, torch.Tensor]], vocab_size: int, folder: Path) -> float:
    """Return real tokens a second."""
    from transformers import BertConfig, BertForPreTraining, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter())

    config = preset(recipe.model.preset, vocab_size=vocab_size, max_position_embeddings=recipe.model.max_positions)
    raw = {name: value for name, value in config if name not in ("direction", "positions")}
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, max_steps=NUM_STEPS, learning_rate=recipe.optim.lr,
        warmup_steps=int(recipe.optim.warmup), weight_decay=recipe.optim.weight_decay, max_grad_norm=1.0,
        save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    clock = Clock()
    model = BertForPreTraining(BertConfig(**raw))
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[clock]).train()
    tokens = sum(int(row["attention_mask"].sum()) for row in rows) / len(rows) * BATCH * (NUM_STEPS - WARM_STEPS)
    return tokens / (clock.times[-1] - clock.times[WARM_STEPS - 1])


def measure(vocab_size: int) -> dict[str, Any]:
    steps = [f"train.max_steps={NUM_STEPS}", f"train.log_every={WARM_STEPS}", "train.save_every=1000"]
    recipe = load_recipe("tiny-cpu", [*steps, "train.eval_every=1000"])
    assert (recipe.train.batch_size, recipe.data.max_length) == (BATCH, LENGTH)
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = prepared(folder, vocab_size)
        rows = instances(recipe, data, NUM_STEPS * BATCH)
        ours(recipe, data, folder / "warm")  # compiles the loader
        for number in range(ROUNDS):
            speeds["ours"].append(ours(recipe, data, folder / f"run{number}"))
            speeds["peer"].append(peer(recipe, rows, vocab_size, folder / f"peer{number}"))
    ratios = [own / theirs for own, theirs in zip(speeds["ours"], speeds["peer"], strict=True)]
    what = f"{vocab_size:,} pieces"
    return {
        f"{what}: ours, tokens/s": statistics.median(speeds["ours"]),
        f"{what}: Trainer, tokens/s": statistics.median(speeds["peer"]),
        f"{what}: ratio (bar: 1.3)": statistics.median(ratios),
    }


def main() -> None:
    given = parser(__doc__).parse_args()
    report(measure(2_000) | measure(30_522), given.json)


if __name__ == "__main__":
    main()
