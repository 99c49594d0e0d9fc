"""The commands that use a model: fill, nsp, embed, features, attend."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from bertworks.errors import UserError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A model folder, a run folder, or a name in the local Hugging Face cache."),
]
TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Texts, or - for the lines of standard input.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
TruncateOption = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LayersOption = Annotated[str, typer.Option(help="Layers by number, 0 the embeddings, -1 the last: -1,-2 or all.")]


def fill(
    model: ModelArgument,
    texts: TextsArgument,
    top_k: Annotated[int, typer.Option(help="How many guesses for each mask.")] = 5,
    target: Annotated[list[str] | None, typer.Option(help="Only this word; may be given several times.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Guess what stands at each [MASK] of a text."""
    net = _load(model, device, dtype)
    for text in _lines(texts):
        masks = net.fill(text, top_k, targets=target, truncate=truncate)
        if as_json:
            _print_json(masks)
            continue
        for number, guesses in enumerate(masks, 1):
            typer.echo(text if len(masks) == 1 else f"{text}  (mask {number} of {len(masks)})")
            for guess in guesses:
                typer.echo(f"  {guess['score']:6.1%}  {guess['token']}")


def nsp(
    model: ModelArgument,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The text that may follow it.")],
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell how likely B follows A in a document."""
    follows = _load(model, device, dtype).nsp(_utf8(first), _utf8(second), truncate=truncate)
    if as_json:
        _print_json({"is_next": follows, "is_random": 1 - follows})
    else:
        typer.echo(f"{follows:6.1%}  B follows A\n{1 - follows:6.1%}  B is from elsewhere")


def embed(
    model: ModelArgument,
    texts: TextsArgument,
    layers: LayersOption = "-1",
    pooling: Annotated[str | None, typer.Option(help="cls, mean or max; default: as the folder says, or mean.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write an .npy file instead of printing.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a vector for each text."""
    import numpy as np

    from bertworks.files import atomic_write, check_can_write

    if out:
        check_can_write(out)
    net = _load(model, device, dtype)
    lines = list(_lines(texts))
    options: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "truncate": truncate}
    vectors = net.embed(lines, layers=_layers(layers, net), **options)
    if out:
        with atomic_write(out, "wb") as stream:
            np.lib.format.write_array(stream, vectors, allow_pickle=False)
        typer.echo(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers", err=True)
        return
    for vector in vectors.tolist():
        _print_json(vector) if as_json else typer.echo(" ".join(f"{number:.6f}" for number in vector))


def features(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file with a text on each line, or -.")],
    out: Annotated[str, typer.Option(help="The file to write: .safetensors, .jsonl or .parquet.")],
    layers: LayersOption = "all",
    per: Annotated[str, typer.Option(help="token, or word: the first piece of each.")] = "token",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
) -> None:
    """Write the hidden states of every token or word of the texts of a file."""
    from bertworks.features import write_features
    from bertworks.files import check_can_write

    check_can_write(out)
    net = _load(model, device, dtype)
    lines = list(_lines(["-"])) if source == "-" else _file_lines(Path(source))
    if not lines:
        raise UserError(f"no text in {'standard input' if source == '-' else source}; it has one on each line")
    write_features(net, lines, Path(out), layers=_layers(layers, net), per=per, truncate=truncate)
    typer.echo(f"{out}: features of {len(lines):,} texts", err=True)


def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    pair: Annotated[str | None, typer.Argument(metavar="[TEXT_B]", help="A second text.")] = None,
    out: Annotated[str, typer.Option(help="The page to write.")] = "attention.html",
    device: DeviceOption = "auto",
    truncate: TruncateOption = False,
) -> None:
    """Show what each token attends to, as a page to open in a browser."""
    from bertworks.attention_page import attention_page
    from bertworks.files import atomic_write, check_can_write

    check_can_write(out)
    encoding, weights = _load(model, device, "float32").attention(_utf8(text), pair and _utf8(pair), truncate=truncate)
    with atomic_write(out) as stream:
        stream.write(attention_page(encoding.tokens, encoding.segment_ids, weights, Path(model).name))
    num_layers, num_heads, num_tokens, _ = weights.shape
    typer.echo(f"{out}: {num_layers} layers of {num_heads} heads over {num_tokens} tokens", err=True)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (fill, nsp, embed, features, attend):
        app.command(no_args_is_help=True)(command)


def _load(model: str, device: str, dtype: str) -> Any:
    from bertworks.model import load

    return load(model, device=device, dtype=dtype)


def _lines(texts: list[str]) -> Iterator[str]:
    return _decoded(sys.stdin.buffer, "standard input") if texts == ["-"] else map(_utf8, texts)


def _file_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb") as stream:
            return list(_decoded(stream, str(path)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _decoded(stream: IO[bytes], what: str) -> Iterator[str]:
    """Give the lines of a stream, which end at line breaks and at no other sign."""
    for number, line in enumerate(stream, 1):
        start = _BYTE_ORDER_MARK if number == 1 else b""
        try:
            yield line.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{what}, line {number}: not UTF-8 ({error.reason})") from error


def _utf8(text: str) -> str:
    """Refuse an argument that is not UTF-8: Python passes it on, and fails when it is to be printed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the text {ascii(text)[:60]} is not UTF-8") from None
    return text


def _layers(given: str, net: Any) -> list[int]:
    if given == "all":
        return list(range(net.net.config.num_hidden_layers + 1))
    try:
        return [int(number) for number in given.split(",")]
    except ValueError:
        raise UserError(f"--layers {given[:40]} is not a list of numbers; such as -1,-2 or all") from None


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False))
