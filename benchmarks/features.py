"""Feature-based training: how much faster the second epoch is than the first, which computes the features.

A BERT with random weights reads made-up documents once; a BiLSTM tagger learns on its cached layers through the same
loop as always. Given are the seconds of the first epoch (features of train and dev, training, evaluation) and of the
second (training, evaluation) with their ratio, and the same for the features alone: computed, and read from the cache.
Seconds are the processor's, all threads together.

What bounds the first ratio is the BiLSTM, not the cache. The paper's, 768 cells in each direction, has 23.6 million
weights on a base encoder's layer, and training multiplies each word with them three times (forward, and twice back):
71 million products a word. The encoder has 85 million, once for each piece. So with all operations equally fast the
ratio is 1 + 85 x pieces / 71 x (train + dev words) / train words, some 2.5, on any machine.

    python benchmarks/features.py [--encoder 12x768x12] [--cells 768 128] [--documents 20]
"""

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import parser, report

from bertworks.finetuning import finetune as tuning
from bertworks.finetuning import session
from bertworks.finetuning.features import FeatureCache
from bertworks.models.kinds import write_model
from bertworks.nn.bert import Bert
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise
from bertworks.tasks.evaluation import WordRows
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

_SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "te", "vu")
_TAGS = ("O", "O", "O", "O", "B-PER", "B-LOC", "B-ORG", "B-MISC")


def write_encoder(folder: Path, size: str) -> Path:
    pieces = [*SPECIAL_TOKENS, *_SYLLABLES, *(f"##{one}" for one in _SYLLABLES), "."]
    net = Bert(preset(size, vocab_size=len(pieces)), {})
    initialise(net, 0.02, 0)
    folder.mkdir()
    write_model(folder, net)
    Tokenizer(pieces).save(folder)
    return folder


def write_documents(path: Path, count: int, seed: int) -> int:
    """Write documents of ten sentences of about CoNLL-2003's length, 14.5 words; returns how many words there are."""
    rng, lines, num_words = random.Random(seed), [], 0
    for _ in range(count):
        lines.append("-DOCSTART- -X- O O\n")
        for _ in range(10):
            words = ["".join(rng.choices(_SYLLABLES, k=rng.choice((1, 1, 1, 2)))) for _ in range(_length(rng))]
            lines += [f"{word} X X {rng.choice(_TAGS)}" for word in words]
            lines.append("")
            num_words += len(words)
    path.write_text("\n".join(lines) + "\n")
    return num_words


def _length(rng: random.Random) -> int:
    return max(1, min(100, round(rng.lognormvariate(2.4, 0.7))))


def now() -> float:
    """Return the processor's seconds, all threads together, for others may use the machine too."""
    return time.process_time()


class Clock:
    """Seconds spent in a function since the last look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = now()
            try:
                return work(*arguments)
            finally:
                self.seconds += now() - started

        return timed


def measure(model: Path, data: Path, out: Path, cells: int, features: str) -> dict[str, float]:
    computing, reading, ends, reads = Clock(), Clock(), [], []
    evaluate, find, layers = session.evaluate, FeatureCache.find, WordRows.layers

    def noted(*arguments: Any) -> Any:
        found = evaluate(*arguments)
        ends.append(now())
        reads.append(reading.seconds)
        return found

    overrides = [f"task.features={features}", f"task.cells={cells}", "train.epochs=2"]
    session.evaluate, FeatureCache.find, WordRows.layers = noted, computing.around(find), reading.around(layers)  # type: ignore
    try:
        started = now()
        tuning.finetune("conll2003", model=model, data=data, out=out, overrides=overrides, device="cpu")
    finally:
        session.evaluate, FeatureCache.find, WordRows.layers = evaluate, find, layers  # type: ignore
    first, second = ends[0] - started, ends[1] - ends[0]
    return {
        "first epoch, s": first,
        "second epoch, s": second,
        "second epoch, times as fast": first / second,
        "features computed, s": computing.seconds,
        "features read in the second epoch, s": reads[1] - reads[0],
        "features, times as fast": computing.seconds / (reads[1] - reads[0]),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--encoder", default="12x768x12", help="layers x width x heads")
    options.add_argument("--cells", type=int, nargs="+", default=[768, 128], help="of the BiLSTM, in each direction")
    options.add_argument("--features", default="last")
    options.add_argument("--documents", type=int, default=20, help="to learn from; a quarter as many to measure on")
    given = options.parse_args()
    results: dict[str, Any] = {"encoder": given.encoder, "layers read": given.features}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = write_encoder(root / "model", given.encoder)
        results["words"] = write_documents(root / "train.txt", given.documents, 0)
        write_documents(root / "valid.txt", max(given.documents // 4, 1), 1)
        for cells in given.cells:
            found = measure(model, root, root / f"run-{cells}", cells, given.features)
            results |= {f"{cells} cells: {name}": value for name, value in found.items()}
    report(results, given.json)


if __name__ == "__main__":
    main()
