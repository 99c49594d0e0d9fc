"""Texts of other people, which this repository may not hold: where tests find them, and what is said without them."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared"  # beside the repository
NEEDS = "needs other people's texts: "


def other_text(name, what):
    """Return the path of a file in `../shared`; without it the test is skipped, and the summary names the texts."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{NEEDS}{what} (../shared/{name})")
    return FOLDER / name


def summary_line(skipped):
    """Return the line about the tests that were skipped for want of these texts, or None."""
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    texts = [reason.partition(NEEDS)[2].partition(" (")[0] for reason in reasons if NEEDS in reason]
    if not texts:
        return None
    counts = ", ".join(f"{texts.count(name)} {name}" for name in sorted(set(texts)))
    return f"skipped here: {len(texts)} tests that need other people's texts ({counts})"
