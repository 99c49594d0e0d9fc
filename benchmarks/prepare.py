"""Preparing data beside a plain pipeline on the tokenizers library: tokens a second and core, the same text.

Ours splits documents into sentences, tokenizes, writes shards and their checksums. The peer does less: it tokenizes
line by line with `encode_batch_fast`, lays the ids end to end and cuts them into rows of 128. Both run in one process
here; `bertworks prepare` runs the same function in as many processes as there are cores.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import parser, report, text_slices, unpack_vocabulary
from tokenizers import BertWordPieceTokenizer

from bertworks import Tokenizer
from bertworks.data.prepare import Options, Unit, make_arrays
from bertworks.data.shards import write_shard

SLICE_BYTES, NUM_SLICES, ROW = 10_000_000, 3, 128


def ours(tokenizer: Tokenizer, lines: list[str], folder: Path) -> int:
    unit = Unit(0, "\n".join(lines).encode(), 0)
    arrays = make_arrays(unit, tokenizer, Options(), len(tokenizer))[0]["train"]
    write_shard(folder, "train-00000", arrays)
    return len(arrays["tokens"])


def peer(pipeline: Any, lines: list[str]) -> int:
    encodings = pipeline.encode_batch_fast(lines, add_special_tokens=False)
    flat = [id for encoding in encodings for id in encoding.ids]
    rows = np.array(flat[: len(flat) // ROW * ROW], np.uint16).reshape(-1, ROW)
    return rows.size


def main() -> None:
    options = parser(__doc__).parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"NOT MEASURED: no data at {options.data}; give --data FOLDER")
    print("preparing data, one process, against tokenizers.encode_batch_fast and rows of 128")
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as name:
        vocabulary = unpack_vocabulary(options.data, "bert-base-uncased-vocab.txt", Path(name))
        tokenizer = Tokenizer.from_vocab(vocabulary)
        pipeline = BertWordPieceTokenizer(str(vocabulary), lowercase=True)._tokenizer
        slices = text_slices(options.data / "wiki-en-b.txt.xz", [2_000_000] + [SLICE_BYTES] * NUM_SLICES)
        warm_up = next(slices)
        ours(tokenizer, warm_up, Path(name))
        peer(pipeline, warm_up)
        for lines in slices:
            started = time.perf_counter()
            count = ours(tokenizer, lines, Path(name))
            middle = time.perf_counter()
            peer_count = peer(pipeline, lines)
            ended = time.perf_counter()
            speeds["ours"].append(count / (middle - started))
            speeds["peer"].append(peer_count / (ended - middle))
    results = {
        "ours, million tokens/s": max(speeds["ours"]) / 1e6,
        "plain pipeline, million tokens/s": max(speeds["peer"]) / 1e6,
        "ratio (bar: 6)": max(speeds["ours"]) / max(speeds["peer"]),
    }
    report(results, options.json)


if __name__ == "__main__":
    main()
