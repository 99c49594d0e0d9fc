"""transformers' Trainer as the peer in fine-tuning: the same weights, token ids, targets and settings as ours.

It is given what our own encoding made of a task's files, as lists of numbers in memory: reading and tokenizing cost it
nothing, and both sides learn from the same windows. What it predicts goes through our own decoding and metrics, which
equal the official ones. Needs `accelerate`, which Trainer will not start without; `datasets` is not needed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import PrinterCallback, TrainerCallback

from bertworks.finetuning.settings import FinetuneSettings
from bertworks.tasks.heads import Items, TaskHead, kind_of
from bertworks.tasks.task import DEV, TRAIN, Example, Task, open_dataset
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.optim import learning_rate

NOTHING = -100  # the label of a token that has none
_EVAL_BATCH = 128
_MODELS = {
    "classify": transformers.AutoModelForSequenceClassification,
    "tag": transformers.AutoModelForTokenClassification,
    "answer": transformers.AutoModelForQuestionAnswering,
}


@dataclass(frozen=True)
class Encoded:
    """A task's train and dev set as our side reads them."""

    task: Task
    kind: TaskHead
    train: Items
    dev: Items
    dev_examples: Sequence[Example]


def encoded(task: Task, data: Path, encoder: Path, settings: FinetuneSettings) -> Encoded:
    """Encode a task's files as `finetune` does with the same settings."""
    dataset, tokenizer, kind = open_dataset(task, data), Tokenizer.from_folder(encoder), kind_of(task)
    examples = {split: list(dataset.examples(split)) for split in (TRAIN, DEV)}
    train, dev = (
        kind.encode(examples[split], tokenizer, task, settings.task.cut(), is_training=split == TRAIN)
        for split in (TRAIN, DEV)
    )
    return Encoded(task, kind, train, dev, examples[DEV])


@dataclass(frozen=True)
class Features:
    """Items as the Trainer wants a dataset: by number a dictionary of lists."""

    items: Items
    kind: str

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        place = slice(*self.items.bounds[number : number + 2])
        ids, segment_ids = self.items.ids[place].tolist(), self.items.segment_ids[place].tolist()
        row = {"input_ids": ids, "token_type_ids": segment_ids, "attention_mask": [1] * len(ids)}
        return row | self._targets(number, len(ids))

    def _targets(self, number: int, length: int) -> dict[str, Any]:
        targets = self.items.targets[number]
        if self.kind == "answer":
            return {"start_positions": int(targets[0]), "end_positions": int(targets[1])}
        if self.kind == "tag":
            known = self.items.weights[number, :length] > 0
            return {"labels": np.where(known, targets[:length], NOTHING).tolist()}
        return {"labels": int(targets)}


