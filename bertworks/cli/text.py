"""The commands from raw text to pre-training data: vocab, texts, prepare, inspect (also for models), tokenize."""

import itertools
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    TextsArgument,
    TrainOption,
    VocabOption,
    WorkersOption,
    check_rules,
    check_workers,
    lines_of,
    open_words,
    print_json,
    rules,
    say,
    say_next,
    warn,
    warn_of_replaced,
)
from bertworks.errors import UserError, counted

if TYPE_CHECKING:
    from bertworks.config import VocabSettings
    from bertworks.text.corpus import Corpus
    from bertworks.text.normalize import Rules

_RECIPES = {"wordpiece": "tiny-cpu", "gpt-bpe": "gpt", "words": "elmo"}  # the recipe to suggest for each kind of tokens


def vocab(
    corpus: CorpusArgument,
    out: Annotated[str, typer.Option(help="The file to write, with one piece per line; for gpt-bpe a folder.")],
    size: Annotated[int, typer.Option(help="Number of pieces, including special and unused ones.")] = 30_522,
    algorithm: Annotated[
        str,
        typer.Option(
            help="BERT: wordpiece (merges by gain in likelihood) or bpe (by frequency); GPT-1: gpt-bpe; ELMo: words."
        ),
    ] = "wordpiece",
    unused: Annotated[int, typer.Option(help="Number of [unusedN] pieces to reserve.")] = 0,
    coverage: Annotated[float, typer.Option(help="Share of the text's characters to cover.")] = 0.99995,
    min_count: Annotated[int, typer.Option(help="Ignore words that occur less often.")] = 20,
    extend: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|VOCAB", help="Add words to this vocabulary: of a model (--out is a folder) or in a file."
        ),
    ] = None,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    text_field: TextFieldOption = "text",
    strict: StrictOption = False,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn a vocabulary from raw text, or add words to one."""
    from bertworks.config import VocabSettings, validate
    from bertworks.text.corpus import Corpus
    from bertworks.text.gpt import PIECES_FILE
    from bertworks.text.learn import learn_vocabulary

    started = time.monotonic()
    options = {"size": size, "algorithm": algorithm, "unused": unused, "coverage": coverage, "min_count": min_count}
    settings = validate(VocabSettings, options, "bertworks vocab")
    check_workers(workers)
    source = Corpus(corpus, strict=strict, text_field=text_field)
    word_rules = rules(cased, keep_accents, join_cjk)
    if extend is not None:
        extend_by_words(source, extend, out, word_rules, settings, workers, quiet=quiet, as_json=as_json)
        return
    _check_can_save(out, source.files, PIECES_FILE if algorithm == "gpt-bpe" else None, "gpt-bpe")
    how = word_rules._asdict() | dict(settings)
    learned = learn_vocabulary(source, workers=workers, quiet=quiet or as_json, **how)
    learned.save(out)
    result: dict[str, Any] = {
        "out": out,
        "pieces": len(learned.pieces),
        "words": learned.num_word_tokens,
        "distinct_words": learned.num_words,
        "alphabet": learned.num_letters,
        "documents": source.num_documents,
        "replaced_lines": source.num_replaced,
        "seconds": round(time.monotonic() - started, 2),
    }
    warn_of_replaced(source.num_replaced)
    if len(learned.pieces) < size:
        warn(f"the text gives only {len(learned.pieces):,} of {counted(size, 'piece')}; lower --min-count or add text")
    if as_json:
        print_json(result)
    elif not quiet:
        say(
            "{out}: {pieces:,} pieces from {words:,} words ({distinct_words:,} distinct, {alphabet:,} characters) "
            "of {from_documents} in {seconds:.0f} s".format(
                **result, from_documents=counted(source.num_documents, "document")
            )
        )
        same = [*(["--cased"] * cased), *(["--keep-accents"] * keep_accents), *(["--join-cjk"] * join_cjk)]
        tokens = {"gpt-bpe": ["--tokens", "gpt-bpe"], "words": ["--tokens", "words"]}.get(algorithm, [])
        say_next("prepare", *corpus, "--vocab", out, *tokens, *same, "--out", "DATA", "--holdout", "0.01")


def extend_by_words(
    source: "Corpus",
    extended: str,
    out: str,
    word_rules: "Rules",
    settings: "VocabSettings",
    workers: int | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Add words to the vocabulary of a model, and write a folder, or to one in a file, and write a file."""
    from bertworks.config import VocabSettings
    from bertworks.models.folder import find_encoder, find_model
    from bertworks.processes import progress_bar
    from bertworks.text.kinds import open_tokenizer
    from bertworks.text.learn import extend_vocabulary
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.text.vocabulary import VOCABULARY_FILE, write_vocabulary

    if settings != VocabSettings(size=settings.size, min_count=settings.min_count):
        raise UserError("--extend adds whole words; leave out --algorithm, --unused and --coverage")
    started = time.monotonic()
    is_folder = not Path(extended).is_file()
    tokenizer = open_tokenizer(find_encoder(find_model(extended)) if is_folder else extended, word_rules)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{extended} is a vocabulary of {tokenizer.kind}; only WordPiece can be extended")
    check_rules(extended, tokenizer, word_rules)
    _check_can_save(out, source.files, VOCABULARY_FILE if is_folder else None, "to extend a model's vocabulary")
    with progress_bar(quiet=quiet or as_json) as progress:
        found = extend_vocabulary(
            source, tokenizer, size=settings.size, min_count=settings.min_count, workers=workers, progress=progress
        )
    if is_folder:
        Tokenizer(found.pieces, **tokenizer.rules._asdict()).save(out)
    else:
        write_vocabulary(out, found.pieces)
    warn_of_replaced(source.num_replaced)
    if len(found.pieces) < settings.size:
        warn(f"the text gives only {counted(found.num_added, 'word')}; lower --min-count or add text")
    result: dict[str, Any] = {
        "out": out,
        "pieces": len(found.pieces),
        "added": found.num_added,
        "words": found.num_word_tokens,
        "distinct_words": found.num_words,
        "tokens_a_word_before": found.tokens_before / found.num_word_tokens,
        "tokens_a_word": found.tokens_after / found.num_word_tokens,
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json:
        print_json(result)
    elif not quiet:
        say(
            "{out}: {pieces:,} pieces, {added:,} of them new words; the text takes {tokens_a_word:.3f} tokens per word "
            "instead of {tokens_a_word_before:.3f}".format(**result)
        )
        say_next("prepare", "CORPUS", "--vocab", out, "--out", "DATA", "--holdout", "0.01")


def _check_can_save(out: str, sources: Sequence[Path], folder_file: str | None, what: str) -> None:
    """Raise early what saving a vocabulary would raise after minutes; `folder_file` is a file in it for a folder."""
    from bertworks.files import check_can_write

    if folder_file and Path(out).is_file():
        raise UserError(f"cannot write {out}: it is a file, and {what} makes a folder; choose another --out")
    is_folder = folder_file is not None and Path(out).is_dir()
    if is_folder:  # a model or data in the folder belongs to another vocabulary
        if (Path(out) / "config.json").exists():
            raise UserError(f"{out} is a model, which needs its own vocabulary; choose a new folder for --out")
        if (Path(out) / "manifest.json").exists():
            raise UserError(
                f"{out} contains data or a model made with another vocabulary; choose a new folder for --out"
            )
    check_can_write(Path(out) / str(folder_file) if is_folder else out, *sources)


def tokenize(
    texts: TextsArgument,
    vocab: VocabOption,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how texts are split into pieces."""
    tokenizer = open_words(vocab, rules(cased, keep_accents, join_cjk))
    for text in lines_of(texts):
        if as_json:
            encoding = tokenizer.encode(text)
            print_json({"ids": encoding.ids, "tokens": encoding.tokens, "offsets": encoding.offsets})
        else:
            say(" ".join(tokenizer.tokenize(text)))


def prepare(
    corpus: CorpusArgument,
    vocab: VocabOption,
    out: Annotated[str, typer.Option(help="The folder to write; an interrupted run is resumed.")],
    tokens: Annotated[
        str, typer.Option(help="The kind of tokens: wordpiece (BERT), gpt-bpe (GPT-1) or words (ELMo).")
    ] = "wordpiece",
    holdout: Annotated[float, typer.Option(help="Share of the documents to hold out for evaluation.")] = 0.0,
    lines_are_sentences: Annotated[
        bool, typer.Option("--lines-are-sentences", help="Take every line as one sentence.")
    ] = False,
    drop_headings: Annotated[bool, typer.Option("--drop-headings", help="Leave out lines that are headings.")] = False,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep only the first of identical documents.")
    ] = False,
    min_tokens: Annotated[int, typer.Option(help="Leave out documents with fewer tokens.")] = 0,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    text_field: TextFieldOption = "text",
    strict: StrictOption = False,
    workers: WorkersOption = None,
    runner: Annotated[
        str, typer.Option(help="Where processes run: local, or ray (a cluster; all nodes must see --out).")
    ] = "local",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn raw text into shards of token ids for pre-training."""
    from bertworks.data.prepare import prepare
    from bertworks.data.shards import Dataset
    from bertworks.text.corpus import Corpus
    from bertworks.text.vocabulary import much_unknown

    started = time.monotonic()
    check_workers(workers)
    if not 0 <= holdout < 1:
        raise UserError(f"--holdout {holdout} is not a share; choose at least 0 and less than 1")
    tokenizer = open_words(vocab, rules(cased, keep_accents, join_cjk), tokens)
    source = Corpus(corpus, without=[vocab], strict=strict, text_field=text_field)
    manifest = prepare(
        source,
        tokenizer,
        out,
        holdout=holdout,
        lines_are_sentences=lines_are_sentences,
        drop_headings=drop_headings,
        drop_duplicates=drop_duplicates,
        min_tokens=min_tokens,
        workers=workers,
        runner=runner,
        quiet=quiet or as_json,
    )
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
            f"held out, in {result['seconds']:.0f} s"
        )
        say_next("pretrain", _RECIPES[tokenizer.kind], "--data", out, "--out", "RUN", why="others: bertworks recipes")


def texts(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="A task of `bertworks tasks`; or, for your own files, classify, tag, ..."),
    ],
    data: DataOption = None,
    train: TrainOption = None,
    dev: DevOption = None,
    column: ColumnOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the training texts of a task, as input for `prepare`: one document per example.

    The output has no labels, and no examples on which the task is evaluated.
    """
    from bertworks.finetuning.finetune import find_data
    from bertworks.tasks.own_files import named_columns
    from bertworks.tasks.task import DEV, TRAIN, documents, examples_of

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
    instances: Annotated[int, typer.Option(help="Show this many instances as text, instead of the summary.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the instances.")] = 0,
    skip_bad_shards: SkipBadShardsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show prepared data (counts and lengths, or instances as the model sees them) or a model's sizes."""
    from bertworks.models.folder import is_model

    if instances < 0:
        raise UserError(f"--instances {instances} is not possible; give 1 or more, or leave it out for the summary")
    is_exported = data.endswith(".onnx") and os.path.isfile(data)
    if is_exported or is_model(data):
        from bertworks.inference.describe import model_report, report_text
        from bertworks.inference.model import load

        if overrides or instances or seed or skip_bad_shards:
            raise UserError(
                f"{data} is a model; leave out settings, --instances, --seed and --skip-bad-shards, "
                "which are for prepared data"
            )
        if is_exported:
            opened = load(data)
            print_json(opened.describe()) if as_json else say(repr(opened))
            return
        report = model_report(data)
        print_json(report) if as_json else say(report_text(report))
        return

    from bertworks.config import DataSettings, from_overrides
    from bertworks.data import inspect
    from bertworks.data.shards import MANIFEST, Dataset

    try:
        is_folder = stat.S_ISDIR(os.stat(data).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        is_folder = False
    except OSError as error:  # such as no permission
        raise UserError(f"cannot read {data[:80]!r}: {error.strerror}") from error
    if not is_folder:
        raise UserError(
            f"{data[:80]!r} is neither a folder that `bertworks prepare` made nor a model: no such folder, and no such "
            "name among the shipped models or in the local Hugging Face cache"
        )
    if not os.path.exists(os.path.join(data, MANIFEST)):
        raise UserError(
            f"{data} is neither prepared data (it has no {MANIFEST}; perhaps `bertworks prepare` was not finished) "
            "nor a model (it has no config.json)"
        )
    if (overrides or seed) and not instances:
        raise UserError("settings and --seed are for instances; add --instances N, or leave them out")
    changes = [text.removeprefix("data.") for text in overrides or []]
    settings = from_overrides(DataSettings, changes, "bertworks inspect")
    dataset = Dataset(data, skip_bad_shards=skip_bad_shards)
    if not instances:
        found = inspect.summary(dataset)
        print_json(found) if as_json else say(inspect.summary_text(found))
    for instance in itertools.islice(inspect.instances(dataset, settings, seed=seed), instances):
        print_json(instance) if as_json else say(inspect.instance_text(instance) + "\n")
