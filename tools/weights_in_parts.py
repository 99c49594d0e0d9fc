"""Cut a model's weights into parts, as no file of this repository is larger than 25 MB, and join them again.

    python tools/weights_in_parts.py cut small weights/small
    python tools/weights_in_parts.py join weights/small small

A folder with parts has the files of the model folder, its manifest too, but for `model.safetensors`, which became
`model.safetensors.00`, `.01` and so on. What is joined is checked against that manifest before it gets its name.
"""

import argparse
import shutil
import sys
from pathlib import Path

from bertworks.errors import UserError
from bertworks.files import MANIFEST_NAME, atomic_folder, verify_manifest, write_manifest

_WEIGHTS = "model.safetensors"
_PART_BYTES = 20_000_000


def cut(source: Path, target: Path) -> None:
    """Write a folder with parts from a model folder, whose manifest is made anew: its card may have been edited."""
    _check_folder(source)
    write_manifest(source)
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name != _WEIGHTS:
            shutil.copyfile(path, target / path.name)
    with open(source / _WEIGHTS, "rb") as stream:
        for number, part in enumerate(iter(lambda: stream.read(_PART_BYTES), b"")):
            (target / f"{_WEIGHTS}.{number:02}").write_bytes(part)


def join(source: Path, target: Path) -> None:
    """Write a model folder from one in parts, or raise UserError where a part is missing or was altered."""
    _check_folder(source)
    with atomic_folder(target) as folder:
        with open(folder / _WEIGHTS, "wb") as joined:
            for path in sorted(source.iterdir()):
                if path.stem != _WEIGHTS:
                    shutil.copyfile(path, folder / path.name)
                    continue
                with open(path, "rb") as part:
                    shutil.copyfileobj(part, joined)
        verify_manifest(folder)


def _check_folder(source: Path) -> None:
    if not (source / MANIFEST_NAME).is_file():
        raise UserError(f"{source} is no model folder with a {MANIFEST_NAME}")


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description="Cut a model's weights into parts, or join them.")
    parser.add_argument("action", choices=("cut", "join"))
    parser.add_argument("source", type=Path, help="the folder to read")
    parser.add_argument("target", type=Path, help="the folder to write")
    arguments = parser.parse_args()
    try:
        (cut if arguments.action == "cut" else join)(arguments.source, arguments.target)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
