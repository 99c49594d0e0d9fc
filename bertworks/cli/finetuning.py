"""The commands about tasks: finetune, evaluate, predict, classify, choose."""

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bertworks.cli.feature_table import TABLE7, print_table7, refuse_together
from bertworks.cli.grids import (
    Asked,
    FromMnliOption,
    GridOption,
    RestartBestOption,
    RestartsOption,
    SearchExamplesOption,
    run_many,
)
from bertworks.cli.inputs import check_utf8, lines_of
from bertworks.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelArgument,
    OverridesArgument,
    QuietOption,
    TextsArgument,
    print_json,
)

ModelsArgument = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Model folders, run folders, or names in the local Hugging Face cache."),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=COLUMN", help="What a column of your own file is, such as label=stars; repeatable."),
]
_INTERRUPT = 2  # Ctrl-C; the run is saved all the same


def finetune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A task of `bertworks tasks`; glue: all of it; classify, regress, multilabel, choose: your own files.",
        ),
    ],
    model: Annotated[str, typer.Option(help="A model folder, a run folder, or a name in the local cache.")],
    out: Annotated[str, typer.Option(help="The run folder to write.")],
    overrides: OverridesArgument = None,
    data: Annotated[str | None, typer.Option(help="The folder with the task's files.")] = None,
    train: Annotated[str | None, typer.Option(help="Your own file to learn from: .csv, .tsv, .jsonl, ...")] = None,
    dev: Annotated[str | None, typer.Option(help="Your own file to measure on; default: a tenth of --train.")] = None,
    column: ColumnOption = None,
    init: Annotated[str, typer.Option(help="model, or random: only its sizes and vocabulary.")] = "model",
    beside: Annotated[
        str | None, typer.Option("--with", help="A BERT of the other direction, to read the same texts beside it.")
    ] = None,
    grid: GridOption = False,
    restarts: RestartsOption = None,
    restart_best: RestartBestOption = False,
    search_examples: SearchExamplesOption = None,
    from_mnli: FromMnliOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    features: Annotated[
        str | None,
        typer.Option(help="Tagging on frozen layers: last, concat-last-four, ..., or table7: all six of the paper."),
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Where frozen layers are kept for several runs.")] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model for a task, and keep the one that is best on the dev set."""
    from bertworks.tasks.named_columns import named_columns

    columns = named_columns(task, column or []) if task != "glue" else None
    given = [*(overrides or []), *([f"task.features={features}"] if features not in (None, TABLE7) else [])]
    if task == "glue" or grid or restart_best or from_mnli or (restarts, search_examples) != (None, None):
        asked = Asked(task, out, grid, restarts, restart_best, search_examples, from_mnli, quiet, as_json)
        files = {"data": data, "train": train, "dev": dev, "columns": columns}
        refuse_together(features, cache)
        many = {"model": model, "overrides": given, "init": init, "beside": beside}
        run_many(asked, files, **many, resume=resume, device=device)
        return
    from bertworks.train.view import training_view
    from bertworks.tuning.finetune import finetune

    started = time.monotonic()
    with training_view(quiet=quiet or as_json) as view:
        options: dict[str, Any] = {
            "model": model,
            "out": out,
            "data": data,
            "train": train,
            "dev": dev,
            "columns": columns,
            "overrides": given,
            "init": init,
            "beside": beside,
            "resume": resume,
            "cache": cache,
            "device": device,
            "view": view,
            "note": lambda text: None if quiet or as_json else typer.echo(text, err=True),
        }
        if features == TABLE7:
            print_table7(task, options, quiet=quiet, as_json=as_json)
            return
        outcome = finetune(task, **options)
    result: dict[str, Any] = {
        "out": out,
        "reason": outcome.reason,
        "steps": outcome.place.step,
        "best_step": outcome.step,
        **{name: _or_null(value) for name, value in outcome.metrics.items()},
        "minutes": round(outcome.minutes, 3),
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json:
        print_json(result)
    elif not quiet:
        ended = "stopped by a signal, go on with --resume" if outcome.reason == "signal" else "finished"
        typer.echo(
            f"{out}: {ended} after {outcome.place.step:,} steps; best {outcome.metric} on dev {outcome.score:.4f} at "
            f"step {outcome.step:,}, which is its model; {outcome.minutes:.1f} minutes of training"
        )
    if outcome.signal == _INTERRUPT:
        raise typer.Exit(130)


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def evaluate(
    models: ModelsArgument,
    task: Annotated[str, typer.Option(help="A task of `bertworks tasks`, or a kind of task for a file of your own.")],
    data: Annotated[str, typer.Option(help="The folder with the task's files, or your own file.")],
    split: Annotated[str, typer.Option(help="Which split: dev, test, dev-mismatched, ...")] = "dev",
    column: ColumnOption = None,
    wrong: Annotated[
        str | None, typer.Option(help="Write what was predicted wrongly, the surest first: .jsonl, .csv or .tsv.")
    ] = None,
    predictions: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all predictions as the benchmark's makers read them.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Measure a fine-tuned model, or several together: their mean."""
    from bertworks.measuring import check_outputs, measure_models, training_cost, write_outputs
    from bertworks.tasks.named_columns import named_columns

    started = time.monotonic()
    columns = named_columns(task, column or [])
    check_outputs(task, split, wrong, predictions)
    opened, ensemble = _load_all(models, device, dtype)
    measured = measure_models(
        ensemble, task, data, split, columns, needs_labels=predictions is None or wrong is not None
    )
    written = write_outputs(measured, wrong, predictions)
    cost = {**training_cost(opened), "seconds": round(time.monotonic() - started, 2)}
    if as_json:
        metrics = {name: _or_null(value) for name, value in measured.metrics.items()}
        parts = measured.breakdown.as_json() if measured.breakdown else {}
        print_json(metrics | parts | {"examples": len(measured.examples)} | cost)
        return
    from bertworks.score_tables import breakdown_text, metrics_text

    for note in (*measured.notes, *written, _said_cost(len(measured.examples), cost)):
        typer.echo(note, err=True)
    typer.echo(metrics_text(measured.metrics), nl=False)
    if measured.breakdown:
        typer.echo("\n" + breakdown_text(measured.breakdown), nl=False)


def _said_cost(num_examples: int, cost: dict[str, Any]) -> str:
    trained = (
        f"; fine-tuning took {cost['minutes']:.1f} minutes on {cost['device']}" if cost["minutes"] is not None else ""
    )
    return f"{num_examples:,} examples in {cost['seconds']:.1f} s{trained}"


def predict(
    models: ModelsArgument,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file: .csv, .tsv, .jsonl, .json or .parquet.")],
    out: Annotated[str, typer.Option(help="The file to write: .csv, .tsv or .jsonl (with the scores of all labels).")],
    column: ColumnOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
) -> None:
    """Predict for every row of a file, of any size; several models predict together."""
    from bertworks.prediction_files import write_predictions
    from bertworks.row_files import check_row_file
    from bertworks.tasks.named_columns import named_columns

    check_row_file(out)
    _, ensemble = _load_all(models, device, dtype)
    count, notes = write_predictions(ensemble, source, out, named_columns(ensemble.task.kind, column or []))
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"{out}: {count:,} predictions", err=True)


def classify(
    model: ModelArgument,
    texts: TextsArgument,
    pair: Annotated[str | None, typer.Option(help="The second text, for a model of pairs.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Tell the class, the score or the labels of texts."""
    lines = list(lines_of(texts))
    pairs = None if pair is None else [check_utf8(pair)] * len(lines)
    results = _load(model, device, dtype).classify(lines, pairs)
    if as_json:
        print_json(results)
        return
    for text, result in zip(lines, results, strict=True):
        typer.echo(f"{_said(result)}  {text}")


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
        typer.echo(f"{score:6.1%}  {ending}")


def _load_all(models: Sequence[str], device: str, dtype: str) -> tuple[list[Any], Any]:
    from bertworks.ensemble import Ensemble

    opened = [_load(model, device, dtype) for model in models]
    return opened, Ensemble(opened, models)


def _load(model: str, device: str, dtype: str) -> Any:
    from bertworks.errors import UserError
    from bertworks.language_models import LanguageModel
    from bertworks.model import load

    opened = load(model, device=device, dtype=dtype)
    if isinstance(opened, LanguageModel):
        raise UserError(f"{model} was not fine-tuned for a task; see `bertworks finetune`")
    return opened
