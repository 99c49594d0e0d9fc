"""Learning 30,522 pieces from 400 MB of English: time, memory, and tokens per word on text that was held out.

The command runs as a user runs it, on unpacked Wikipedia; memory is the sum over its processes, sampled. Held-out text
is then split with the new vocabulary and with the original one; the ratio of tokens per word should be at most 1.01.
`--quick` does the same with a tenth of the text.
"""

import lzma
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import parser, report, unpack_vocabulary

from bertworks import Tokenizer

ALGORITHMS = ("wordpiece", "bpe")
HELD_OUT_BYTES = 8_000_000


def unpack(path: Path, target: Path, num_bytes: int | None) -> Path:
    with lzma.open(path, "rb") as source, open(target, "wb") as stream:
        if num_bytes:
            stream.write(source.read(num_bytes))
        else:
            shutil.copyfileobj(source, stream, 1 << 20)
    return target


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process and its children; what they share counts for each."""
    pids, total = [pid], 0
    while pids:
        number = pids.pop()
        try:
            total += int(Path(f"/proc/{number}/statm").read_text().split()[1]) * 4096
            pids += [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
        except OSError:
            continue
    return total


def learn(sources: list[Path], out: Path, *options: str) -> tuple[float, float]:
    """Run `bertworks vocab`; returns seconds and the greatest memory in MB."""
    command = [sys.executable, "-m", "bertworks", "vocab", *map(str, sources), "--out", str(out), "--quiet", *options]
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - started, peak / 1e6


def tokens_per_word(vocabulary: Path, lines: list[str], **settings: bool) -> float:
    encodings = Tokenizer.from_vocab(vocabulary, **settings).encode_batch(lines)
    tokens = words = 0
    for encoding in encodings:
        numbers = [number for number in encoding.word_ids if number is not None]
        tokens += len(numbers)
        words += numbers[-1] + 1 if numbers else 0
    return tokens / words


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="a tenth of the text")
    arguments = options.parse_args()
    if not arguments.data.is_dir():
        raise SystemExit(f"NOT MEASURED: no data at {arguments.data}; give --data FOLDER")
    results: dict[str, Any] = {}
    print("vocabulary of 30,522 pieces" + (" (a tenth of the text)" if arguments.quick else ""))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results |= english(arguments.data, folder, arguments.quick)
        results |= korean(arguments.data, folder, arguments.quick)
    report(results, arguments.json)


def english(data: Path, folder: Path, quick: bool) -> dict[str, Any]:
    """Learn from 400 MB of Wikipedia, and from Wikipedia and novels as the original did; compare with the original."""
    first = unpack(data / "wiki-en-a.txt.xz", folder / "a.txt", 20_000_000 if quick else None)
    second = unpack(data / "wiki-en-b.txt.xz", folder / "b.txt", 20_000_000 if quick else None)
    novels = unpack(data / "books-en-a.txt.xz", folder / "novels.txt", 20_000_000 if quick else None)
    held_out = {"Wikipedia": hold_out(second), "novels": hold_out(novels)}
    original = unpack_vocabulary(data, "bert-base-uncased-vocab.txt", folder)
    theirs = {source: tokens_per_word(original, lines) for source, lines in held_out.items()}
    results: dict[str, Any] = {"MB of Wikipedia": (first.stat().st_size + second.stat().st_size) / 1e6}
    results |= {f"original: tokens a word, {source}": value for source, value in theirs.items()}
    cases = [(algorithm, algorithm, [first, second]) for algorithm in ALGORITHMS]
    cases.append(("wordpiece", "wordpiece from Wikipedia and novels", [first, novels]))
    for algorithm, name, sources in cases:
        time_s, memory = learn(sources, folder / "new.txt", "--unused", "994", "--algorithm", algorithm)
        results |= {f"{name}: seconds (bar: 180)": time_s, f"{name}: MB of memory (bar: 1,000)": memory}
        for source, lines in held_out.items():
            ours = tokens_per_word(folder / "new.txt", lines)
            results[f"{name}: tokens a word, {source}"] = ours
            results[f"{name}: ratio, {source} (bar: 1.01)"] = ours / theirs[source]
    return results


def hold_out(path: Path) -> list[str]:
    """Cut the last part off a text file and return its lines."""
    with open(path, "rb+") as stream:
        stream.seek(-HELD_OUT_BYTES, 2)
        stream.readline()
        place = stream.tell()
        lines = stream.read().decode("utf-8", "ignore").split("\n")
        stream.truncate(place)
    return lines


def korean(data: Path, folder: Path, quick: bool) -> dict[str, Any]:
    """Learn cased Korean vocabularies, in which syllables stay whole, beside the multilingual one."""
    text = unpack(data / "wiki-ko.txt.xz", folder / "ko.txt", 40_000_000 if quick else None)
    lines = hold_out(text)
    original = unpack_vocabulary(data, "bert-base-multilingual-cased-vocab.txt", folder)
    results: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        out = folder / f"ko-{algorithm}.txt"
        time_s, _ = learn([text], out, "--cased", "--algorithm", algorithm)
        results[f"Korean {algorithm}: seconds"] = time_s
        results[f"Korean {algorithm}: tokens a word"] = tokens_per_word(out, lines, lowercase=False)
    results["Korean: tokens a word, multilingual original"] = tokens_per_word(original, lines, lowercase=False)
    return results


if __name__ == "__main__":
    main()
