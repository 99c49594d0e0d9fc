"""What a person waits for before anything happens: `bertworks --help`, and a first `encode` in a fresh process.

The first encode stands beside the plain Python way (reading the vocabulary and matching by hand): within 50 ms of it,
because no compiler and no numpy are loaded for a sentence. Each is the best of several fresh processes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import parser, report, seconds, unpack_vocabulary

from bertworks.demo.stages import write_topics
from bertworks.text.corpus import Corpus
from bertworks.text.learn import learn_vocabulary
from bertworks.text.vocabulary import write_vocabulary

NUM_PROCESSES = 7
SENTENCE = "BERT is conceptually simple and empirically powerful."

FIRST_ENCODE = """
import sys
from bertworks import Tokenizer
Tokenizer.from_vocab(sys.argv[1]).encode(sys.argv[2]).ids
"""

PLAIN_WAY = """
import sys, unicodedata
ids = {line.strip(): number for number, line in enumerate(open(sys.argv[1], encoding="utf-8"))}
text = "".join(c for c in unicodedata.normalize("NFD", sys.argv[2].lower()) if unicodedata.category(c) != "Mn")
found = []
for word in text.replace(".", " . ").split():
    start = 0
    while start < len(word):
        end = len(word)
        while end > start and ("##" * (start > 0) + word[start:end]) not in ids:
            end -= 1
        found.append(ids["##" * (start > 0) + word[start:end]])
        start = end
"""


def best_of(command: list[str]) -> float:
    return min(seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(NUM_PROCESSES))


def find_vocabulary(data: Path, folder: Path) -> Path:
    """Take the original vocabulary where it is, else learn one of its size class from Python's own help."""
    if (data / "vocab.tar.xz").exists():
        return unpack_vocabulary(data, "bert-base-uncased-vocab.txt", folder)
    write_topics(folder / "topics.txt")
    learned = learn_vocabulary(Corpus([folder / "topics.txt"]), size=8_000, min_count=1)
    write_vocabulary(folder / "vocab.txt", learned.pieces)
    return folder / "vocab.txt"


def main() -> None:
    options = parser(__doc__).parse_args()
    print("start-up, best of fresh processes")
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = str(find_vocabulary(options.data, Path(folder)))
        python = best_of([sys.executable, "-c", "pass"])
        command = best_of([str(Path(sys.executable).parent / "bertworks"), "--help"])
        ours = best_of([sys.executable, "-c", FIRST_ENCODE, vocabulary, SENTENCE])
        plain = best_of([sys.executable, "-c", PLAIN_WAY, vocabulary, SENTENCE])
    results = {
        "Python itself, s": python,
        "bertworks --help, s (bar: under 0.3)": command,
        "first encode, s": ours,
        "the plain Python way, s": plain,
        "difference, s (bar: under 0.050)": ours - plain,
    }
    report(results, options.json)


if __name__ == "__main__":
    main()
