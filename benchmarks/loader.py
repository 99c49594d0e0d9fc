"""Making training batches beside transformers' DataCollatorForLanguageModeling: tokens a second on one core.

Ours plans sentence pairs, packs and masks them, from shards. The peer is fed with ready-made examples of 128 tokens and
only pads and masks them: no pairs, no packing. The time of a seek, of a fresh loader to the batch behind a state deep
in an epoch, is measured too.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import parser, report, text_slices, unpack_vocabulary

from bertworks import Tokenizer
from bertworks.data.loader import Loader, shape_for
from bertworks.data.prepare import prepare
from bertworks.data.settings import DataSettings
from bertworks.data.shards import Dataset
from bertworks.text.corpus import Corpus

TEXT_BYTES, SLICE_TOKENS, NUM_BATCHES = 40_000_000, 32_768, 600


def ours(dataset: Dataset, max_length: int) -> dict[str, Any]:
    settings = DataSettings(max_length=max_length)
    shape = shape_for(settings, tokens=SLICE_TOKENS)
    batches = Loader(dataset, settings, shape).batches()
    next(batches)
    tokens = 0
    started = time.perf_counter()
    for _ in range(NUM_BATCHES):
        (packed,), state = next(batches)
        tokens += int(packed.cumulative_lengths[int(packed.next_weights.sum())])
    elapsed = time.perf_counter() - started
    started = time.perf_counter()
    next(Loader(dataset, settings, shape).batches(state))
    return {
        f"ours at {max_length}, million tokens/s (bar: 40)": tokens / elapsed / 1e6,
        f"filled share of a batch at {max_length} (bar: 0.98)": tokens / NUM_BATCHES / SLICE_TOKENS,
        f"seek at {max_length}, s (bar: 2)": time.perf_counter() - started,
    }


def peer(folder: Path) -> float:
    from transformers import BertTokenizerFast, DataCollatorForLanguageModeling

    tokenizer = BertTokenizerFast.from_pretrained(folder)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    examples = [{"input_ids": [2 + (i * 7 + j) % 20_000 for j in range(128)]} for i in range(SLICE_TOKENS // 128)]
    collate(examples)
    started = time.perf_counter()
    for _ in range(20):
        collate(examples)
    return 20 * SLICE_TOKENS / (time.perf_counter() - started)


def main() -> None:
    options = parser(__doc__).parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"NOT MEASURED: no data at {options.data}; give --data FOLDER")
    print("training batches, one core, against DataCollatorForLanguageModeling")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = unpack_vocabulary(options.data, "bert-base-uncased-vocab.txt", folder)
        lines = next(text_slices(options.data / "wiki-en-b.txt.xz", [TEXT_BYTES]))
        (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
        prepare(Corpus([folder / "text.txt"]), Tokenizer.from_vocab(vocabulary), folder / "data")
        dataset = Dataset(folder / "data")
        results = ours(dataset, 128) | ours(dataset, 512)
        theirs = peer(folder / "data")
    speed = results["ours at 128, million tokens/s (bar: 40)"]
    results |= {"collator, million tokens/s": theirs / 1e6, "ratio at 128 (bar: 20)": speed / (theirs / 1e6)}
    report(results, options.json)


if __name__ == "__main__":
    main()
