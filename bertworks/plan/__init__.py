"""What a run needs before it is started: `bertworks plan`. Formulas alone; nothing here imports torch or a dataset.

`bw.plan(...)` is a public function, and Python puts this package in its place once it is imported; so it can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Plan a run, see `bertworks.plan.run.plan`."""
        from bertworks.plan.run import plan

        return plan(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
