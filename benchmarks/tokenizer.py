"""The tokenizer beside the tokenizers library's BERT pipeline: one core, text not seen before, every id read out.

Ours goes through the public `encode_batch`, the peer through `encode_batch_fast`, a line per text. After a warm-up of
20 MB, three slices of new text go through both in turn; the best of the three counts for each. Lines where the ids
differ are counted: the peer has no final sigma and treats some rare characters otherwise than the original.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import parser, report, text_slices, unpack_vocabulary
from tokenizers import BertWordPieceTokenizer

from bertworks import Tokenizer

WARM_UP_BYTES, SLICE_BYTES, NUM_SLICES = 20_000_000, 10_000_000, 3
CASES = (
    ("English", "wiki-en-b.txt.xz", "bert-base-uncased-vocab.txt", True),
    ("Korean", "wiki-ko.txt.xz", "bert-base-multilingual-cased-vocab.txt", False),
)


def read_out(encode: Callable[[list[str]], Any], lines: list[str]) -> tuple[float, list[list[int]]]:
    """Encode and read every id: (MB/s, the ids)."""
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    started = time.perf_counter()
    ids = [encoding.ids for encoding in encode(lines)]
    return megabytes / (time.perf_counter() - started), ids


def compare(text: Path, vocabulary: Path, lowercase: bool) -> dict[str, Any]:
    ours = Tokenizer.from_vocab(vocabulary, lowercase=lowercase).encode_batch
    peer_pipeline = BertWordPieceTokenizer(str(vocabulary), lowercase=lowercase, strip_accents=lowercase)
    peer = peer_pipeline._tokenizer.encode_batch_fast
    slices = text_slices(text, [WARM_UP_BYTES] + [SLICE_BYTES] * NUM_SLICES)
    warm_up = next(slices)
    read_out(ours, warm_up)
    read_out(peer, warm_up)
    speeds, peer_speeds, num_lines, num_different = [], [], 0, 0
    for lines in slices:
        speed, ids = read_out(ours, lines)
        peer_speed, peer_ids = read_out(peer, lines)
        speeds.append(speed)
        peer_speeds.append(peer_speed)
        num_lines += len(lines)
        num_different += sum(a != b for a, b in zip(ids, peer_ids, strict=True))
    return {
        "ours MB/s": max(speeds),
        "tokenizers MB/s": max(peer_speeds),
        "ratio (bar: 8)": max(speeds) / max(peer_speeds),
        "lines": num_lines,
        "lines where the peer differs": num_different,
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"NOT MEASURED: no data at {options.data}; give --data FOLDER")
    results: dict[str, Any] = {}
    print("tokenizer, one core, against tokenizers.encode_batch_fast")
    with tempfile.TemporaryDirectory() as folder:
        for language, text, name, lowercase in CASES:
            vocabulary = unpack_vocabulary(options.data, name, Path(folder))
            case = compare(options.data / text, vocabulary, lowercase)
            results |= {f"{language}: {key}": value for key, value in case.items()}
    report(results, options.json)


if __name__ == "__main__":
    main()
