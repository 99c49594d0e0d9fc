"""The command that converts checkpoints from and to other formats: convert."""

from typing import Annotated

import typer

from bertworks.cli.options import JsonOption, QuietOption, print_json, say, say_next, warn
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
