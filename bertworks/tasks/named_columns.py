"""Columns of your own files as they are named on the command line: `label=stars`, once for each."""

from collections.abc import Sequence
from typing import Any

from bertworks.errors import UserError, did_you_mean
from bertworks.tasks.own import KINDS
from bertworks.tasks.own_columns import OPTIONAL, SEVERAL, Columns, roles_of


def named_columns(kind: str, named: Sequence[str]) -> Columns | None:
    """Return the columns that `role=column` names, for a kind of task; None where none is named.

    Several columns of labels, or of endings, are named one by one; `pair=` says that there is none.
    """
    if not named:
        return None
    if kind not in KINDS:
        raise UserError(f"--column: {kind[:60]} has columns of its own; they are named for your own files alone")
    allowed, found = roles_of(kind), dict[str, Any]()
    for text in named:
        role, sign, column = text.partition("=")
        if not sign or (not column and role not in OPTIONAL):
            raise UserError(f"--column {text[:60]} is not role=column; such as {allowed[0]}=name")
        if role not in allowed:
            hint = did_you_mean(role, allowed)
            raise UserError(f"--column {text[:60]}: to {kind} there is no {role[:40]!r}{hint}; allowed: "
                            f"{', '.join(allowed)}")  # fmt: skip
        if role in found and role not in SEVERAL:
            raise UserError(f"--column {text[:60]}: {role} is {found[role]!r} already")
        found[role] = (*found.get(role, ()), column) if role in SEVERAL else column
    return Columns(**found)
