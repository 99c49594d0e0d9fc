"""What a server is told before it starts: its limits, the keys that callers must have, the names of its models.

Nothing here imports torch, so that a mistake is told at once.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from bertworks.config import Settings
from bertworks.errors import UserError, shown

KEY_VARIABLE = "BERTWORKS_API_KEY"
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # which prometheus_client reads when it is imported


class Limits(Settings):
    """What a server accepts; beyond it a request is refused with the limit's name."""

    body: int = Field(default=4 << 20, ge=1, le=1 << 32, description="Bytes of a request's body.")
    inputs: int = Field(default=2_048, ge=1, le=1 << 20, description="Texts, or pairs of them, in a request.")
    tokens: int = Field(default=300_000, ge=1, le=1 << 30, description="Tokens of a request, all texts together.")
    chars: int = Field(default=1 << 18, ge=1, le=1 << 30, description="Characters of a text that is read in windows.")
    numbers: int = Field(default=1 << 21, ge=1, le=1 << 30, description="Numbers in the answer of features and attend.")
    queue: int = Field(default=512, ge=1, le=1 << 20, description="Requests that wait for a model.")
    queued_tokens: int = Field(default=1 << 20, ge=1, le=1 << 32, description="Tokens that wait for a model.")
    held: int = Field(default=1 << 28, ge=1 << 16, le=1 << 40, description="Bytes of all bodies and answers in memory.")
    seconds: int = Field(default=60, ge=1, le=86_400, description="Time for a request, from its headers to the answer.")
    slow_seconds: int = Field(default=10, ge=1, le=3_600, description="Time for a client to send or to take a part.")
    connections: int = Field(default=1_024, ge=1, le=1 << 20, description="Open connections.")
    drain: int = Field(default=30, ge=0, le=3_600, description="Seconds for accepted requests after SIGTERM.")


def read_keys(path: str | None) -> list[str]:
    """Return the API keys of the environment and of a file with a key on each line; none: no key is needed."""
    found = [os.environ[KEY_VARIABLE]] if os.environ.get(KEY_VARIABLE) else []
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"cannot read the keys in {path}: {reason}") from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise UserError(f"{path} has no key; write one on each line")
        found += keys
    if any(not key.isascii() or not key.isprintable() or " " in key for key in found):
        raise UserError("an API key has spaces or characters beyond ASCII, which a header cannot hold")
    return found


def served_name(source: str) -> str:
    """Return the name that a model is served by: its folder's, or of a .onnx file its own."""
    path = Path(source)
    name = path.stem if path.suffix == ".onnx" else path.resolve().name if path.exists() else path.name
    if not name:
        raise UserError(f"{shown(source)} has no name to serve it by; give a folder with one")
    return name


def check_names(sources: Sequence[str]) -> dict[str, str]:
    """Return the sources of models by the names that they are served by; two of a name are refused."""
    found: dict[str, str] = {}
    for source in sources:
        name = served_name(source)
        if name in found:
            raise UserError(
                f"{shown(found[name])} and {shown(source)} would both be served as {shown(name)}; rename one folder"
            )
        found[name] = source
    if not found:
        raise UserError("there is no model to serve; give one or more")
    return found
