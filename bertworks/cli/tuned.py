"""The commands that use fine-tuned models: evaluate, predict, classify, choose."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bertworks.cli.inputs import check_utf8, lines_of
from bertworks.cli.options import (
    ColumnOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelArgument,
    ModelsArgument,
    QuietOption,
    TextsArgument,
    print_json,
    say,
    say_next,
)
from bertworks.errors import counted

CsvSafeOption = Annotated[
    bool,
    typer.Option(
        "--csv-safe", help="Write .csv and .tsv for a spreadsheet: text that begins like a formula gets an apostrophe."
    ),
]


def evaluate(
    models: ModelsArgument,
    data: Annotated[str, typer.Option(help="Your own file, the folder with a benchmark's files, or prepared text.")],
    task: Annotated[
        str | None,
        typer.Option(help="A task of `bertworks tasks`, or a kind of task for your own file; default: the model's."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split: dev (as it is), test, ...; of text holdout (as it is) or train.")
    ] = None,
    column: ColumnOption = None,
    wrong: Annotated[
        str | None, typer.Option(help="Write what was predicted wrongly, the surest first: .jsonl, .csv or .tsv.")
    ] = None,
    csv_safe: CsvSafeOption = False,
    predictions: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all predictions as the benchmark's makers read them.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=8, max=65_536, help="Of sequences of prepared text.  [default: 128]")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of prepared text about so many, in batches.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Measure a fine-tuned model on a task, or a pre-trained one on text; several fine-tuned ones as their mean."""
    from bertworks.inference.measuring import is_text

    if is_text(task, data):
        _refuse_for_text(models, column, wrong or csv_safe, predictions)
        _evaluate_text(
            models[0], data, as_json=as_json, split=split or "holdout", max_length=max_length, max_tokens=max_tokens,
            device=device, dtype=dtype,
        )  # fmt: skip
        return
    _refuse_for_task(max_length, max_tokens)
    from bertworks.inference.measuring import check_outputs, measure_models, open_for, training_cost, write_outputs
    from bertworks.progress import progress_bar
    from bertworks.tasks.named_columns import named_columns

    started, split = time.monotonic(), split or "dev"
    named = task
    ensemble, task = open_for(models, data, named, device=device, dtype=dtype)
    columns = named_columns(task, column or [])
    check_outputs(task, data, split, wrong, predictions, csv_safe=csv_safe)
    needs_labels = predictions is None or wrong is not None
    with progress_bar(quiet=as_json) as progress:
        measured = measure_models(ensemble, task, data, split, columns, needs_labels=needs_labels, progress=progress)
    written = write_outputs(measured, wrong, predictions, csv_safe=csv_safe)
    cost = {**training_cost(ensemble.models), "seconds": round(time.monotonic() - started, 2)}
    if as_json:
        print_json(measured.as_json() | cost | {"notes": list(measured.notes)})
        return
    from bertworks.inference.score_tables import breakdown_text, metrics_text

    for note in (*measured.notes, *written, _said_cost(len(measured.examples), cost)):
        say(note, err=True)
    say(metrics_text(measured.metrics), nl=False)
    if measured.breakdown:
        say("\n" + breakdown_text(measured.breakdown), nl=False)
    if wrong is None and measured.metrics:
        columns_given = [word for one in column or [] for word in ("--column", one)]
        which = [] if split == "dev" else ["--split", split]
        task_given = [] if named is None else ["--task", named]
        command = ["evaluate", *models, *task_given, "--data", data, *which, *columns_given]
        say_next(*command, "--wrong", "wrong.csv", why="what it predicts wrongly")
    else:
        say_next("predict", *models, "INPUT.csv", "--out", "predictions.csv")


def _refuse_for_text(models: Sequence[str], *of_tasks: Any) -> None:
    from bertworks.errors import UserError

    if any(of_tasks):
        raise UserError("--column, --wrong and --predictions are for tasks; name the task with --task")
    if len(models) > 1:
        raise UserError("on text one model is measured at a time; several are for a task, named with --task")


def _refuse_for_task(*of_text: int | None) -> None:
    from bertworks.errors import UserError

    if any(of_text):
        raise UserError("--max-length and --max-tokens are for prepared text; a model cuts a task's as it learnt")


