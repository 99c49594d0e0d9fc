"""The commands that use a model: fill, nsp, tag, answer, embed, features, attend; evaluate, predict, classify, choose.

Texts are arguments or the lines of standard input. A model that cannot do it is refused before any work.
"""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bertworks.cli.options import (
    DTYPE_HELP,
    BulkDtypeOption,
    ColumnOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    ModelsArgument,
    QuietOption,
    RunnerOption,
    TextsArgument,
    ThreadsOption,
    TruncateOption,
    check_utf8,
    file_lines,
    file_text,
    lines_of,
    print_json,
    say,
    say_dtype,
    say_next,
    use_threads,
    warn,
)
from bertworks.errors import UserError, counted

# Characters beside an answer: in which its sentence is looked for, and that are shown of it.
_AROUND, _SHOWN_AROUND = 400, 100
# How a program reads a file of features, by the libraries that people have for it.
_READERS = {
    ".safetensors": "safetensors.numpy.load_file({!r})",
    ".jsonl": "[json.loads(line) for line in open({!r})]",
    ".parquet": "pandas.read_parquet({!r})",
}


def fill(
    model: ModelArgument,
    texts: TextsArgument,
    top_k: Annotated[int, typer.Option(help="Number of guesses for each mask.")] = 5,
    target: Annotated[list[str] | None, typer.Option(help="Only this word; may be given several times.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict the word at each [MASK] of a text."""
    from bertworks.inference.heads import check_masks

    net = _open(model, "fill", device, dtype)
    for place, text in enumerate(lines_of(texts, refuse_blank=True), 1):
        if texts == ["-"] and not text.strip():
            warn(f"standard input, line {place} is empty")
        elif texts == ["-"]:
            check_masks(text, f"standard input, line {place}: ")
        masks = net.fill(text, top_k, targets=target, truncate=truncate) if text.strip() else []
        if as_json:
            print_json(masks)
            continue
        for number, guesses in enumerate(masks, 1):
            say(text if len(masks) == 1 else f"{text}  (mask {number} of {len(masks)})")
            for guess in guesses:
                say(f"  {guess['score']:6.1%}  {guess['token']}")


def nsp(
    model: ModelArgument,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The text that may follow it.")],
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict how likely B follows A in a document."""
    follows = _open(model, "nsp", device, dtype).nsp(check_utf8(first), check_utf8(second), truncate=truncate)
    if as_json:
        print_json({"is_next": follows, "is_random": 1 - follows})
    else:
        say(f"{follows:6.1%}  B follows A\n{1 - follows:6.1%}  B is from elsewhere")


def tag(
    model: ModelArgument,
    texts: TextsArgument,
    units: Annotated[
        str | None, typer.Option(help="The unit to tag: word or character; default: as in training.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the entities that a model was trained to tag in texts of any length."""
    lines = list(lines_of(texts, refuse_blank=True))
    found = _open(model, "tag", device, dtype).tag(lines, units=units)
    for text, entities in zip(lines, found, strict=True):
        if as_json:
            print_json(entities)
            continue
        say(text)
        for entity in entities:
            place = f"{entity['start']}-{entity['end']}"
            say(f"  {entity['score']:6.1%}  {entity['type']}  {entity['text']}  ({place})")


def answer(
    model: ModelArgument,
    question: Annotated[str, typer.Option(help="The question.")],
    context: Annotated[str | None, typer.Option(help="The text to look in.")] = None,
    file: Annotated[str | None, typer.Option(help="A file with the text to look in.")] = None,
    top_k: Annotated[int, typer.Option(help="Number of answers.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(help="Give no answer if its score is above the best answer's by more than this; such as 0."),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the answer to a question in a text of any length."""
    if (context is None) == (file is None):
        raise UserError("give the text to look in with --context, or a file that holds it with --file")
    text = check_utf8(context) if context is not None else file_text(Path(file or ""))
    net = _open(model, "answer", device, dtype)
    found = net.answer(check_utf8(question), text, top_k=top_k, threshold=threshold)
    if as_json:
        print_json(found)
        return
    for one in found:
        if one["start"] is None:
            say(f"{one['score']:6.1%}  (no answer)")
            continue
        say(f"{one['score']:6.1%}  {one['text']}  ({one['start']}-{one['end']})")
        say(f"        {_around(text, one['start'], one['end'])}")
    if not found:
        say("there is no answer: the text is empty", err=True)


def _around(text: str, start: int, end: int) -> str:
    """Return the sentence that an answer is from, on one line, the answer in [brackets]; a long one is cut."""
    from bertworks.text.sentences import sentence_spans

    # Sentences are looked for near the answer alone: a text may be a book.
    first, last = max(0, start - _AROUND), min(len(text), end + _AROUND)
    spans = [(first + left, first + right) for left, right in sentence_spans(text[first:last])]
    touched = [(left, right) for left, right in spans if left < end and start < right] or [(start, end)]
    left, right = min(touched[0][0], start), max(touched[-1][1], end)
    cut_left, cut_right = max(left, start - _SHOWN_AROUND), min(right, end + _SHOWN_AROUND)
    before, after = "..." * (cut_left > left), "..." * (cut_right < right)
    text_shown = f"{before}{text[cut_left:start]}[{text[start:end]}]{text[end:cut_right]}{after}"
    return " ".join(text_shown.split())


def embed(
    model: ModelArgument,
    texts: TextsArgument,
    layers: Annotated[
        str | None, typer.Option(help="Layers by number, 0 the embeddings, -1 the last: -1,-2 or all.  [default: -1]")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="cls (not GPT-1, ELMo), mean, max, last, ...; default: the folder's, or mean."),
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="One of the folder's prompts by name; default: the one it names, or none.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write an .npy file instead of printing.")] = None,
    device: DeviceOption = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(help=f"{DTYPE_HELP}  [default: auto for standard input, else float32]", show_default=False),
    ] = None,
    threads: ThreadsOption = None,
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compute a vector for each text."""
    import numpy as np

    from bertworks.files import atomic_write, check_can_write

    if out:
        if Path(out).suffix != ".npy":
            raise UserError(f"cannot tell the format of {out}; use a name that ends in .npy")
        check_can_write(out)
    use_threads(threads)
    net = _open(model, "embed", device, dtype or ("auto" if texts == ["-"] else None))
    lines = list(lines_of(texts, refuse_blank=True))
    vectors = net.embed(
        lines, layers=None if layers is None else _layers(layers), pooling=pooling, normalize=normalize, prompt=prompt,
        truncate=truncate,
    )  # fmt: skip
    if not net.is_exported:
        say_dtype(net.dtype)
    if out:
        with atomic_write(out, "wb") as stream:
            np.lib.format.write_array(stream, vectors, allow_pickle=False)
        say(f"{out}: {counted(len(vectors), 'vector')} of {vectors.shape[1]:,} numbers", err=True)
        return
    for vector in vectors.tolist():
        print_json(vector) if as_json else say(" ".join(f"{number:.6f}" for number in vector))


def features(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file with a text on each line, or -.")],
    out: Annotated[str, typer.Option(help="The file to write: .safetensors, .jsonl or .parquet.")],
    layers: LayersOption = "all",
    per: Annotated[str, typer.Option(help="token, or word: the first piece of each.")] = "token",
    device: DeviceOption = "auto",
    dtype: BulkDtypeOption = "auto",
    threads: ThreadsOption = None,
    runner: RunnerOption = "local",
    truncate: TruncateOption = False,
) -> None:
    """Write the hidden states of every token or word of the texts of a file."""
    from bertworks.cluster import is_on_ray
    from bertworks.files import check_can_write
    from bertworks.inference.features import write_features

    check_can_write(out, source)
    on_ray, compute = is_on_ray(runner), None
    use_threads(threads)
    net = _open(model, "features", "cpu" if on_ray else device, dtype)
    lines = list(lines_of(["-"])) if source == "-" else file_lines(Path(source))
    chosen = _layers(layers)
    if on_ray:
        from bertworks.inference.ray import features_on_cluster

        compute = features_on_cluster(model, net.dtype, device, threads, net.check_layers(chosen), truncate)
    write_features(net, lines, Path(out), layers=chosen, per=per, truncate=truncate, compute=compute)
    if not net.is_exported:
        say_dtype(net.dtype)
    say(f"{out}: features of {counted(len(lines), 'text')}", err=True)
    say(f"next: in Python, {_READERS[Path(out).suffix].format(out)}", err=True)


def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    pair: Annotated[str | None, typer.Argument(metavar="[TEXT_B]", help="A second text.")] = None,
    out: Annotated[str, typer.Option(help="The page to write.")] = "attention.html",
    device: DeviceOption = "auto",
    truncate: TruncateOption = False,
) -> None:
    """Write a page that shows what each token attends to, to open in a browser."""
    from bertworks.files import atomic_write, check_can_write
    from bertworks.report.attention import attention_page

    check_can_write(out)
    texts = [check_utf8(part) for part in (text, pair) if part is not None]
    encoding, weights = _open(model, "attention", device, "float32").attention(*texts, truncate=truncate)
    title = f"{Path(os.path.abspath(model)).name}: {' | '.join(texts)}"  # a folder has a name even where "." is given
    with atomic_write(out) as stream:
        stream.write(attention_page(encoding.tokens, encoding.segment_ids, weights, title))
    num_layers, num_heads, num_tokens, _ = weights.shape
    say(
        f"{out}: {counted(num_layers, 'layer')} of {counted(num_heads, 'head')} over {counted(num_tokens, 'token')}",
        err=True,
    )


def _open(model: str, method: str, device: str, dtype: str | None) -> Any:
    """Open a model that can do what a method of it asks for."""
    from bertworks.inference.model import load

    opened = load(model, device=device, dtype=dtype)
    opened.check_can(method)
    return opened


def _layers(given: str) -> Any:
    try:
        return given if given == "all" else [int(number) for number in given.split(",")]
    except ValueError:
        raise UserError(f"--layers {given[:40]} is not a list of numbers; such as -1,-2 or all") from None


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
        str | None,
        typer.Option(help="The split: dev (default), test, ...; of prepared text holdout (default) or train."),
    ] = None,
    column: ColumnOption = None,
    wrong: Annotated[
        str | None, typer.Option(help="Write the wrong predictions, the most confident first: .jsonl, .csv or .tsv.")
    ] = None,
    csv_safe: CsvSafeOption = False,
    predictions: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all predictions in the benchmark's own format.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=8, max=65_536, help="Longest sequence of prepared text.  [default: 128]")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of prepared text about so many, in batches.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a fine-tuned model on a task, or a pre-trained one on text; several fine-tuned ones are averaged."""
    from bertworks.inference import evaluate as measuring
    from bertworks.inference.held_out import measure_text
    from bertworks.inference.minimal_pairs import BLIMP, measure_pairs
    from bertworks.processes import progress_bar
    from bertworks.tasks.own_files import named_columns

    started = time.monotonic()
    use_threads(threads)
    if measuring.is_text(task, data):
        if column or wrong or csv_safe or predictions:
            raise UserError("--column, --wrong and --predictions are for tasks; name the task with --task")
        if len(models) > 1:
            raise UserError("only one model can be measured on text; several need a task, named with --task")
        with progress_bar(quiet=as_json) as progress:
            metrics, counts, length = measure_text(
                models[0], data, split=split or "holdout", max_length=max_length, max_tokens=max_tokens,
                device=device, dtype=dtype, progress=progress,
            )  # fmt: skip
        seconds = time.monotonic() - started
        if as_json:
            print_json(metrics | counts | {"max_length": length, "seconds": round(seconds, 2)})
            return
        sizes = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        say(f"{sizes}; sequences of up to {length}; {seconds:.1f} s", err=True)
        say(measuring.metrics_text(metrics), nl=False)
        say_next("finetune", "classify", "--model", models[0], "--train", "TRAIN.csv", "--out", "TUNED")
        return
    if max_length or max_tokens:
        raise UserError("--max-length and --max-tokens are for prepared text; for a task a model uses its own")
    if task == BLIMP:
        if len(models) > 1 or split or column or wrong or csv_safe or predictions:
            raise UserError("minimal pairs are measured with one pre-trained model, and --data DIR alone")
        with progress_bar(quiet=as_json) as progress:
            found, _ = measure_pairs(models[0], data, device=device, dtype=dtype, progress=progress)
        seconds = round(time.monotonic() - started, 2)
        if as_json:
            print_json(found | {"seconds": seconds})
            return
        sizes = f"{found['examples']:,} pairs in {counted(len(found['sets']), 'set')}"
        say(f"{sizes}, of which {found['ties']:,} are ties and count half; {seconds:.1f} s", err=True)
        say(measuring.metrics_text({"accuracy": found["accuracy"], **found["terms"]}), nl=False)
        return
    split, named = split or "dev", task
    ensemble, task = measuring.open_for(models, data, named, device=device, dtype=dtype)
    columns = named_columns(task, column or [])
    measuring.check_outputs(task, data, split, wrong, predictions, csv_safe=csv_safe)
    with progress_bar(quiet=as_json) as progress:
        measured = measuring.measure_models(
            ensemble, task, data, split, columns, needs_labels=predictions is None or wrong is not None,
            progress=progress,
        )  # fmt: skip
    written = measuring.write_outputs(measured, wrong, predictions, csv_safe=csv_safe)
    cost = {**measuring.training_cost(ensemble.models), "seconds": round(time.monotonic() - started, 2)}
    if as_json:
        print_json(measured.as_json() | cost | {"notes": list(measured.notes)})
        return
    took = f"{counted(len(measured.examples), 'example')} in {cost['seconds']:.1f} s"
    if cost["minutes"] is not None:
        took += f"; fine-tuning took {cost['minutes']:.1f} minutes on {cost['device']}"
    for note in (*measured.notes, *written, took):
        say(note, err=True)
    say(measuring.metrics_text(measured.metrics), nl=False)
    if measured.breakdown:
        say("\n" + measuring.breakdown_text(measured.breakdown), nl=False)
    if wrong is None and measured.metrics:
        given = [word for one in column or [] for word in ("--column", one)]
        which = [] if split == "dev" else ["--split", split]
        command = ["evaluate", *models, *([] if named is None else ["--task", named]), "--data", data, *which, *given]
        say_next(*command, "--wrong", "wrong.csv", why="its wrong predictions")
    else:
        say_next("predict", *models, "INPUT.csv", "--out", "predictions.csv")


def predict(
    models: ModelsArgument,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file: .csv, .tsv, .jsonl, .json or .parquet.")],
    out: Annotated[
        str | None, typer.Option(help="The file to write: .csv, .tsv or .jsonl (with the scores of all labels).")
    ] = None,
    column: ColumnOption = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Write the input's own columns before the predictions.")
    ] = True,
    csv_safe: CsvSafeOption = False,
    device: DeviceOption = "auto",
    dtype: BulkDtypeOption = "auto",
    threads: ThreadsOption = None,
    runner: RunnerOption = "local",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict for every row of a file, of any size; several models predict together."""
    from bertworks.cluster import is_on_ray
    from bertworks.inference.predict import check_row_file, open_models, predicted_rows, write_predictions
    from bertworks.processes import progress_bar
    from bertworks.tasks.own_files import named_columns

    if out is None and not as_json:
        raise UserError("give --out FILE, or --json to have the predictions on standard output")
    if csv_safe and out is None:
        raise UserError("--csv-safe is for a table; give --out FILE.csv, or leave it out")
    if out is not None:
        check_row_file(out, source, csv_safe=csv_safe)
    on_ray, compute = is_on_ray(runner), None
    use_threads(threads)
    ensemble = open_models(models, device="cpu" if on_ray else device, dtype=dtype)
    if on_ray:
        from bertworks.inference.ray import compute_on_cluster

        compute = compute_on_cluster(device, threads)
    columns, notes = named_columns(ensemble.task.kind, column or []), list[str]()
    with progress_bar(quiet=quiet or as_json) as progress:
        if out is None:
            found = list(predicted_rows(ensemble, source, columns, notes, progress, keep=keep, compute=compute))
        else:
            count, notes = write_predictions(
                ensemble, source, out, columns, progress, keep=keep, csv_safe=csv_safe, compute=compute
            )
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
        list[str] | None,
        typer.Option(help="The second text, for a model of pairs: one for all texts, or one for each."),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the class, the score or the labels of texts."""
    lines = list(lines_of(texts, refuse_blank=True))
    seconds = [check_utf8(one) for one in pair or []]
    pairs = seconds * len(lines) if len(seconds) == 1 else seconds or None
    results = _open(model, "classify", device, dtype).classify(lines, pairs)
    if as_json:
        print_json(results)
        return
    for text, result in zip(lines, results, strict=True):
        if "labels" in result:
            message = ", ".join(result["labels"]) or "no label"
        else:
            message = f"{result['score']:6.1%}  {result['label']}" if "label" in result else f"{result['score']:.4f}"
        say(f"{message}  {text}")


def choose(
    model: ModelArgument,
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="The text that comes first.")],
    endings: Annotated[list[str], typer.Argument(metavar="ENDING...", help="Possible endings, at least two.")],
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the ending that best fits a context."""
    opened = _open(model, "choose", device, dtype)
    result = opened.choose(check_utf8(context), [check_utf8(ending) for ending in endings])
    if as_json:
        print_json(result)
        return
    for ending, score in sorted(zip(endings, result["scores"], strict=True), key=lambda pair: -pair[1]):
        say(f"{score:6.1%}  {ending}")
