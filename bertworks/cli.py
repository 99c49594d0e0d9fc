"""The command `bertworks`. Each command is a thin wrapper; what it needs is imported when it runs.

Results go to standard output, as JSON where `--json` is given; everything else goes to standard error. A person's
mistake ends in one or two lines and exit code 2, an interruption in 130.
"""

import json
import sys
import time
from typing import Annotated, Any, NoReturn

import typer

from bertworks import __version__
from bertworks.cli_models import add_commands
from bertworks.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="BERT, the whole works: from raw text to a vocabulary, a model, its tables and a server.",
)

CorpusArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Files, folders, patterns or - for standard input: .txt (a blank line between documents), .jsonl, "
        ".parquet, Wikipedia dumps (.xml.bz2); packed with .gz, .bz2, .xz or .zst.",
    ),
]
CasedOption = Annotated[bool, typer.Option("--cased", help="Keep upper case, and accents with it.")]
KeepAccentsOption = Annotated[
    bool, typer.Option("--keep-accents", help="Lower-case, but keep accents and whole Hangul syllables.")
]
JoinCjkOption = Annotated[bool, typer.Option("--join-cjk", help="Do not make every Chinese character a word.")]
TextFieldOption = Annotated[str, typer.Option(help="The field of .jsonl and .parquet that holds the text.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Refuse invalid UTF-8 instead of replacing it.")]
WorkersOption = Annotated[int | None, typer.Option(help="Processes to use; default: one a core.")]
VocabOption = Annotated[str, typer.Option("--vocab", help="A vocabulary file, or a folder with tokenizer files.")]
OverridesArgument = Annotated[list[str] | None, typer.Argument(metavar="[key=value...]", help="Settings to change.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
SkipBadShardsOption = Annotated[
    bool, typer.Option("--skip-bad-shards", help="Leave out corrupt or missing shards with a warning; reads them all.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(no_args_is_help=True)
def vocab(
    corpus: CorpusArgument,
    out: Annotated[str, typer.Option(help="The file to write, one piece a line; for gpt-bpe a folder.")],
    size: Annotated[int, typer.Option(help="How many pieces, special and unused ones among them.")] = 30_522,
    algorithm: Annotated[
        str,
        typer.Option(
            help="For BERT wordpiece (gain in likelihood) or bpe (frequency); for GPT-1 gpt-bpe; for ELMo words."
        ),
    ] = "wordpiece",
    unused: Annotated[int, typer.Option(help="How many [unusedN] pieces to reserve.")] = 0,
    coverage: Annotated[float, typer.Option(help="Share of the text's characters to cover.")] = 0.99995,
    min_count: Annotated[int, typer.Option(help="What occurs less often is not used.")] = 20,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    text_field: TextFieldOption = "text",
    strict: StrictOption = False,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn a vocabulary from raw text."""
    from bertworks.config import VocabSettings, validate
    from bertworks.progress import progress_bar
    from bertworks.text.corpus import Corpus
    from bertworks.text.learn import learn_vocabulary

    started = time.monotonic()
    options = {"size": size, "algorithm": algorithm, "unused": unused, "coverage": coverage, "min_count": min_count}
    settings = validate(VocabSettings, options, "bertworks vocab")
    check_workers(workers)
    check_can_save(out, settings.algorithm)
    source = Corpus(corpus, strict=strict, text_field=text_field)
    word_rules = rules(cased, keep_accents, join_cjk)
    with progress_bar(quiet=quiet or as_json) as progress:
        learned = learn_vocabulary(source, rules=word_rules, workers=workers, progress=progress, **dict(settings))
        save_vocabulary(out, learned, word_rules, settings.algorithm)
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
        warn(f"the text gives only {len(learned.pieces):,} of {size:,} pieces; lower --min-count or add text")
    if as_json:
        print_json(result)
    elif not quiet:
        typer.echo(
            "{out}: {pieces:,} pieces from {words:,} words ({distinct_words:,} distinct, {alphabet:,} characters) "
            "of {documents:,} documents in {seconds:.0f} s".format(**result)
        )


@app.command(no_args_is_help=True)
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
    from bertworks.progress import progress_bar
    from bertworks.text.corpus import Corpus
    from bertworks.text.kinds import open_tokenizer

    started = time.monotonic()
    check_workers(workers)
    if not 0 <= holdout < 1:
        raise UserError(f"--holdout {holdout} is not a share; choose 0 up to, but not, 1")
    tokenizer = open_tokenizer(vocab, rules(cased, keep_accents, join_cjk), tokens)
    source = Corpus(corpus, strict=strict, text_field=text_field)
    options = Options(holdout, lines_are_sentences, drop_headings, drop_duplicates, min_tokens)
    with progress_bar(quiet=quiet or as_json) as progress:
        manifest = prepare(source, tokenizer, out, options, workers=workers, runner=runner, progress=progress)
    warn_of_replaced(source.num_replaced)
    counts = manifest["train"]
    result = {"out": out, **counts, "holdout": manifest["holdout"], "seconds": round(time.monotonic() - started, 2)}
    if as_json:
        print_json(result)
    elif not quiet:
        typer.echo(
            f"{out}: {counts['tokens']:,} tokens in {counts['sentences']:,} sentences of {counts['documents']:,} "
            f"documents, {manifest['holdout']['documents']:,} more kept aside, in {result['seconds']:.0f} s"
        )


@app.command(no_args_is_help=True)
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
    from bertworks.locate import is_model

    if is_model(data):
        from bertworks.model_report import model_report, report_text

        report = model_report(data)
        print_json(report) if as_json else typer.echo(report_text(report))
        return
    import itertools

    from bertworks.config import from_overrides
    from bertworks.data import inspect
    from bertworks.data.settings import DataSettings
    from bertworks.data.shards import Dataset

    settings = from_overrides(
        DataSettings, [text.removeprefix("data.") for text in overrides or []], "bertworks inspect"
    )
    dataset = Dataset(data, skip_bad_shards=skip_bad_shards)
    if not instances:
        found = inspect.summary(dataset)
        print_json(found) if as_json else typer.echo(inspect.summary_text(found))
    for instance in itertools.islice(inspect.instances(dataset, settings, seed=seed), max(0, instances)):
        print_json(instance) if as_json else typer.echo(inspect.instance_text(instance) + "\n")


@app.command(no_args_is_help=True)
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A checkpoint of the original BERT (its prefix, .index file or folder), or a model folder.",
        ),
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A new folder; or, for a checkpoint, NEW_FOLDER/NAME.ckpt.")
    ],
    to: Annotated[str | None, typer.Option(help="google or folder; else told by whether DST ends in .ckpt.")] = None,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--lowercase", help="How the model's text was; else told by the vocabulary.", show_default=False
        ),
    ] = None,
    with_optimizer: Annotated[bool, typer.Option("--with-optimizer", help="Adam's state and the step too.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a TensorFlow checkpoint of the original BERT to a model folder, or back."""
    from bertworks.interop.convert import convert

    lowercase = None if cased is None else not cased
    converted = convert(source, destination, to=to, lowercase=lowercase, with_optimizer=with_optimizer)
    for warning in converted.warnings:
        warn(warning)
    if as_json:
        print_json(converted._asdict())
    elif not quiet:
        for note in converted.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"{converted.out}: {converted.parameters:,} parameters in {converted.tensors:,} tensors")


@app.command(no_args_is_help=True)
def tokenize(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts, or - for the lines of standard input.")],
    vocab: VocabOption,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how texts are split into pieces."""
    from bertworks.text.kinds import open_tokenizer

    tokenizer = open_tokenizer(vocab, rules(cased, keep_accents, join_cjk))
    for text in (line.removesuffix("\n") for line in sys.stdin) if texts == ["-"] else texts:
        if as_json:
            encoding = tokenizer.encode(text)
            print_json({"ids": encoding.ids, "tokens": encoding.tokens, "offsets": encoding.offsets})
        else:
            typer.echo(" ".join(tokenizer.tokenize(text)))


@app.command()
def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with the package."""
    from bertworks.config import recipe_names, recipe_summary

    summaries = {name: recipe_summary(name) for name in recipe_names()}
    if as_json:
        print_json(summaries)
    else:
        for name, summary in summaries.items():
            typer.echo(f"{name:<16} {summary}")


@app.command()
def demo(
    overrides: OverridesArgument = None,
    quiet: QuietOption = False,
) -> None:
    """Show what there is, on this machine, with text that comes with Python."""
    from bertworks.demo import run_demo

    run_demo(overrides or [], quiet=quiet)


add_commands(app)


def rules(cased: bool, keep_accents: bool, join_cjk: bool) -> Any:
    """Make normalisation rules from the options."""
    from bertworks.text.normalize import Rules

    return Rules(lowercase=not cased, strip_accents=not cased and not keep_accents, split_cjk=not join_cjk)


def check_can_save(out: str, algorithm: str) -> None:
    """Raise now what saving a vocabulary would raise after minutes of work."""
    from pathlib import Path

    from bertworks.files import check_can_write
    from bertworks.text.gpt_files import PIECES_FILE

    if algorithm == "gpt-bpe" and Path(out).is_file():
        raise UserError(f"cannot write {out}: it is a file, and gpt-bpe makes a folder; choose another --out")
    is_folder = algorithm == "gpt-bpe" and Path(out).is_dir()
    check_can_write(Path(out) / PIECES_FILE if is_folder else out)


def save_vocabulary(out: str, learned: Any, rules: Any, algorithm: str) -> None:
    """Write a vocabulary file, or the folder of a GPT-1 tokenizer."""
    from bertworks.text.gpt_bpe import GptTokenizer
    from bertworks.text.vocabulary import write_vocabulary

    if algorithm == "gpt-bpe":
        GptTokenizer(learned.pieces, learned.merges, rules).save(out)
    else:
        write_vocabulary(out, learned.pieces)


def check_workers(workers: int | None) -> None:
    """Refuse a number of processes that cannot be meant."""
    if workers is not None and not 1 <= workers <= 1024:
        raise UserError(f"--workers {workers} is not possible; choose 1 to 1024, or leave it out for one a core")


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def warn(message: str) -> None:
    """Tell something that is not an error."""
    typer.echo(f"warning: {message}", err=True)


def warn_of_replaced(num_lines: int) -> None:
    """Tell that invalid UTF-8 was replaced."""
    if num_lines:
        warn(f"{num_lines:,} lines were not valid UTF-8; replaced there (--strict refuses them)")


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        typer.echo(f"bertworks {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take options that stand before the command."""


def main() -> NoReturn:
    """Run the command; a person's mistake ends in a line and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
    except OSError as error:
        typer.echo(f"error: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
    else:
        sys.exit(0)
    sys.exit(2)
