"""The commands of data to pre-train on: texts, prepare, inspect (which shows models too)."""

import itertools
import os
import stat
import time
from typing import Annotated

import typer

from bertworks.cli.options import (
    CasedOption,
    ColumnOption,
    CorpusArgument,
    DataOption,
    DevOption,
    JoinCjkOption,
    JsonOption,
    KeepAccentsOption,
    OverridesArgument,
    QuietOption,
    SkipBadShardsOption,
    StrictOption,
    TextFieldOption,
    TrainOption,
    VocabOption,
    WorkersOption,
    check_workers,
    open_words,
    print_json,
    rules,
    say,
    say_next,
    warn,
    warn_of_replaced,
)
from bertworks.errors import UserError, counted

_RECIPES = {"wordpiece": "tiny-cpu", "gpt-bpe": "gpt", "words": "elmo"}  # to begin with, by the kind of tokens


def prepare(
    corpus: CorpusArgument,
    vocab: VocabOption,
    out: Annotated[str, typer.Option(help="The folder to write; an interrupted run goes on in it.")],
    tokens: Annotated[
        str, typer.Option(help="The kind of tokens: wordpiece (BERT), gpt-bpe (GPT-1) or words (ELMo).")
    ] = "wordpiece",
    holdout: Annotated[float, typer.Option(help="Share of the documents to keep aside for evaluation.")] = 0.0,
    lines_are_sentences: Annotated[
        bool, typer.Option("--lines-are-sentences", help="Take every line as one sentence.")
    ] = False,
    drop_headings: Annotated[bool, typer.Option("--drop-headings", help="Leave out lines that are headings.")] = False,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep the first of documents that are the same.")
    ] = False,
    min_tokens: Annotated[int, typer.Option(help="Leave out documents with fewer tokens.")] = 0,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    text_field: TextFieldOption = "text",
    strict: StrictOption = False,
    workers: WorkersOption = None,
    runner: Annotated[
        str, typer.Option(help="Where processes run: local, or ray (a cluster; --out on storage that all nodes see).")
    ] = "local",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn raw text into shards of token ids to pre-train on."""
    from bertworks.data.prepare import Options, prepare
    from bertworks.data.shards import Dataset
    from bertworks.progress import progress_bar
    from bertworks.text.corpus import Corpus
    from bertworks.text.unknown import much_unknown

    started = time.monotonic()
    check_workers(workers)
    if not 0 <= holdout < 1:
        raise UserError(f"--holdout {holdout} is not a share; choose 0 up to, but not, 1")
    tokenizer = open_words(vocab, rules(cased, keep_accents, join_cjk), tokens)
    source = Corpus(corpus, without=[vocab], strict=strict, text_field=text_field)
    options = Options(holdout, lines_are_sentences, drop_headings, drop_duplicates, min_tokens)
    with progress_bar(quiet=quiet or as_json) as progress:
        manifest = prepare(source, tokenizer, out, options, workers=workers, runner=runner, progress=progress)
    warn_of_replaced(source.num_replaced)
    if unknown := much_unknown(tokenizer.pieces, (shard.tokens for shard in Dataset(out).shards("train"))):
        warn(unknown)
    counts = manifest["train"]
    result = {"out": out, **counts, "holdout": manifest["holdout"], "seconds": round(time.monotonic() - started, 2)}
    if as_json:
        print_json(result)
    elif not quiet:
        sizes = f"{counted(counts['tokens'], 'token')} in {counted(counts['sentences'], 'sentence')}"
        say(
            f"{out}: {sizes} of {counted(counts['documents'], 'document')}, {manifest['holdout']['documents']:,} more "
            f"kept aside, in {result['seconds']:.0f} s"
        )
        say_next("pretrain", _RECIPES[tokenizer.kind], "--data", out, "--out", "RUN", why="others: bertworks recipes")


def texts(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="A task of `bertworks tasks`, or classify, tag, ...: your own files.")
    ],
    data: DataOption = None,
    train: TrainOption = None,
    dev: DevOption = None,
    column: ColumnOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the texts that a task learns from, for `prepare` to read: a document for each example.

    There are no labels in it, and nothing that the task is measured on.
    """
    from bertworks.tasks.documents import documents
    from bertworks.tasks.named_columns import named_columns
    from bertworks.tasks.task import DEV, TRAIN
    from bertworks.tuning.start import examples_of, find_data

    def note(text: str) -> None:
        if not quiet:
            say(text, err=True)

    dataset = find_data(task, data, {TRAIN: train, DEV: dev}, note, named_columns(task, column or []))
    for lines in documents(examples_of(dataset, TRAIN, note)):
        text = "\n".join(lines)
        print_json({"text": text}) if as_json else say(text + "\n", is_data=True)


def inspect(
    data: Annotated[
        str, typer.Argument(metavar="DATA|MODEL", help="A folder that `bertworks prepare` made, or a model.")
    ],
    overrides: OverridesArgument = None,
    instances: Annotated[int, typer.Option(help="Show so many instances as text, not the summary.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the instances.")] = 0,
    skip_bad_shards: SkipBadShardsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Look at prepared data (counts and lengths, or instances as the model sees them) or at a model's sizes."""
    from bertworks.interop.locate import is_model

    if instances < 0:
        raise UserError(f"--instances {instances} is not possible; give 1 or more, or leave it out for the summary")
    if is_model(data):
        if overrides or instances or seed or skip_bad_shards:
            raise UserError(
                f"{data} is a model; settings, --instances, --seed and --skip-bad-shards are for prepared data, so "
                "leave them out"
            )
        _show_model(data, as_json)
    else:
        _show_data(data, overrides or [], instances, seed, skip_bad_shards, as_json)


def _show_model(model: str, as_json: bool) -> None:
    from bertworks.inference.model_report import model_report, report_text

    report = model_report(model)
    print_json(report) if as_json else say(report_text(report))


def _show_data(
    data: str, overrides: list[str], num_instances: int, seed: int, skip_bad_shards: bool, as_json: bool
) -> None:
    from bertworks.config import from_overrides
    from bertworks.data import inspect
    from bertworks.data.settings import DataSettings
    from bertworks.data.shards import Dataset

    _check_is_data(data)
    if (overrides or seed) and not num_instances:
        raise UserError("settings and --seed are for instances; say how many with --instances N, or leave them out")
    settings = from_overrides(DataSettings, [text.removeprefix("data.") for text in overrides], "bertworks inspect")
    dataset = Dataset(data, skip_bad_shards=skip_bad_shards)
    if not num_instances:
        found = inspect.summary(dataset)
        print_json(found) if as_json else say(inspect.summary_text(found))
    for instance in itertools.islice(inspect.instances(dataset, settings, seed=seed), num_instances):
        print_json(instance) if as_json else say(inspect.instance_text(instance) + "\n")


def _is_folder(path: str) -> bool:
    """Tell whether there is such a folder; one that may not be looked at is another matter than none."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise UserError(f"cannot look at {path[:80]!r}: {error.strerror}") from error


def _check_is_data(data: str) -> None:
    """Refuse what is neither prepared data nor a model, in words that speak of both."""
    from bertworks.data.shards import MANIFEST

    if not _is_folder(data):
        raise UserError(
            f"{data[:80]!r} is neither a folder that `bertworks prepare` made nor a model: no such folder, and no such "
            "name among the shipped models or in the local Hugging Face cache"
        )
    if not os.path.exists(os.path.join(data, MANIFEST)):
        raise UserError(
            f"{data} is neither prepared data (it has no {MANIFEST}; perhaps `bertworks prepare` was not finished) "
            "nor a model (it has no config.json)"
        )