def _evaluate_text(model: str, data: str, *, as_json: bool, **options: Any) -> None:
    from bertworks.inference.held_out import measure_text
    from bertworks.inference.score_tables import metrics_text
    from bertworks.progress import progress_bar

    started = time.monotonic()
    with progress_bar(quiet=as_json) as progress:
        metrics, counts, max_length = measure_text(model, data, progress=progress, **options)
    seconds = time.monotonic() - started
    if as_json:
        print_json(metrics | counts | {"max_length": max_length, "seconds": round(seconds, 2)})
        return
    sizes = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    say(f"{sizes}; sequences of up to {max_length}; {seconds:.1f} s", err=True)
    say(metrics_text(metrics), nl=False)
    say_next("finetune", "classify", "--model", model, "--train", "TRAIN.csv", "--out", "TUNED")


def _said_cost(num_examples: int, cost: dict[str, Any]) -> str:
    trained = (
        f"; fine-tuning took {cost['minutes']:.1f} minutes on {cost['device']}" if cost["minutes"] is not None else ""
    )
    return f"{counted(num_examples, 'example')} in {cost['seconds']:.1f} s{trained}"


def predict(
    models: ModelsArgument,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file: .csv, .tsv, .jsonl, .json or .parquet.")],
    out: Annotated[
        str | None, typer.Option(help="The file to write: .csv, .tsv or .jsonl (with the scores of all labels).")
    ] = None,
    column: ColumnOption = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Whether the input's own columns are written before predictions.")
    ] = True,
    csv_safe: CsvSafeOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict for every row of a file, of any size; several models predict together."""
    from bertworks.errors import UserError
    from bertworks.inference.ensemble import open_models
    from bertworks.inference.prediction_files import predicted_rows, write_predictions
    from bertworks.inference.row_files import check_row_file
    from bertworks.progress import progress_bar
    from bertworks.tasks.named_columns import named_columns

    if out is None and not as_json:
        raise UserError("give --out FILE, or --json to have the predictions on standard output")
    if csv_safe and out is None:
        raise UserError("--csv-safe is for a table; give --out FILE.csv, or leave it out")
    if out is not None:
        check_row_file(out, source, csv_safe=csv_safe)
    ensemble = open_models(models, device=device, dtype=dtype)
    columns, notes = named_columns(ensemble.task.kind, column or []), list[str]()
    with progress_bar(quiet=quiet or as_json) as progress:
        if out is None:
            found = list(predicted_rows(ensemble, source, columns, notes, progress, keep=keep))
        else:
            count, notes = write_predictions(ensemble, source, out, columns, progress, keep=keep, csv_safe=csv_safe)
    if as_json:
        print_json(found if out is None else {"out": out, "predictions": count, "notes": notes})
    for note in [] if as_json and out else notes:
        say(note, err=True)
    if not quiet and not as_json:
        say(f"{out}: {counted(count, 'prediction')}", err=True)
        columns_given = [word for one in column or [] for word in ("--column", one)]
        say_next("evaluate", *models, "--data", source, *columns_given, why="if it has labels")


def classify(
    model: ModelArgument,
    texts: TextsArgument,
    pair: Annotated[
        list[str] | None, typer.Option(help="The second text, for a model of pairs: one for all, or for each its own.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Tell the class, the score or the labels of texts."""
    lines = list(lines_of(texts, refuse_blank=True))
    seconds = [check_utf8(one) for one in pair or []]
    pairs = seconds * len(lines) if len(seconds) == 1 else seconds or None
    results = _load(model, device, dtype).classify(lines, pairs)
    if as_json:
        print_json(results)
        return
    for text, result in zip(lines, results, strict=True):
        say(f"{_said(result)}  {text}")


def _said(result: dict[str, Any]) -> str:
    if "labels" in result:
        return ", ".join(result["labels"]) or "no label"
    return f"{result['score']:6.1%}  {result['label']}" if "label" in result else f"{result['score']:.4f}"


def choose(
    model: ModelArgument,
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="What goes before.")],
    endings: Annotated[list[str], typer.Argument(metavar="ENDING...", help="Ways to go on, at least two.")],
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Tell which ending goes best with a context."""
    result = _load(model, device, dtype).choose(check_utf8(context), [check_utf8(ending) for ending in endings])
    if as_json:
        print_json(result)
        return
    for ending, score in sorted(zip(endings, result["scores"], strict=True), key=lambda pair: -pair[1]):
        say(f"{score:6.1%}  {ending}")


def _load(model: str, device: str, dtype: str) -> Any:
    from bertworks.errors import UserError
    from bertworks.inference.language_models import LanguageModel
    from bertworks.inference.loading import load

    opened = load(model, device=device, dtype=dtype)
    if isinstance(opened, LanguageModel):
        raise UserError(f"{model} was not fine-tuned for a task; see `bertworks finetune`")
    return opened
