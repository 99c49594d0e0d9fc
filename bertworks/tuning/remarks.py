"""What is said of a train set before anything is learnt of it: things that let a run end well and a model be bad."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertworks.errors import counted
from bertworks.tasks.items import Items
from bertworks.text.unknown import much_unknown
from bertworks.tuning.feed import steps_per_epoch
from bertworks.tuning.settings import FinetuneSettings

_FAR = 30  # scores from 0 to 5 are learnt well, in the thousands hardly: a step is as long as the rate
_WIDE = 10
_FEW_STEPS = 50  # in which a new head has hardly begun to learn
_SMALL_BATCH = 8


def remarks(items: Items, kind: str, pieces: Sequence[str]) -> Iterator[str]:
    """Yield a line for each thing that a person should know."""
    if items.left_out:
        yield str(items.left_out)
    if unknown := much_unknown(pieces, [items.ids]):
        yield unknown
    highest = float(np.abs(items.targets).max(initial=0)) if kind == "regress" else 0.0
    if highest > _FAR:
        mean, spread = float(items.targets.mean()), float(items.targets.std())
        yield (
            f"scores of up to {highest:,.0f} are too far from 0 to be learnt well; subtract {mean:,.0f} from each and "
            f"divide by {spread:,.{0 if spread > _WIDE else 1}f}, and the other way round for what is predicted"
        )


def few_steps(num_items: int, num_examples: int, settings: FinetuneSettings, kind: str) -> Iterator[str]:
    """Yield a line where epochs and batches come to very few updates; a limit in steps is somebody's wish."""
    train = settings.train
    steps = train.epochs * steps_per_epoch(num_items, train)
    if steps >= _FEW_STEPS or train.max_steps < steps:
        return
    size = train.batch_size
    while size > _SMALL_BATCH and train.epochs * -(-num_items // size) < _FEW_STEPS:
        size //= 2
    epochs = max(train.epochs, -(-_FEW_STEPS // -(-num_items // size)))
    changes = [f"train.batch_size={size}"] if size < train.batch_size else []
    changes += [f"train.epochs={epochs}"] if epochs > train.epochs else []
    windows = f", which become {counted(num_items, 'window')}" if num_items < num_examples else ""
    if windows and kind == "tag":
        changes.append("task.context=sentence, so that each sentence is read alone")
    examples = f"{counted(num_examples, 'example')}{windows}"
    yield (
        f"only {counted(steps, 'step')}: {examples}, in batches of {train.batch_size}, "
        f"{counted(train.epochs, 'epoch')}; a model hardly learns in so few. Try {' '.join(changes[:2])}"
        + (f", or {changes[2]}" if len(changes) > 2 else "")
    )
