"""What the benchmarks share: data to measure on, times, and results written as JSON beside the printed ones."""

import argparse
import json
import lzma
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--data", type=Path, default=DATA, help="folder with wiki-en-*.txt.xz, wiki-ko.txt.xz, ...")
    options.add_argument("--json", type=Path, help="also write the results to this file")
    return options


def report(results: dict[str, Any], path: Path | None) -> None:
    """Print results a line each, and write them as JSON where asked."""
    for name, value in results.items():
        print(f"  {name:<66} {value:,.3f}" if isinstance(value, float) else f"  {name:<66} {value}")
    if path:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def text_slices(path: Path, num_bytes: list[int]) -> Iterator[list[str]]:
    """Give consecutive slices of about so many bytes of a packed text file, each as a list of lines."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        for size in num_bytes:
            lines, read = [], 0
            while read < size and (line := stream.readline()):
                lines.append(line.removesuffix("\n"))
                read += len(line.encode())
            yield lines


def unpack_vocabulary(data: Path, name: str, folder: Path) -> Path:
    """Take one of the original vocabularies out of its archive."""
    with tarfile.open(data / "vocab.tar.xz") as archive:
        archive.extract(f"vocab/{name}", folder, filter="data")
    return folder / "vocab" / name
