"""The learning rate over a run: pure functions, so that a resumed run needs no state of theirs.

As in the original code the rate of an update is computed from the number of updates before it, so the first one of a
warm-up has rate 0. And a decay is computed over the whole run, warm-up included: it does not begin at 1 where the
warm-up ends, but where it would be without one. GPT-1's cosine is of the same kind.

By the clock, a run's share is that of its time instead of its steps. Warm-up in steps stays in steps even then.
"""

import math

from bertworks.train.settings import OptimSettings


def learning_rate(settings: OptimSettings, step: int, total_steps: int) -> float:
    """Return the rate of the next update of a run, of which `step` updates are made."""
    share = min(step / total_steps, 1.0)
    warmup = settings.warmup if settings.warmup >= 1 else int(settings.warmup * total_steps)
    return settings.lr * (step / warmup if step < warmup else _decayed(settings, share))


def learning_rate_by_clock(settings: OptimSettings, step: int, share: float) -> float:
    """Return the rate of the next update when this share of the run's time has gone; more than 1 counts as 1."""
    share = min(share, 1.0)
    done = step if settings.warmup >= 1 else share
    return settings.lr * (done / settings.warmup if done < settings.warmup else _decayed(settings, share))


def _decayed(settings: OptimSettings, share: float) -> float:
    if settings.schedule == "linear":
        return 1 - share
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if settings.schedule == "wsd":
        return min(1.0, (1 - share) / settings.decay_share)
    assert settings.schedule == "constant", f"no schedule is called {settings.schedule}"
    return 1.0
