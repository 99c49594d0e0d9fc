"""The common parts of commands: options, reading of texts, and printing of results and warnings.

Results go to standard output, with `--json` as JSON; everything else goes to standard error. Texts are arguments, or
the lines of standard input or of a file, in UTF-8.
"""

import glob
import json
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from bertworks.errors import UserError, counted, printable
from bertworks.text.lines import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from bertworks.text.kinds import AnyTokenizer
    from bertworks.text.normalize import Rules


_MOST_NEVER_MET = 0.05  # of a vocabulary's pieces: every vocabulary has a few, from unusual letters


def complete_model(incomplete: str) -> list[str]:
    """Return what a shell offers for MODEL: the models of the package, and folders."""
    from bertworks.models.folder import shipped_names

    folders = [f"{path}/" for path in Path().glob(f"{glob.escape(incomplete)}*") if path.is_dir()]
    return [name for name in shipped_names() if name.startswith(incomplete)] + sorted(folders)


def complete_task(incomplete: str) -> list[str]:
    """Return what a shell offers for TASK: benchmarks, and kinds of tasks for one's own files."""
    from bertworks.tasks import TASKS
    from bertworks.tasks.own_files import KINDS

    return [name for name in (*KINDS, *TASKS) if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return what a shell offers for RECIPE; it offers files where nothing is left."""
    from bertworks.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return what a shell offers for key=value: each setting with its default, to be edited."""
    from bertworks.cli.info import settings_of
    from bertworks.config import described

    rows = described(settings_of("finetune" if ctx.info_name in ("finetune", "search", "glue") else "pretrain", None))
    known = {row["setting"]: "" if row["default"] is None else row["default"] for row in rows}
    return [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in known.items()
        if name.startswith(incomplete)
    ]


CorpusArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Files, folders, patterns or - for standard input: .txt (a blank line between documents), JSON "
        "lines, a JSON list, .csv, .tsv, .parquet, Wikipedia dumps (.xml.bz2); packed with .gz, .bz2, .xz or .zst.",
    ),
]
CasedOption = Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")]
KeepAccentsOption = Annotated[
    bool, typer.Option("--keep-accents", help="Lower-case, but keep accents and whole Hangul syllables.")
]
JoinCjkOption = Annotated[bool, typer.Option("--join-cjk", help="Do not make every Chinese character a separate word.")]
TextFieldOption = Annotated[str, typer.Option(help="The field or column with the text: JSON, .csv, .tsv, .parquet.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Refuse invalid UTF-8 instead of replacing it.")]
WorkersOption = Annotated[int | None, typer.Option(help="Number of processes; default: one per core.")]
VocabOption = Annotated[
    str,
    typer.Option("--vocab", help="A vocabulary file, a folder with tokenizer files, or a model or its name."),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value...]", help="Settings to change.", autocompletion=complete_setting),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]
SkipBadShardsOption = Annotated[
    bool,
    typer.Option("--skip-bad-shards", help="Skip corrupt or missing shards with a warning; reads all of them first."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model folder, a run folder, a name that `models` lists, or one in the local Hugging Face cache.",
        autocompletion=complete_model,
    ),
]
TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Texts, or - for the lines of standard input.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DTYPE_HELP = "float32, bfloat16, float16, int8, or auto: bfloat16 where the processor or GPU is fast at it."
DtypeOption = Annotated[
    str | None,
    typer.Option(help=f"{DTYPE_HELP}  [default: float32, or int8 for a model converted to it]", show_default=False),
]
BulkDtypeOption = Annotated[str, typer.Option(help=DTYPE_HELP)]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Number of threads on a CPU; default: one per core.")
]
RunnerOption = Annotated[
    str,
    typer.Option(help="Where it is computed: local, or ray (a cluster; --threads is then of each worker, usually 1)."),
]
TruncateOption = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")]
LayersOption = Annotated[
    str, typer.Option(help="Numbers of layers, such as -1,-2, or all; 0: the embeddings, -1: the last layer.")
]

ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Model folders, run folders, names that `models` lists, or some in the local Hugging Face cache.",
        autocompletion=complete_model,
    ),
]
DataOption = Annotated[str | None, typer.Option(help="The folder with the task's files.")]
TrainOption = Annotated[str | None, typer.Option(help="Your own file to train on: .csv, .tsv, .jsonl, ...")]
DevOption = Annotated[str | None, typer.Option(help="Your own file to evaluate on; default: a tenth of --train.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE=COLUMN", help="The role of a column of your own file, such as label=stars; repeatable."),
]


def rules(cased: bool, keep_accents: bool, join_cjk: bool) -> "Rules":
    """Make normalisation rules from the options."""
    from bertworks.text.normalize import Rules

    return Rules(lowercase=not cased, strip_accents=not cased and not keep_accents, split_cjk=not join_cjk)


def open_words(vocab: str, text_rules: "Rules", tokens: str | None = None) -> "AnyTokenizer":
    """Open the --vocab argument: a vocabulary, or the tokenizer of a model.

    A file does not record how its text was normalised, so a vocabulary that does not match the options gives a warning.
    """
    from unicodedata import normalize

    from bertworks.models.folder import find_encoder, find_model, is_model
    from bertworks.text.kinds import open_tokenizer

    tokenizer = open_tokenizer(find_encoder(find_model(vocab)) if is_model(vocab) else vocab, text_rules, tokens)
    check_rules(vocab, tokenizer, text_rules)
    if tokenizer.kind in ("wordpiece", "words") and tokenizer.rules == text_rules:  # a folder has its own rules
        never_met = [
            piece
            for piece in tokenizer.pieces
            if not (piece.startswith("[") and piece.endswith("]"))  # not special, and impossible in normalised text
            and (
                (text_rules.lowercase and piece != piece.lower())
                or (text_rules.strip_accents and piece != normalize("NFD", piece))
            )
        ]
        if len(never_met) > _MOST_NEVER_MET * len(tokenizer.pieces):
            warn(
                f"{len(never_met):,} of {len(tokenizer.pieces):,} pieces of {vocab}, such as {never_met[-1]!r}, are "
                "impossible in text without capitals and accents; if it was made with --cased or --keep-accents, use "
                "that here too"
            )
    return tokenizer


