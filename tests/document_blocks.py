"""The blocks of code in documentation, run in order as a reader runs them.

- A block marked `bash` is run by bash, one marked `python` in one session per page; other blocks are not run.
- A block with the comment `<!-- nightly -->` on the line above it takes long, and is left out of quick runs.
- In quick runs `bertworks` is a small client of one process that has imported torch already and forks for each command,
  because most commands need less time than that import.
"""

import contextlib
import importlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
FROM_CLONE = ("examples", "bertworks", "weights", "docs")  # what of a clone the commands read
TIMEOUT_S = 900
_BASH = ("bash", "-e", "-o", "pipefail")
_BLOCK = re.compile(r"^(<!-- nightly -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    message = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(message).encode()], [0, 1, 2])
    sys.exit(int(server.recv(16) or 1))
"""
_PROGRAM = """#!/bin/sh
exec "{python}" -m bertworks "$@"
"""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    is_slow: bool


def blocks_of(path: Path) -> list[Block]:
    found = _BLOCK.findall(path.read_text(encoding="utf-8"))
    return [Block(language, text, bool(mark)) for mark, language, text in found]


def commands_of(path: Path, *languages: str) -> list[list[str]]:
    """Return every `bertworks ...` line of a page's blocks as words, without what it is redirected to."""
    lines = [
        line
        for block in blocks_of(path)
        if block.language in languages
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith("bertworks ")
    ]
    return [shlex.split(re.split(r" (?:[>|<]|2>|&$)", line)[0], comments=True) for line in lines]


def check_command(words: list[str]) -> None:
    """Exit or raise for a command, an option, a recipe, a task or a setting that does not exist."""
    from bertworks.cli import app
    from bertworks.finetuning.settings import points_of
    from bertworks.recipe import load_recipe
    from bertworks.tasks import find_task
    from bertworks.tasks.own_files import KINDS

    _, name, *arguments = words
    command = typer.main.get_command(app).commands[name]
    with command.make_context(name, arguments) as context:
        params = context.params
    overrides = params.get("overrides") or []
    if name in ("pretrain", "plan"):
        recipe = params["recipe"] or "base"  # a run that is resumed has its own
        if "=" in recipe:  # and may change a setting
            recipe, overrides = "base", [recipe, *overrides]
        load_recipe("base" if recipe.endswith(".toml") else recipe, overrides)
    if name == "finetune":
        task = params["task"]
        found = find_task("cola" if task in (*KINDS, "glue") else task)
        features = [] if params["features"] is None else ["task.features=last"]
        points_of(found, [*overrides, *features], is_grid=params["grid"])
    if name in ("evaluate", "texts") and params["task"] is not None:
        find_task("cola" if params["task"] in KINDS else params["task"])


class Reader:
    """A person in a folder who types what a page shows."""

    def __init__(self, folder: Path, tools: Path, port: int) -> None:
        """Give the folder what a clone has; `tools` holds the command."""
        self.folder, self.session = folder, {}
        for name in FROM_CLONE:
            (folder / name).symlink_to(ROOT / name)
        paths = [tools, Path(sys.executable).parent, os.environ["PATH"]]
        self.port = port
        self.environment = os.environ | {"PATH": ":".join(map(str, paths)), "PYTHONPATH": str(ROOT)}

    def run(self, block: Block) -> str:
        """Run a block, and return what the shell printed on standard output."""
        if block.language == "python":
            exec(compile(block.text, "a block of the page", "exec"), self.session)
            return ""
        # A server of another test may have the port of the page.
        text = block.text.replace("localhost:8000", f"localhost:{self.port}")
        text = re.sub(r"^(bertworks serve [^&\n]*)", rf"\1 --port {self.port} ", text, flags=re.MULTILINE)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            options = {"stdout": out, "stderr": errors, "cwd": self.folder, "env": self.environment, "text": True}
            with subprocess.Popen(_BASH, stdin=subprocess.PIPE, start_new_session=True, **options) as shell:
                try:
                    shell.communicate(text, timeout=TIMEOUT_S)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(shell.pid, signal.SIGKILL)  # a server that a failed block has left
            out.seek(0)
            errors.seek(0)
            printed, last_errors = out.read(), errors.read()[-2_000:]
        assert shell.returncode == 0, f"{text}\n{printed[-1_000:]}\n{last_errors}"
        return printed


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def write_program(tools: Path) -> None:
    """Write the command that starts a process of its own each time."""
    _write(tools / "bertworks", _PROGRAM.format(python=sys.executable))


def quick_program(tools: Path) -> Iterator[None]:
    """Write the command as a client of a process that forks, as long as the iterator is held."""
    address = str(tools / "socket")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        _write(tools / "bertworks", _CLIENT.format(python=sys.executable, address=address))
        yield
        server.terminate()


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _fork_for_clients(address: str) -> None:
    """Run each client's command in a fork of this process, with the client's folder, variables and files."""
    from bertworks import cli

    for module in ("finetuning.finetune", "inference.predict", "train.pretrain"):  # which import torch
        importlib.import_module(f"bertworks.{module}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system clears up after children
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            message, files, _, _ = socket.recv_fds(client, 1 << 20, 3)
            if os.fork() == 0:
                _run_for(client, json.loads(message), files, cli.main)
            client.close()
            for file in files:
                os.close(file)


def _run_for(client: socket.socket, message: dict[str, Any], files: list[int], main: Any) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    sys.argv = ["bertworks", *message["arguments"]]
    # A client that was killed takes its command with it.
    threading.Thread(target=lambda: client.recv(1) or os.kill(os.getpid(), signal.SIGTERM), daemon=True).start()
    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        client.send(str(int(code or 0)).encode())
        os._exit(0)


if __name__ == "__main__":
    _fork_for_clients(sys.argv[1])
