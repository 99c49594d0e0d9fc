"""What is said of a train set before anything is learnt of it: things that let a run end well and a model be bad."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertworks.tasks.items import Items
from bertworks.text.unknown import much_unknown

_FAR = 30  # scores from 0 to 5 are learnt well, in the thousands hardly: a step is as long as the rate
_WIDE = 10


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
