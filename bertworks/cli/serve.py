"""The command that serves models over HTTP: serve."""

from typing import Annotated

import typer

from bertworks.cli.options import DeviceOption, ModelsArgument, ThreadsOption


def serve(
    models: ModelsArgument,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0: any that is free.")] = 8000,
    device: DeviceOption = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, int8, or auto: bfloat16 where the processor or GPU is fast at it.")
    ] = "auto",
    threads: ThreadsOption = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes at the port, each with its own models.")] = 1,
    runner: Annotated[
        str, typer.Option(help="Where they run: local, or ray (workers are then replicas on a cluster).")
    ] = "local",
    api_key_file: Annotated[
        str | None, typer.Option(help="A file with a key on each line; also: BERTWORKS_API_KEY.", show_default=False)
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limits", metavar="NAME=NUMBER[,...]", help="Such as inputs=64,seconds=10; docs/serving.md."),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A website that may call it from a browser; repeatable.")
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log/--no-access-log", help="A line for each request.")] = True,
) -> None:
    """Serve models over HTTP, until Ctrl-C."""
    from bertworks.serving.run import serve as run

    limits = [one.strip() for given in limit or [] for one in given.split(",") if one.strip()]
    run(
        models, host=host, port=port, device=device, dtype=dtype, threads=threads, workers=workers, runner=runner,
        api_key_file=api_key_file, limits=limits, cors=cors or (), access_log=access_log,
    )  # fmt: skip
