"""SQuAD 1.1 with two losses: a softmax over a window's own tokens (ours), and over the padded row as in run_squad.py.

    python benchmarks/squad_loss.py MODEL SQUAD_FOLDER OUT.json [--epochs 3] [--seeds 3]

Both losses train transformers' BertForQuestionAnswering on padded rows of 384 tokens, on the same windows in the same
order, with bf16 autocast. Only the scores at padding differ: they are kept, or set to the lowest number before the
softmax. Two runs with the same seed are a pair. The difference of the pairs is printed with its standard error.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertForQuestionAnswering

from bertworks.tasks.metrics import score_squad1
from bertworks.tasks.squad import read_squad
from bertworks.tasks.task import Skipped, SpanExample
from bertworks.tasks.windows import AnswerWindow, AnswerWindows, decode_answers, encode_answers, predictions_of
from bertworks.text.tokenizer import Tokenizer

LENGTH = 384
LOSSES = ("own tokens", "padded row")


def padded_rows(windows: Sequence[AnswerWindow], device: torch.device) -> list[Tensor]:
    """Return token ids, segment ids and the mask of real tokens, each [windows, 384]."""
    rows = np.zeros((3, len(windows), LENGTH), np.int64)
    for number, window in enumerate(windows):
        length = len(window.ids)
        rows[:, number, :length] = window.ids, window.segment_ids, np.ones(length)
    return [torch.from_numpy(row).to(device) for row in rows]


def scores_of(net: nn.Module, rows: Sequence[Tensor]) -> Tensor:
    """Return the start and end score of every position, [windows, 384, 2]."""
    ids, segment_ids, mask = rows
    with torch.autocast(ids.device.type, torch.bfloat16):
        out = net(input_ids=ids, token_type_ids=segment_ids, attention_mask=mask)
    return torch.stack([out.start_logits, out.end_logits], -1).float()


def train(
    net: nn.Module, rows: list[Tensor], targets: Tensor, loss_name: str, seed: int, args: argparse.Namespace
) -> None:
    """Fine-tune a network; linear warm-up over a tenth of the steps, then linear decay."""
    decayed = [weight for weight in net.parameters() if weight.ndim > 1]
    others = [weight for weight in net.parameters() if weight.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, eps=1e-6)
    num_steps = args.epochs * (len(targets) // args.batch)
    for step, batch in enumerate(batches(len(targets), seed, args)):
        batch_rows = [row[batch] for row in rows]
        scores = scores_of(net, batch_rows)
        if loss_name == "own tokens":
            scores = scores.masked_fill(batch_rows[2][..., None] == 0, torch.finfo(torch.float32).min)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, step / (0.1 * num_steps)) * (num_steps - step) / num_steps
        nn.functional.cross_entropy(scores, targets[batch]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def batches(num_windows: int, seed: int, args: argparse.Namespace) -> Iterator[Tensor]:
    """Yield the windows of each batch, shuffled anew in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(args.epochs):
        order = torch.randperm(num_windows, generator=generator)
        yield from (part.to(args.device) for part in order.split(args.batch) if len(part) == args.batch)


def evaluate(net: nn.Module, examples: list[SpanExample], encoded: AnswerWindows, device: torch.device) -> dict:
    """Return exact match and F1 as the official script counts them."""
    net.eval()
    with torch.no_grad():
        scores = torch.cat(
            [
                scores_of(net, part)
                for part in zip(*(row.split(256) for row in padded_rows(encoded.windows, device)), strict=True)
            ]
        )
    own = ((number, scores[number, : len(window.ids)].cpu().numpy()) for number, window in enumerate(encoded.windows))
    return score_squad1(examples, predictions_of(examples, decode_answers(examples, encoded, own), None))


def main() -> None:
    """Train one model for each seed and loss, write each result as it comes, print the paired difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a model folder")
    parser.add_argument("squad", type=Path, help="a folder with train-v1.1.json and dev-v1.1.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--examples", type=int, help="of each file, for a quick try")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cuda", type=torch.device)
    args = parser.parse_args()

    tokenizer = Tokenizer.from_folder(args.model)
    train_set, dev_set = (
        list(read_squad([args.squad / f"{split}-v1.1.json"], Skipped()))[: args.examples] for split in ("train", "dev")
    )
    windows, dev_windows = (
        encode_answers(tokenizer, train_set, is_training=True).windows,
        encode_answers(tokenizer, dev_set),
    )
    rows = padded_rows(windows, args.device)
    targets = torch.tensor([(window.start, window.end) for window in windows], device=args.device)
    results = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for loss_name in LOSSES:
            torch.manual_seed(seed)
            net = BertForQuestionAnswering.from_pretrained(args.model).to(args.device).train()
            started = time.monotonic()
            train(net, rows, targets, loss_name, seed, args)
            scores = {
                name: round(float(value), 2) for name, value in evaluate(net, dev_set, dev_windows, args.device).items()
            }
            results.append({"loss": loss_name, "seed": seed, **scores, "seconds": round(time.monotonic() - started)})
            print(results[-1], flush=True)
            args.out.write_text(json.dumps({"runs": results}, indent=1))
    for name in ("f1", "exact_match"):
        own, padded = ([run[name] for run in results if run["loss"] == loss] for loss in LOSSES)
        differences = [b - a for a, b in zip(own, padded, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
        print(f"{name}: padded row - own tokens {statistics.mean(differences):+.2f}, standard error {error:.2f}")


if __name__ == "__main__":
    main()
