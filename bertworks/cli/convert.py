"""The commands that write models in other formats: convert (TensorFlow, number types) and export (ONNX)."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bertworks.cli.options import JsonOption, ModelArgument, QuietOption, file_lines, print_json, say, say_next, warn
from bertworks.errors import counted


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A checkpoint of the original BERT (prefix, .index file or folder), or a model or run folder.",
        ),
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A new folder; or, for a checkpoint, NEW_FOLDER/NAME.ckpt.")
    ],
    to: Annotated[str | None, typer.Option(help="google or folder; default: google if DST ends in .ckpt.")] = None,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--lowercase",
            help="Whether the model is cased; default: found from its vocabulary.",
            show_default=False,
        ),
    ] = None,
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="Convert Adam's state and the step too.")
    ] = False,
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", help="Convert a folder with pytorch_model.bin; no code in it is run."),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(help="Convert the weights of a model or run folder to float32, bfloat16, float16 or int8."),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a TensorFlow checkpoint of the original BERT to a model folder, or back; or change a folder's dtype."""
    from bertworks.models.convert import convert

    lowercase = None if cased is None else not cased
    converted = convert(
        source, destination, to=to, lowercase=lowercase, with_optimizer=with_optimizer, from_pickle=allow_pickle,
        dtype=dtype,
    )  # fmt: skip
    for warning in converted.warnings:
        warn(warning)
    if as_json:
        print_json(converted._asdict())
    elif not quiet:
        for note in converted.notes:
            say(f"note: {note}", err=True)
        say(f"{converted.out}: {counted(converted.parameters, 'parameter')} in {counted(converted.tensors, 'tensor')}")
        if converted.form == "folder":
            say_next("inspect", converted.out, why="what it is and what it can do")
        else:
            say_next("convert", converted.out, "FOLDER", why="to convert it back")


def export(
    model: ModelArgument,
    out: Annotated[str, typer.Option(metavar="FILE", help="The file to write; its name ends in .onnx.")],
    int8: Annotated[bool, typer.Option("--int8", help="Multiply matrices in int8: a smaller and faster file.")] = False,
    portable: Annotated[
        bool, typer.Option("--portable", help="Use standard operators only, for other programs than ONNX Runtime.")
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --int8: some hundreds of texts, one on each line, to fix the ranges of int8 by; the form that "
            "OpenVINO and others read.",
        ),
    ] = None,
    dev: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Examples with labels: measure a fine-tuned model and the file on them."),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a BERT with its tokenizer and labels to one ONNX file, checked against the model.

    Commands that use a model take such a file as MODEL: fill, nsp, classify, tag, answer, choose, embed, predict,
    evaluate.
    """
    from bertworks.export.onnx import check_out
    from bertworks.inference.model import Model, load

    check_out(out)
    texts, started = None if calibrate is None else file_lines(calibrate), time.monotonic()
    opened = load(model, device="cpu", dtype="float32")

    def measured(one: Model) -> dict[str, float]:
        from bertworks.inference.evaluate import measure_models, open_for

        assert dev is not None
        return measure_models(*open_for(one, dev, None, device="cpu", dtype=None), dev).metrics

    scores: list[dict[str, float]] = [] if dev is None else [measured(opened)]
    exported = opened.export(out, int8=int8, portable=portable, calibrate=texts)
    seconds = time.monotonic() - started
    scores += [measured(load(out))] if scores else []
    for note in exported.notes:
        warn(note)
    if as_json:
        measures: dict[str, Any] = dict(zip(("model", "file"), scores, strict=True)) if scores else {}
        print_json(exported._asdict() | {"seconds": round(seconds, 3)} | ({"dev": measures} if measures else {}))
    elif not quiet:
        form = "standard operators" if exported.form == "standard" else "operators of ONNX Runtime"
        say(f"{out}: {exported.dtype}, {exported.nodes} nodes of {form}, {exported.megabytes:.1f} MB, {seconds:.1f} s")
        say(f"compared with torch: largest difference {exported.difference:.1e}, cosine of hidden states "
            f"{exported.cosine:.6f}")  # fmt: skip
        if scores:
            name = next(iter(scores[0]))
            before, after = (score[name] for score in scores)
            share = f" ({after / before:.1%} of it)" if before > 0 else ""
            say(f"{name} on {dev}: {after:.4f}, the model itself {before:.4f}{share}")
        say_next("inspect", out, why="what it is and what it can do; other commands take it as MODEL, too")
