"""What a model is measured on: benchmarks from their own files, your own files, metrics and result files.

Nothing but `windows`, `heads`, `evaluation` and `submission` needs numpy or torch: a task is read, described and scored
before a model is loaded. `TASKS` has every benchmark by the name that people type.
"""

from typing import get_args

from bertworks.errors import UserError, did_you_mean, nearest_name
from bertworks.tasks.conll import CONLL2003
from bertworks.tasks.glue import GLUE_TASKS, NLI_TASKS
from bertworks.tasks.korean import KOREAN_TASKS
from bertworks.tasks.squad import SQUAD1, SQUAD2
from bertworks.tasks.swag import SWAG_TASKS
from bertworks.tasks.task import Task, TaskKind

TASKS: dict[str, Task] = {
    task.name: task for task in (*GLUE_TASKS, SQUAD1, SQUAD2, *SWAG_TASKS, CONLL2003, *NLI_TASKS, *KOREAN_TASKS)
}


def find_task(name: str) -> Task:
    """Return a task by its name, written as its makers write it or as here: `SST-2` is `sst2`."""

    def plain(name: str) -> str:
        return "".join(filter(str.isalnum, name.lower()))

    task = next((task for task in TASKS.values() if plain(task.name) == plain(name)), None)
    if task is None:
        kinds = get_args(TaskKind)
        if name in kinds:
            raise UserError(
                f"{name} is for your own files, and no benchmark; `bertworks tasks {name}` says what they need"
            )
        hint = nearest_name(name, [*TASKS, *kinds]) or did_you_mean(name, list(TASKS))
        raise UserError(f"no task is called {name[:60]!r}{hint}; `bertworks tasks` lists them all")
    return task