def check_rules(vocab: str, tokenizer: "AnyTokenizer", text_rules: "Rules") -> None:
    """Refuse options that contradict a folder's own rules."""
    own = tokenizer.rules
    if text_rules not in (own, rules(False, False, False)):
        summary = ", ".join(f"{name}={str(value).lower()}" for name, value in own._asdict().items())
        raise UserError(
            f"{vocab} has its own rules ({summary}); leave out --cased, --keep-accents and --join-cjk, or give a "
            "file with the vocabulary alone"
        )


def use_threads(count: int | None) -> None:
    """Let torch compute with so many threads; None: with as many as there are cores."""
    if count is not None:
        import torch

        torch.set_num_threads(count)


def say_dtype(dtype: str) -> None:
    """Say in what numbers a model is computed, where the command chose others than float32."""
    if dtype != "float32":
        say(f"computed in {dtype}, faster and a little less exact; --dtype float32 is exact", err=True)


def check_workers(workers: int | None) -> None:
    """Refuse an impossible number of processes."""
    if workers is not None and not 1 <= workers <= 1024:
        raise UserError(f"--workers {workers} is not possible; choose 1 to 1024, or leave it out for one per core")


def or_null(value: float) -> float | None:
    """Return a number, or None if JSON cannot hold it: NaN, or infinity, a threshold of which means "always answer"."""
    return value if math.isfinite(value) else None


def how_ended(reason: str) -> tuple[str, str]:
    """Return how a run ended, and why, as text."""
    if reason == "early":
        return "ended early", ", because the score stopped improving"
    return ("stopped by a signal", "") if reason == "signal" else ("finished", "")


def say_report(path: str | Path) -> None:
    """Say where the report of a long command is, before the next command."""
    say(f"report: {path}  (open it in a browser)" if str(path).endswith(".html") else f"report: {path}", err=True)


def say_next(*command: str, why: str = "") -> None:
    """Suggest the next command, as the last line of a long command; parts to fill in are in capitals."""
    say(f"next: bertworks {shlex.join(command)}{f'  ({why})' * bool(why)}", err=True)


def say(text: str, *, err: bool = False, nl: bool = True, is_data: bool = False) -> None:
    """Print a line, or lines; control characters from files and arguments are escaped.

    Data for another command is printed unchanged.
    """
    try:
        typer.echo(text if is_data else printable(text), err=err, nl=nl)
    except BrokenPipeError:
        if not err:  # a command ends if nobody reads its results, but not if nobody reads its remarks
            raise
    except OSError as error:
        if not err:
            raise UserError(f"cannot write standard output: {error.strerror}") from error


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    try:
        say(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError:
        raise UserError(
            "the result has numbers that are not finite, which JSON cannot hold; the model's weights may be damaged"
        ) from None


def warn(message: str) -> None:
    """Print a warning."""
    say(f"warning: {message}", err=True)


def warn_of_replaced(num_lines: int) -> None:
    """Warn that invalid UTF-8 was replaced."""
    if num_lines:
        was = "was" if num_lines == 1 else "were"
        warn(f"{counted(num_lines, 'line')} {was} not valid UTF-8; replaced there (--strict refuses them)")


def lines_of(texts: list[str], *, refuse_blank: bool = False) -> Iterator[str]:
    """Yield the texts of a command; for `-`, the lines of standard input, at least one.

    With `refuse_blank` a single text must not be blank.
    """
    if texts == ["-"]:
        return _decoded(sys.stdin.buffer, "standard input")
    if "-" in texts:
        raise UserError("- reads all texts from standard input; give it alone")
    if refuse_blank and len(texts) == 1 and not texts[0].strip():
        raise UserError("the text is empty; give one with a word in it")
    return map(check_utf8, texts)


def file_lines(path: Path) -> list[str]:
    """Return the lines of a file, at least one."""
    try:
        with open(path, "rb") as stream:
            return list(_decoded(stream, str(path)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def file_text(path: Path) -> str:
    """Return the text of a file with its original line breaks, so that offsets in the text are offsets in the file."""
    try:
        return path.read_bytes().removeprefix(BYTE_ORDER_MARK).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, byte {error.start:,}: not UTF-8 ({error.reason})") from error


def _decoded(stream: IO[bytes], what: str) -> Iterator[str]:
    """Yield the lines of a stream, which end only at line breaks."""
    number = 0
    for number, line in enumerate(stream, 1):
        start = BYTE_ORDER_MARK if number == 1 else b""
        try:
            yield line.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{what}, line {number}: not UTF-8 ({error.reason})") from error
    if number == 0:
        raise UserError(f"no text in {what}; it has one on each line")


def check_utf8(text: str) -> str:
    """Refuse an argument that is not UTF-8: Python would accept it, and fail later when it is printed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the text {ascii(text)[:60]} is not UTF-8") from None
    return text
