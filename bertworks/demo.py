"""`bertworks demo`: what the package can do today, shown in a minute on text that comes with Python itself.

A vocabulary is learned from the help topics of `pydoc`, some sentences are split with it, and the tokenizer's speed
stands beside that of the tokenizers library, on one core, over the same text. Then the text becomes shards, a tiny BERT
is pre-trained on them, and it fills masks.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from bertworks.progress import progress_bar
from bertworks.recipe import Recipe, load_recipe
from bertworks.text.corpus import Corpus
from bertworks.text.learn import learn_vocabulary
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer

_SENTENCES = (
    "A class definition is an executable statement.",
    "Unpacking iterables wasn't always this pleasant!",
    "The tokenizer splits unseen words, such as pretraining, into pieces.",
)
_COPIES = 4  # the topics have half a megabyte; the measurement wants some more


_MASKED = (
    "The [MASK] statement is used to define a function.",
    "It returns a new [MASK] object.",
    "See section [MASK] for more information.",
)


def run_demo(overrides: Sequence[str], *, quiet: bool = False) -> None:
    """Learn, split, compare, pre-train, fill; `overrides` change the recipe `demo`."""
    recipe = load_recipe("demo", overrides)
    topics = python_topics()
    tokenizer = _learn(topics, recipe, quiet=quiet)
    typer.echo("\nHow it splits")
    for sentence in _SENTENCES:
        encoding = tokenizer.encode(sentence)
        typer.echo(f"  {sentence}\n    {' '.join(encoding.tokens)}\n    decoded: {tokenizer.decode(encoding.ids)}")
    _compare(tokenizer, [line for topic in topics for line in topic.splitlines()])
    with tempfile.TemporaryDirectory() as folder:
        _pretrain(topics, tokenizer, recipe, Path(folder), quiet=quiet)


def _pretrain(topics: Sequence[str], tokenizer: Tokenizer, recipe: Recipe, folder: Path, *, quiet: bool) -> None:
    from bertworks.data.prepare import Options, prepare
    from bertworks.loading import load
    from bertworks.train.pretrain import pretrain
    from bertworks.train.view import training_view

    _write_documents(topics, folder / "topics.txt")
    started = time.monotonic()
    with progress_bar(quiet=quiet) as progress:
        prepare(Corpus([folder / "topics.txt"]), tokenizer, folder / "data", Options(holdout=0.05), progress=progress)
    with training_view(quiet=quiet) as view:
        outcome = pretrain(recipe, data=folder / "data", out=folder / "run", device="cpu", view=view)
    typer.echo(
        f"\nPre-trained {recipe.model.preset} for {outcome.place.step:,} steps, {outcome.place.tokens:,} tokens, in "
        f"{time.monotonic() - started:.0f} s; of masked pieces of documents kept aside it guesses "
        f"{outcome.metrics.get('holdout_mlm_accuracy', 0):.0%}"
    )
    model = load(folder / "run", device="cpu")
    for text in _MASKED:
        guesses = model.fill(text, top_k=4)[0]
        typer.echo(f"  {text}\n    " + ", ".join(f"{guess['token']} {guess['score']:.0%}" for guess in guesses))


def _write_documents(topics: Sequence[str], path: Path) -> None:
    # Paragraphs of a topic stay together: a blank line would start a new document.
    documents = ("\n".join(line for line in topic.splitlines() if line.strip()) for topic in topics)
    path.write_text("\n\n".join(documents), encoding="utf-8")


def python_topics() -> list[str]:
    """Return the documents of Python's own help."""
    from pydoc_data import topics

    return [topics.topics[name] for name in sorted(topics.topics)]


def _learn(topics: Sequence[str], recipe: Recipe, *, quiet: bool) -> Tokenizer:
    settings = recipe.tokenizer
    accents = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    rules = Rules(settings.lowercase, accents, settings.split_cjk)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, progress_bar(quiet=quiet) as progress:
        _write_documents(topics, Path(folder, "topics.txt"))
        learned = learn_vocabulary(Corpus([folder]), rules=rules, progress=progress, **dict(recipe.vocab))
    typer.echo(
        f"Learned {len(learned.pieces):,} pieces from {learned.num_word_tokens:,} words of Python's own help "
        f"in {time.monotonic() - started:.1f} s: {' '.join(learned.pieces[-6:])}"
    )
    return Tokenizer(
        learned.pieces, lowercase=rules.lowercase, strip_accents=rules.strip_accents, split_cjk=rules.split_cjk
    )


def _compare(tokenizer: Tokenizer, lines: Sequence[str]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer as PeerTokenizer

    texts = list(lines) * _COPIES
    num_bytes = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        peer = PeerTokenizer.from_file(str(Path(folder, "tokenizer.json")))
    ours = _megabytes_per_second(lambda: [encoding.ids for encoding in tokenizer.encode_batch(texts)], num_bytes)
    theirs = _megabytes_per_second(lambda: [encoding.ids for encoding in peer.encode_batch_fast(texts)], num_bytes)
    typer.echo("\nSpeed over the same text, one core (best of three)")
    typer.echo(
        f"  bertworks   {ours:6.1f} MB/s\n  tokenizers  {theirs:6.1f} MB/s\n  ratio       {ours / theirs:6.1f} x"
    )


def _megabytes_per_second(work: Callable[[], object], num_bytes: int) -> float:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return num_bytes / 1e6 / min(seconds)
