"""The errors a person can cause, and the words they read when they do.

A message says what was given, what is allowed and what to do about it, in one or two lines. The command line prints
it without a traceback and exits with 2; a Python caller catches `UserError`.
"""

from collections.abc import Sequence

_MAX_PROBLEMS_SHOWN = 40
_MAX_NAMES_SHOWN = 20


class UserError(Exception):
    """Something outside the program must change: an argument, a file, a setting."""


class CorruptFile(UserError):  # noqa: N818 -- it names the state of the file, as its callers read it
    """A file is not what its name or its manifest says: truncated, altered, or of another kind."""


class CannotGoOn(UserError):  # noqa: N818 -- as above
    """A folder is as good as before, but this start can do nothing in it: another's, of other settings, no room."""


class ConfigError(UserError):
    """One or more settings are wrong; all of them are named at once."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        # Both as args: a process pool rebuilds an exception from them, and breaks on one that it cannot rebuild.
        super().__init__(where, problems)
        self.where = where
        self.problems = list(problems)

    def __str__(self) -> str:
        count = counted(len(self.problems), "problem")
        shown = [f"  {problem}" for problem in self.problems[:_MAX_PROBLEMS_SHOWN]]
        if len(self.problems) > _MAX_PROBLEMS_SHOWN:
            shown.append(f"  ... and {len(self.problems) - _MAX_PROBLEMS_SHOWN:,} more")
        return "\n".join([f"{self.where}: {count}", *shown])


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 row", "1,234 rows"; `plural` where that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest known name, or the known names; "" where nothing is known."""
    if hint := nearest_name(given, known):
        return hint
    more = ", ..." if len(known) > _MAX_NAMES_SHOWN else ""
    return f" (known: {', '.join(known[:_MAX_NAMES_SHOWN])}{more})" if known else ""


def nearest_name(given: str, known: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest known name; "" where none is near."""
    from difflib import get_close_matches  # 5 ms that only a mistake should cost

    by_lower_case = {name.lower(): name for name in known}
    nearest = get_close_matches(given.lower(), by_lower_case, n=1, cutoff=0.6)
    return f" (did you mean {by_lower_case[nearest[0]]!r}?)" if nearest else ""
