"""The commands that use a model: fill, nsp, tag, answer, embed, features, attend."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bertworks.cli.inputs import check_utf8, file_lines, file_text, lines_of
from bertworks.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    TextsArgument,
    TruncateOption,
    print_json,
    say,
    warn,
)
from bertworks.errors import UserError, counted

# Characters beside an answer: in which its sentence is looked for, and that are shown of it.
_AROUND, _SHOWN_AROUND = 400, 100


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
    from bertworks.inference.filling import check_masks

    net = _load(model, device, dtype)
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
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell how likely B follows A in a document."""
    follows = _load(model, device, dtype).nsp(check_utf8(first), check_utf8(second), truncate=truncate)
    if as_json:
        print_json({"is_next": follows, "is_random": 1 - follows})
    else:
        say(f"{follows:6.1%}  B follows A\n{1 - follows:6.1%}  B is from elsewhere")


def tag(
    model: ModelArgument,
    texts: TextsArgument,
    units: Annotated[
        str | None, typer.Option(help="What is tagged: word or character; default: as the model learnt it.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Find the names, or what else a model was taught to tag, in texts of any length."""
    lines = list(lines_of(texts, refuse_blank=True))
    found = _load(model, device, dtype).tag(lines, units=units)
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
    question: Annotated[str, typer.Option(help="What is asked.")],
    context: Annotated[str | None, typer.Option(help="The text to look in.")] = None,
    file: Annotated[str | None, typer.Option(help="A file with the text to look in.")] = None,
    top_k: Annotated[int, typer.Option(help="How many answers.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(help="Say that there is no answer where that scores so much above the best; such as 0."),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Find the answer to a question in a text of any length."""
    if (context is None) == (file is None):
        raise UserError("give the text to look in with --context, or a file that holds it with --file")
    text = check_utf8(context) if context is not None else file_text(Path(file or ""))
    net = _load(model, device, dtype)
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
        say("there is no text to answer with", err=True)


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
    said = f"{before}{text[cut_left:start]}[{text[start:end]}]{text[end:cut_right]}{after}"
    return " ".join(said.split())


def embed(
    model: ModelArgument,
    texts: TextsArgument,
    layers: Annotated[
        str | None, typer.Option(help="Layers by number, 0 the embeddings, -1 the last: -1,-2 or all.  [default: -1]")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="cls (not GPT-1, ELMo), mean, max, last, ...; default: as the folder says, or mean."),
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="One of the folder's prompts by name; default: the one it names, or none.")
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
        if Path(out).suffix != ".npy":
            raise UserError(f"cannot tell the form of {out}; let it end in .npy")
        check_can_write(out)
    net = _load(model, device, dtype, "embed")
    lines = list(lines_of(texts, refuse_blank=True))
    options: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "truncate": truncate}
    if prompt is not None:
        options["prompt"] = prompt
    vectors = net.embed(lines, layers=None if layers is None else _layers(layers, net), **options)
    if out:
        with atomic_write(out, "wb") as stream:
            np.lib.format.write_array(stream, vectors, allow_pickle=False)
        say(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers", err=True)
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
    dtype: DtypeOption = "float32",
    truncate: TruncateOption = False,
) -> None:
    """Write the hidden states of every token or word of the texts of a file."""
    from bertworks.files import check_can_write
    from bertworks.inference.features import write_features

    check_can_write(out, source)
    net = _load(model, device, dtype, "features")
    lines = list(lines_of(["-"])) if source == "-" else file_lines(Path(source))
    write_features(net, lines, Path(out), layers=_layers(layers, net), per=per, truncate=truncate)
    say(f"{out}: features of {counted(len(lines), 'text')}", err=True)


def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    pair: Annotated[str | None, typer.Argument(metavar="[TEXT_B]", help="A second text.")] = None,
    out: Annotated[str, typer.Option(help="The page to write.")] = "attention.html",
    device: DeviceOption = "auto",
    truncate: TruncateOption = False,
) -> None:
    """Show what each token attends to, as a page to open in a browser."""
    from bertworks.files import atomic_write, check_can_write
    from bertworks.show.attention_page import attention_page

    check_can_write(out)
    texts = [check_utf8(part) for part in (text, pair) if part is not None]
    encoding, weights = _load(model, device, "float32").attention(*texts, truncate=truncate)
    title = f"{Path(os.path.abspath(model)).name}: {' | '.join(texts)}"  # a folder has a name even where "." is given
    with atomic_write(out) as stream:
        stream.write(attention_page(encoding.tokens, encoding.segment_ids, weights, title))
    num_layers, num_heads, num_tokens, _ = weights.shape
    say(f"{out}: {counted(num_layers, 'layer')} of {num_heads} heads over {counted(num_tokens, 'token')}", err=True)


def _load(model: str, device: str, dtype: str, method: str = "") -> Any:
    """Open a model; a fine-tuned one that lacks the method that is needed says so at once."""
    from bertworks.inference.loading import load

    net = load(model, device=device, dtype=dtype)
    if method:
        getattr(net, method)
    return net


def _layers(given: str, net: Any) -> list[int]:
    if given == "all":
        return list(range(net.num_layers + 1))
    try:
        return [int(number) for number in given.split(",")]
    except ValueError:
        raise UserError(f"--layers {given[:40]} is not a list of numbers; such as -1,-2 or all") from None
