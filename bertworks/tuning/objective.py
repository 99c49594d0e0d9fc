"""What is learnt in fine-tuning: a task and, with a GPT-1, its language model over the same texts beside it.

The language model's loss is the mean over all its guesses in the batch, times its weight (the GPT paper's lambda); so
it is weighted in the logs too, where losses add up.
"""

from typing import Any

from bertworks.nn.gpt_reading import Reading, num_guesses
from bertworks.nn.lm import Sums
from bertworks.tasks.items import TaskBatch
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.train.objectives import Objective
from bertworks.tuning.task_start import TaskStart

LM = "lm"


def task_objective(kind: Kind, task: Task, lm_weight: float) -> Objective:
    """Return what gives the sums of a batch."""

    def alone(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(net, batch), batch)}

    def with_lm(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        reading: Any = Reading(net, batch.tokens)
        sums: Sums = reading.lm_sums()
        # A part that only fills up a batch has no weights, and is not to be learnt.
        counts = (batch.weights.sum() > 0).float()
        lm = Sums(sums.loss * counts * lm_weight, sums.correct * counts, sums.total * counts)
        return {**alone(reading, batch), LM: lm}

    return with_lm if lm_weight else alone


def counts_of(start: TaskStart, batch: TaskBatch) -> list[float]:
    """Return how many predictions of each kind a batch has; as the objective counts them."""
    total = float(batch.weights.sum())
    if not start.lm_weight:
        return [total]
    return [total, float(num_guesses(batch.tokens, both_orders=start.net.both_orders)) if total else 0.0]
