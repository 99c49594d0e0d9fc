"""The first stage: a vocabulary from Python's own help, how it splits sentences, and how fast the help is cut by it."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bertworks.config import VocabSettings
from bertworks.demo.asked import TO_SPLIT
from bertworks.demo.folder import TOPICS, VOCABULARY
from bertworks.demo.page_parts import paragraph, pieces, text
from bertworks.demo.show import Show
from bertworks.demo.telling import tell
from bertworks.files import atomic_write
from bertworks.progress import progress_bar
from bertworks.recipe import Recipe
from bertworks.show.report_parts import tile
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer

_COPIES = 4  # the help has half a megabyte, and a measurement wants some more
_ROUNDS = 3  # of a measurement, of which the best counts: the first one also loads what is compiled


class Speeds(NamedTuple):
    """Megabytes of text a second on one core, every id read out."""

    ours: float
    theirs: float

    def sentence(self) -> str:
        """Say both."""
        return (
            f"It cuts {self.ours:.0f} MB of text a second on one core, {self.ours / self.theirs:.1f} times as much as "
            f"the tokenizers library ({self.theirs:.1f} MB)"
        )


def learn_vocabulary(show: Show) -> Tokenizer:
    """Learn the vocabulary and show what it does."""
    with show.stage("A vocabulary, from the help that comes with Python", _command(show.recipe)) as stage:
        write_topics(show.folder / TOPICS)
        tokenizer, num_words = _learn(show)
        speeds = _compare_speeds(tokenizer, show.folder)
        told = f"{len(tokenizer):,} pieces, learned from {num_words:,} words"
        splits = [(sentence, tokenizer.encode(sentence).tokens) for sentence in TO_SPLIT]
        tell("\n".join([told, *(f"  {' '.join(tokens)}" for _, tokens in splits), speeds.sentence()]))
        stage.html = paragraph(f"{told}.") + "".join(text(sentence) + pieces(tokens) for sentence, tokens in splits)
        stage.html += paragraph(f"{speeds.sentence()}.")
    show.tiles.append(tile("Vocabulary", f"{len(tokenizer):,}", "pieces, learned"))
    return tokenizer


def _command(recipe: Recipe) -> str:
    """Return the command that learns the same vocabulary."""
    usual = VocabSettings()
    options = [f"--{name.replace('_', '-')} {value}" for name, value in recipe.vocab if value != getattr(usual, name)]
    return " ".join(["bertworks vocab", TOPICS, *options, *flags_of(recipe), "--out my-vocab.txt"])


def flags_of(recipe: Recipe) -> list[str]:
    """Return the options of commands that clean text as the recipe wants it."""
    rules = rules_of(recipe)
    cased = [] if rules.strip_accents else ["--keep-accents" if rules.lowercase else "--cased"]
    return cased + ([] if rules.split_cjk else ["--join-cjk"])


def rules_of(recipe: Recipe) -> Rules:
    """Return how the recipe wants text to be cleaned."""
    settings = recipe.tokenizer
    accents = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    return Rules(settings.lowercase, accents, settings.split_cjk)


def write_topics(path: Path) -> None:
    """Write Python's help as a corpus: a document for every topic, a line for every line of it."""
    from pydoc_data import topics

    # Paragraphs of a topic stay together: a blank line would start a new document.
    documents = (
        "\n".join(line for line in topics.topics[name].splitlines() if line.strip()) for name in sorted(topics.topics)
    )
    with atomic_write(path) as stream:
        stream.write("\n\n".join(documents) + "\n")


def _learn(show: Show) -> tuple[Tokenizer, int]:
    """Learn pieces from the text in the folder and write them there; return also the number of words in the text."""
    from bertworks.text.corpus import Corpus
    from bertworks.text.learn import learn_vocabulary
    from bertworks.text.vocabulary import write_vocabulary

    rules, corpus = rules_of(show.recipe), Corpus([show.folder / TOPICS])
    with progress_bar(quiet=show.quiet) as progress:
        learned = learn_vocabulary(corpus, rules=rules, progress=progress, **dict(show.recipe.vocab))
    write_vocabulary(show.folder / VOCABULARY, learned.pieces)
    return Tokenizer(learned.pieces, **rules._asdict()), learned.num_word_tokens


def _compare_speeds(tokenizer: Tokenizer, folder: Path) -> Speeds:
    """Cut the text into pieces with our tokenizer and with that of the tokenizers library, from the same files."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tempfile import TemporaryDirectory

    from tokenizers import Tokenizer as PeerTokenizer

    lines = _COPIES * (folder / TOPICS).read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as files:
        tokenizer.save(files)
        peer = PeerTokenizer.from_file(str(Path(files, "tokenizer.json")))
    return Speeds(
        _megabytes_per_second(lambda: [encoding.ids for encoding in tokenizer.encode_batch(lines)], lines),
        _megabytes_per_second(lambda: [encoding.ids for encoding in peer.encode_batch_fast(lines)], lines),
    )


def _megabytes_per_second(work: Callable[[], object], lines: Sequence[str]) -> float:
    num_bytes, seconds = sum(len(line.encode()) for line in lines), []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return num_bytes / 1e6 / min(seconds)
