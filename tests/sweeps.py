"""Sweeps are taken whole where `make nightly` and `make test-faults` set FULL_SWEEPS, and a third of them elsewhere."""

import os

IS_FULL = bool(os.environ.get("FULL_SWEEPS"))


def examples(number):
    """Return how many examples a property test draws."""
    return number if IS_FULL else max(number // 3, 20)


def some_of(cases):
    """Return every third of the cases, the first and the last among them."""
    cases = list(cases)
    return cases if IS_FULL else [*cases[:-1:3], cases[-1]]
