"""The tokenizer beside the tokenizers library's BERT pipeline: one core, text not seen before, every id read out.

Ours goes through the public `encode_batch`, the peer through `encode_batch_fast`, a line per text. After a warm-up of
20 MB, three slices of new text go through both in turn; the best of the three counts for each. Lines where the ids
differ are counted: the peer has no final sigma and treats some rare characters otherwise than the original.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tempfile
from pathlib import Path
from typing import Any

from measuring import parser, report, seconds, text_slices, unpack_vocabulary
from tokenizers import BertWordPieceTokenizer

from bertworks import Tokenizer

WARM_UP_BYTES, SLICE_BYTES, NUM_SLICES = 20_000_000, 10_000_000, 3
CASES = (
    ("English", "wiki-en-b.txt.xz", "bert-base-uncased-vocab.txt", True),
    ("Korean", "wiki-ko.txt.xz", "bert-base-multilingual-cased-vocab.txt", False),
)


def read_out(encodings: Any) -> list[list[int]]:
    return [encoding.ids for encoding in encodings]


def compare(text: Path, vocabulary: Path, lowercase: bool) -> dict[str, Any]:
    ours = Tokenizer.from_vocab(vocabulary, lowercase=lowercase)
    peer = BertWordPieceTokenizer(str(vocabulary), lowercase=lowercase, strip_accents=lowercase)._tokenizer
    slices = text_slices(text, [WARM_UP_BYTES] + [SLICE_BYTES] * NUM_SLICES)
    warm_up = next(slices)
    read_out(ours.encode_batch(warm_up))
    read_out(peer.encode_batch_fast(warm_up))
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    num_lines = num_different = 0
    for lines in slices:
        megabytes = sum(len(line.encode()) for line in lines) / 1e6
        results: dict[str, list[list[int]]] = {}
        speeds["ours"].append(megabytes / seconds(lambda: results.update(ours=read_out(ours.encode_batch(lines)))))
        speeds["peer"].append(megabytes / seconds(lambda: results.update(peer=read_out(peer.encode_batch_fast(lines)))))
        num_lines += len(lines)
        num_different += sum(a != b for a, b in zip(results["ours"], results["peer"], strict=True))
    return {
        "ours MB/s": max(speeds["ours"]),
        "tokenizers MB/s": max(speeds["peer"]),
        "ratio": max(speeds["ours"]) / max(speeds["peer"]),
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
