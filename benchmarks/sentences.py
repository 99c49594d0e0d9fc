"""Sentence splitting beside pysbd: boundary F1 per language on the marked test paragraphs, and MB/s on one core.

python benchmarks/sentences.py [--text FILE] [--json FILE]

Without --text the speed is taken on the test paragraphs in a seeded random order. Each splitter gets one paragraph a
call, and the best of three passes counts; pysbd gets a shorter piece of the same text because it is so much slower.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "text")]

from sentence_cases import ENGLISH, KOREAN, Case, boundary_f1  # noqa: E402

from bertworks.text.sentences import sentence_spans  # noqa: E402

Splitter = Callable[[str], list[tuple[int, int]]]


def pysbd_splitter() -> Splitter | None:
    try:
        import pysbd
    except ImportError:
        print("NOT COMPARED: pysbd is not installed (pip install pysbd)", file=sys.stderr)
        return None
    segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)
    return lambda text: [(span.start, span.start + len(span.sent.rstrip())) for span in segmenter.segment(text)]


def made_paragraphs(cases: list[Case], num_bytes: int) -> list[str]:
    shuffled, paragraphs = random.Random(0), []
    while num_bytes > 0:
        paragraphs.append(" ".join(case.text for case in shuffled.sample(cases, 3)))
        num_bytes -= len(paragraphs[-1].encode())
    return paragraphs


def read_paragraphs(path: Path, num_bytes: int) -> list[str]:
    with path.open("rb") as stream:
        return stream.read(num_bytes).decode(errors="ignore").split("\n")


def megabytes_per_second(splitter: Splitter, paragraphs: list[str], num_bytes: int) -> float:
    chosen, size = [], 0
    for paragraph in paragraphs:
        if size >= num_bytes:
            break
        chosen.append(paragraph)
        size += len(paragraph.encode())
    best_s = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for paragraph in chosen:
            splitter(paragraph)
        best_s = min(best_s, time.perf_counter() - start)
    return size / best_s / 1e6


def measure(splitters: dict[str, Splitter], paragraphs: list[str], options: argparse.Namespace) -> dict[str, float]:
    sizes = {"ours": options.megabytes, "pysbd": options.pysbd_megabytes}
    speeds = {
        name: megabytes_per_second(splitter, paragraphs, int(sizes[name] * 1e6)) for name, splitter in splitters.items()
    }
    if "pysbd" in speeds:
        speeds["ratio"] = speeds["ours"] / speeds["pysbd"]
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="UTF-8 text, one paragraph a line, to measure speed on")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--megabytes", type=float, default=20.0, help="text for ours (default 20)")
    parser.add_argument("--pysbd-megabytes", type=float, default=0.2, help="text for pysbd (default 0.2)")
    options = parser.parse_args()
    splitters: dict[str, Splitter] = {"ours": sentence_spans}
    if (pysbd := pysbd_splitter()) is not None:
        splitters["pysbd"] = pysbd
    num_bytes = int(options.megabytes * 1e6)
    if options.text:
        texts = {options.text.name: read_paragraphs(options.text, num_bytes)}
    else:
        texts = {"English": made_paragraphs(ENGLISH, num_bytes), "Korean": made_paragraphs(KOREAN, num_bytes)}
    results: dict[str, Any] = {
        "boundary_f1": {
            language: {name: boundary_f1(cases, splitter) for name, splitter in splitters.items()}
            for language, cases in {"English": ENGLISH, "Korean": KOREAN}.items()
        },
        "mb_per_s": {name: measure(splitters, paragraphs, options) for name, paragraphs in texts.items()},
    }
    for figure, rows in results.items():
        for row, values in rows.items():
            print(f"{figure:12} {row:16}", *(f"{name} {value:.4g}" for name, value in values.items()), sep="  ")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
