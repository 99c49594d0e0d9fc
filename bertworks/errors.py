"""The errors that users can cause, and their messages.

A message states what was given, what is allowed and what to do about it, in one or two lines. The command line prints
it without a traceback and exits with 2; a Python caller catches `UserError`.

Messages contain text from files and arguments: paths, column names, labels. So every message is made printable and is
shortened, whoever prints it. Otherwise a file name could clear the screen, change its colours or add a line.
"""

import re
from collections.abc import Iterable, Sequence

_MAX_PROBLEMS_SHOWN = 40
_MAX_NAMES_SHOWN = 20
_MAX_NAME = 60
_MAX_MESSAGE = 1500  # characters; a path, a column and advice take a few hundred
_MAX_PROBLEM = 240  # of one problem in a list
# Control characters except tab and line feed, characters that change the direction or the line, and lone surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_BREAK = re.compile(r"\n(?!  )")  # all lines of a message but the first are indented


def printable(text: str) -> str:
    """Escape characters that control a terminal or cannot be shown (ESC becomes \\u001b); the result fits into JSON."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer one loses its middle."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def shown(value: object, most: int = _MAX_NAME) -> str:
    """Return a name, label or text for use in a message: quoted, on one line, printable and short."""
    return printable(repr(shortened(str(value), most)))


class UserError(Exception):
    """Something outside the program must change: an argument, a file, a setting."""

    def __str__(self) -> str:
        lines = _BREAK.sub(r"\\n", printable(super().__str__())).split("\n")
        return _fitted(lines[: _MAX_PROBLEMS_SHOWN + 2])


class CorruptFile(UserError):  # noqa: N818 -- the name describes the file
    """A file does not match its name or its manifest: it is truncated, altered or of another kind."""


class CannotResume(UserError):  # noqa: N818 -- as above
    """A folder is intact but cannot be used now: another process holds it, its settings differ, or the disk is full."""


class ConfigError(UserError):
    """One or more settings are wrong; the message lists all of them."""

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        # Both are passed on as args: a process pool rebuilds an exception from its args and breaks if it cannot.
        super().__init__(where, problems)
        self.where = where
        self.problems = list(problems)

    def __str__(self) -> str:
        count = counted(len(self.problems), "problem")
        lines = [f"{self.where}: {count}", *(f"  {problem}" for problem in self.problems[:_MAX_PROBLEMS_SHOWN])]
        if len(self.problems) > _MAX_PROBLEMS_SHOWN:
            lines.append(f"  ... and {len(self.problems) - _MAX_PROBLEMS_SHOWN:,} more")
        return _fitted([printable(line).replace("\n", "\\n") for line in lines])


def _fitted(lines: Sequence[str]) -> str:
    most = max(_MAX_PROBLEM, _MAX_MESSAGE // len(lines))
    return "\n".join(shortened(line, most) for line in lines)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 row", "1,234 rows"; `plural` is given if it is not the noun plus "s"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest known name, else the list of known names, else ""."""
    if hint := nearest_name(given, known):
        return hint
    more = ", ..." if len(known) > _MAX_NAMES_SHOWN else ""
    names = (printable(shortened(name, _MAX_NAME)) for name in known[:_MAX_NAMES_SHOWN])
    return f" (known: {', '.join(names)}{more})" if known else ""


def shown_names(names: Iterable[object]) -> str:
    """List names for a message, each shortened."""
    listed = list(names)
    shown = [repr(str(name)[:40]) for name in listed[:_MAX_NAMES_SHOWN]]
    return ", ".join(shown + ["..."] * (len(listed) > _MAX_NAMES_SHOWN)) or "none"


def nearest_name(given: str, known: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the nearest known name, or "" if none is close."""
    from difflib import get_close_matches  # takes 5 ms to import, which only a mistake should cost

    by_lower_case = {name.lower(): name for name in known}
    nearest = get_close_matches(given.lower(), by_lower_case, n=1, cutoff=0.6)
    return f" (did you mean {shown(by_lower_case[nearest[0]])}?)" if nearest else ""
