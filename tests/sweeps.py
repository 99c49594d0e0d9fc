"""How many examples a property test draws: a third in `make test`, all in `make nightly`."""

import os


def examples(number):
    return number if os.environ.get("NIGHTLY") else max(number // 3, 20)