@dataclass
class Counting:
    """Collates, and counts the real tokens of every batch."""

    collate: Callable[[list[dict[str, Any]]], Any]
    tokens: list[int] = field(default_factory=list)

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        self.tokens.append(sum(len(feature["input_ids"]) for feature in features))
        return self.collate(features)


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes when some steps end, all work of the device done; says how far it is every half minute."""

    def __init__(self, steps: Sequence[int] = ()) -> None:
        self.steps, self.times = steps, {}
        self._said = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step in self.steps:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times[state.global_step] = time.perf_counter()
        if time.perf_counter() - self._said > 30:
            self._said = time.perf_counter()
            print(f"    Trainer: step {state.global_step:,} of {state.max_steps:,}", flush=True)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any) -> None:  # noqa: ARG002
        print(f"    Trainer: step {state.global_step:,}: {_shown(metrics)}", flush=True)


def _shown(metrics: Mapping[str, float]) -> str:
    timing = ("runtime", "per_second", "epoch")
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if not name.endswith(timing))


def make_trainer(
    data: Encoded,
    encoder: Path,
    settings: FinetuneSettings,
    folder: Path,
    device: str,
    *,
    is_ours_optimizer: bool = False,
    pad_to: int | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **arguments: Any,
) -> transformers.Trainer:
    """Return a Trainer with our settings; what it calls differently is given in its own `arguments`.

    Args:
        data: what it learns and is measured on.
        encoder: the folder with the weights.
        settings: ours.
        folder: where it may write.
        device: cpu or cuda; on the latter it computes in bf16 by autocast.
        is_ours_optimizer: give it our learning rates, which in the decay are up to a tenth lower than its own.
        pad_to: pad every sequence to this length instead of the batch's longest.
        callbacks: are told how it goes.
        arguments: more `TrainingArguments`.
    """
    transformers.set_seed(settings.train.seed)
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.task.dropout)
    network = _MODELS[data.task.kind].from_pretrained(
        encoder, num_labels=data.kind.num_outputs(data.task), dtype=torch.float32,
        **dropout if settings.task.dropout is not None else {},
    ).to(device)  # fmt: skip
    given = _arguments(settings, folder, device) | arguments
    trainer = transformers.Trainer(
        model=network, args=transformers.TrainingArguments(**given),
        train_dataset=Features(data.train, data.task.kind), eval_dataset=Features(data.dev, data.task.kind),
        data_collator=Counting(_collator(data.task.kind, encoder, pad_to)),
        compute_metrics=lambda prediction: measured(data, prediction.predictions),
        optimizers=_our_optimizer(network, settings, arguments["max_steps"]) if is_ours_optimizer else (None, None),
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def be_quiet() -> None:
    """Have transformers draw no bars and say nothing but errors."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _arguments(settings: FinetuneSettings, folder: Path, device: str) -> dict[str, Any]:
    optim, train = settings.optim, settings.train
    return {
        "output_dir": str(folder), "per_device_train_batch_size": train.batch_size, "learning_rate": optim.lr,
        "per_device_eval_batch_size": _EVAL_BATCH, "weight_decay": optim.weight_decay, "warmup_steps": optim.warmup,
        "adam_epsilon": optim.eps, "max_grad_norm": optim.clip, "optim": "adamw_torch_fused", "seed": train.seed,
        "bf16": device == "cuda", "use_cpu": device == "cpu", "remove_unused_columns": False, "save_strategy": "no",
        "logging_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip


def _collator(kind: str, encoder: Path, pad_to: int | None) -> Callable[[list[dict[str, Any]]], Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    how = {"padding": "max_length", "max_length": pad_to} if pad_to else {}
    if kind == "tag":
        return transformers.DataCollatorForTokenClassification(tokenizer, **how)
    return transformers.DataCollatorWithPadding(tokenizer, **how)


def _our_optimizer(
    network: torch.nn.Module, settings: FinetuneSettings, total_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the same AdamW, with the same weights left out of the decay and the same rate at every step."""
    optim = settings.optim
    assert optim.name == "adamw", "the peer has no bias-free Adam"
    groups: dict[float, list[torch.nn.Parameter]] = {optim.weight_decay: [], 0.0: []}
    for name, parameter in network.named_parameters():
        groups[0.0 if "bias" in name or "LayerNorm" in name else optim.weight_decay].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()],
        lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True,
    )  # fmt: skip
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(optim, step, total_steps) / optim.lr
    )


def measured(data: Encoded, logits: Any) -> dict[str, float]:
    """Return our metrics for the Trainer's scores of the dev set."""
    predicted = data.kind.decode(data.dev_examples, data.dev, _rows(data, logits), data.task)
    found = data.kind.measure(data.task, data.dev_examples, predicted)
    return {name: found[name] for name in data.task.metrics}


def _rows(data: Encoded, logits: Any) -> list[NDArray[np.float32]]:
    """Return the scores of each item; those of tokens without the padding behind them."""
    if data.task.kind == "answer":
        logits = np.stack(logits[:2], axis=-1)
    if data.task.kind == "classify":
        return list(logits)
    return [row[:length] for row, length in zip(logits, data.dev.lengths(), strict=True)]
