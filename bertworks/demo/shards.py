"""The second stage: the text as shards, and an instance that a model will see of it."""

from itertools import islice
from typing import Any

from bertworks.demo.asked import HOLDOUT
from bertworks.demo.folder import DATA, TOPICS, VOCABULARY
from bertworks.demo.page_parts import paragraph, pieces
from bertworks.demo.show import Show
from bertworks.demo.telling import tell
from bertworks.demo.vocabulary import flags_of
from bertworks.progress import progress_bar
from bertworks.text.tokenizer import Tokenizer

_LOOKED_AT = 50  # instances, of which the one with the most different pieces is shown: the help has tables of dashes


def make_shards(show: Show, tokenizer: Tokenizer) -> None:
    """Make the shards and show one instance."""
    from bertworks.data.inspect import instances
    from bertworks.data.prepare import Options, prepare
    from bertworks.data.shards import Dataset
    from bertworks.text.corpus import Corpus

    with show.stage("Training data: sentence pairs with masks, from the same text", _command(show)) as stage:
        corpus, data = Corpus([show.folder / TOPICS]), show.folder / DATA
        with progress_bar(quiet=show.quiet) as progress:
            manifest = prepare(corpus, tokenizer, data, Options(holdout=HOLDOUT), progress=progress)
        counts = _counts(manifest)
        first_ones = islice(instances(Dataset(data), show.recipe.data, seed=show.recipe.train.seed), _LOOKED_AT)
        instance = max(first_ones, key=lambda one: len(set(one["tokens"])))
        tell(f"{counts}. One pair:\n  {' '.join(instance['tokens'])}\n{_answers(instance)}")
        marked = instance["masked_positions"]
        stage.html = paragraph(f"{counts}. One pair, what is to be guessed marked:")
        stage.html += pieces(instance["tokens"], marked) + paragraph(f"{_answers(instance)}.")


def _command(show: Show) -> str:
    flags = "".join(f" {flag}" for flag in flags_of(show.recipe))
    return f"bertworks prepare {TOPICS} --vocab {VOCABULARY}{flags} --holdout {HOLDOUT} --out my-data"


def _counts(manifest: dict[str, Any]) -> str:
    train, kept = manifest["train"], manifest["holdout"]
    return (
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to learn from"
        f"; {kept['documents']:,} documents, {kept['tokens']:,} tokens kept aside"
    )


def _answers(instance: dict[str, Any]) -> str:
    """Say what the model is to find out about an instance."""
    asked = f"To be guessed: {' '.join(instance['masked_tokens'])}"
    if "is_random_next" not in instance:
        return asked
    return f"{asked}; the second part {'is from elsewhere' if instance['is_random_next'] else 'follows the first'}"
