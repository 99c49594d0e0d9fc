"""Predictions for GLUE's test sets, in its server's form: one file for each that is there, and one zip of all.

WNLI gets the most frequent label of its train set, as nothing is learnt for it: the paper leaves it out too.
"""

from collections import Counter
from pathlib import Path

from bertworks.errors import UserError
from bertworks.inference.model import Model
from bertworks.tasks.glue import AX, WNLI
from bertworks.tasks.submission import GLUE_FILES, write_glue, zip_glue
from bertworks.tasks.task import TEST, TRAIN, Dataset, Task, open_dataset
from bertworks.tuning.task_start import AnyPath

PREDICTIONS, ZIP_FILE = "predictions", "glue.zip"


def open_part(task: Task, data: AnyPath) -> Dataset | None:
    """Return a task of GLUE's with its files below a folder, or nothing if there are none."""
    try:
        return open_dataset(task, Path(data))
    except UserError:
        return None


def server_files(dataset: Dataset) -> dict[str, str]:
    """Return the server's name for each test set that there is, by split."""
    return {
        split: name
        for (task, split), name in GLUE_FILES.items()
        if task == dataset.task.name and split in dataset.found
    }


def write_tests(folder: Path, model: Model, dataset: Dataset) -> list[str]:
    """Predict for a task's test sets; returns the names of the files."""
    predictor, names = model.predictor(), server_files(dataset)
    for split in names:
        examples = list(dataset.examples(split))
        results = predictor.results(examples)
        said = [result["label"] if "label" in result else result["score"] for result in results]
        write_glue(folder, dataset.task, split, [example.id for example in examples], said)
    return list(names.values())


def write_diagnostics(folder: Path, model: Model, data: AnyPath) -> list[str]:
    """Predict for the diagnostic set with a model of MNLI, if it is there."""
    dataset = open_part(AX, data)
    return write_tests(folder, model, dataset) if dataset and server_files(dataset) else []


def write_majority(folder: Path, data: AnyPath) -> str:
    """Predict WNLI's most frequent label for its test set; returns what it is, "" if there are no files."""
    dataset = open_part(WNLI, data)
    if dataset is None or not {TRAIN, TEST} <= set(dataset.found):
        return ""
    label = Counter(str(getattr(example, "label", "")) for example in dataset.examples(TRAIN)).most_common(1)[0][0]
    ids = [example.id for example in dataset.examples(TEST)]
    write_glue(folder, WNLI, TEST, ids, [label] * len(ids))
    return label


def pack(out: Path) -> list[str]:
    """Pack what there is into one zip; returns the names of the files that the server wants and that are missing."""
    folder = out / PREDICTIONS
    if not any((folder / name).is_file() for name in GLUE_FILES.values()):
        return sorted(GLUE_FILES.values())
    return zip_glue(folder, out / ZIP_FILE)
