"""Making training batches beside transformers' DataCollatorForLanguageModeling: tokens a second on one core.

Ours plans sentence pairs, packs and masks them, from shards. The peer is fed with ready-made examples of 128 tokens and
only pads and masks them: no pairs, no packing. The time of a seek, of a fresh loader to the batch behind a state deep
in an epoch, is measured too: on the text, and in a fresh process on a billion tokens, synthetic ones in shards of the
usual size (2 GB of disk for the time of the measurement). Loader workers are measured beside the thread.
"""

import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measuring import parser, report, text_slices, unpack_vocabulary

from bertworks import Tokenizer
from bertworks.config import DataSettings
from bertworks.data.loader import Loader, State, shape_for
from bertworks.data.prepare import prepare
from bertworks.data.shards import ARRAYS, MANIFEST, Dataset, write_shard
from bertworks.data.workers import batches
from bertworks.text.corpus import Corpus

TEXT_BYTES, SLICE_TOKENS, NUM_BATCHES = 40_000_000, 32_768, 600
BILLION, SHARD_TOKENS = 1_000_000_000, 3_500_000


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


def with_workers(dataset: Dataset, workers: int) -> float:
    settings = DataSettings()
    made = batches(Loader(dataset, settings, shape_for(settings, tokens=SLICE_TOKENS)), workers=workers)
    for _ in range(50):
        next(made)
    started = time.perf_counter()
    for _ in range(NUM_BATCHES):
        next(made)
    speed = NUM_BATCHES * SLICE_TOKENS / (time.perf_counter() - started)
    made.close()
    return speed / 1e6


def write_synthetic(folder: Path, like: Dataset, num_tokens: int) -> Path:
    """Write shards of random ids in sentences of 5 to 44 tokens and documents of 1 to 40 sentences."""
    folder.mkdir()
    like.tokenizer.save(folder)
    files: dict[str, Any] = {}
    counts = {"documents": 0, "sentences": 0, "tokens": 0}
    rng = np.random.default_rng(0)
    for number in range(-(-num_tokens // SHARD_TOKENS)):
        size = min(SHARD_TOKENS, num_tokens - number * SHARD_TOKENS)
        sentences = random_offsets(rng, size, 5, 45)
        arrays = {
            "tokens": rng.integers(1_000, like.vocab_size, size, np.uint16),
            "sentences": sentences,
            "documents": random_offsets(rng, len(sentences) - 1, 1, 41),
        }
        files |= write_shard(folder, f"train-{number:05d}", arrays)
        for kind in counts:
            counts[kind] += len(arrays[kind]) - (kind != "tokens")
    manifest = like.manifest | {"train": counts, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def random_offsets(rng: np.random.Generator, end: int, least: int, most: int) -> Any:
    ends = np.cumsum(rng.integers(least, most, 2 * end // (least + most) * 2, np.uint64))
    return np.concatenate([[0], ends[ends < end], [end]]).astype(np.uint64)


def seek(folder: Path, block_share: float) -> tuple[float, float, float]:
    """Open, seek and give the next batch: seconds, and then MB of memory, of which so much is not mapped files."""
    started = time.perf_counter()
    settings = DataSettings()
    dataset = Dataset(folder)
    loader = Loader(dataset, settings, shape_for(settings, tokens=SLICE_TOKENS))
    state = State(epoch=3, block=int(block_share * len(dataset.manifest["files"]) / len(ARRAYS)), offset=5_000)
    made = loader.batches(state)
    next(made)
    elapsed = time.perf_counter() - started
    for _ in range(100):
        next(made)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, anonymous = (int(status[name].split()[0]) / 1e3 for name in ("VmRSS", "RssAnon"))
    return elapsed, resident, anonymous


def in_fresh_process(folder: Path) -> tuple[float, float, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(seek, folder, 0.7).result()


def seeks(folder: Path, dataset: Dataset) -> dict[str, Any]:
    results = {}
    synthetic = write_synthetic(folder / "synthetic", dataset, BILLION)
    for name, data in (("40 MB of text", dataset.folder), ("a billion tokens", synthetic)):
        elapsed, resident, anonymous = in_fresh_process(data)
        results[f"seek in {name}, fresh process, s (bar: 2)"] = elapsed
        results[f"memory of a loader on {name}, MB"] = resident
        results[f"    of it not mapped files, MB ({name})"] = anonymous
    return results


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
        for workers in (0, 1, 2):
            results[f"ahead at 128, {workers} workers, million tokens/s"] = with_workers(dataset, workers)
        results |= seeks(folder, dataset)
        theirs = peer(folder / "data")
    speed = results["ours at 128, million tokens/s (bar: 40)"]
    results |= {"collator, million tokens/s": theirs / 1e6, "ratio at 128 (bar: 20)": speed / (theirs / 1e6)}
    report(results, options.json)


if __name__ == "__main__":
    main()
