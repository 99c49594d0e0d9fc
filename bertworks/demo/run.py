"""The order of the demo: a vocabulary, shards, a tiny BERT; then the shipped model, fine-tuned and looked into.

Each stage says what it does and how to do the same by hand, works, and leaves its part of the report. Where the package
has no shipped model the demo ends after the tiny BERT. Everything is computed on the CPU, and all seeds are fixed.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from bertworks.demo.asked import SHIPPED
from bertworks.demo.folder import DEV, REPORT, RUN, TRAIN, demo_folder
from bertworks.demo.show import Show
from bertworks.demo.telling import say, tell
from bertworks.interop.shipped_models import find_shipped
from bertworks.recipe import load_recipe


def run_demo(overrides: Sequence[str], *, out: str, quiet: bool = False) -> None:
    """Show the life of a BERT.

    Args:
        overrides: `section.key=value` over the recipe `demo`.
        out: the folder to write; one of an earlier demo is replaced.
        quiet: show no progress, only results.
    """
    recipe, started = load_recipe("demo", overrides), time.monotonic()
    with demo_folder(out) as folder:
        show = Show(recipe, overrides, folder, quiet)
        say("The life of a BERT, in some minutes on a CPU", bold=True)
        say(f"Everything goes into {folder}; in that folder the commands below do the same by hand.")
        _make_tiny(show)
        shipped = find_shipped(SHIPPED)
        if shipped:
            _use_shipped(show, shipped)
        else:
            _miss_shipped()
        _end(show, time.monotonic() - started)


def _make_tiny(show: Show) -> None:
    """Go from text to a model."""
    from bertworks.demo.pretraining import pretrain_tiny
    from bertworks.demo.shards import make_shards
    from bertworks.demo.vocabulary import learn_vocabulary

    tokenizer = learn_vocabulary(show)
    make_shards(show, tokenizer)
    pretrain_tiny(show)


def _use_shipped(show: Show, shipped: Path) -> None:
    """Go from a model that has read more to one that judges sentences."""
    from bertworks.demo.attention import look_into
    from bertworks.demo.shipped import ask_shipped
    from bertworks.demo.tuning import finetune_shipped, judge_sentences

    ask_shipped(show, shipped)
    tuned = finetune_shipped(show, shipped)
    judge_sentences(show, tuned)
    look_into(show, tuned)


def _miss_shipped() -> None:
    say()
    tell(
        f"No model {SHIPPED!r} comes with this version, so the demo ends here. With any BERT of yours, or with the "
        f"tiny one, you can go on by hand; {TRAIN} and {DEV} are there:\n"
        f"$ bertworks finetune classify --model {RUN} --train {TRAIN} --dev {DEV} --out my-tuned"
    )


def _end(show: Show, seconds: float) -> None:
    from bertworks.demo.page import write_demo_page
    from bertworks.train.run_facts import duration

    path = show.folder / REPORT
    write_demo_page(path, show, seconds)
    say()
    say(f"{path} has all of it, with pictures: open it in a browser. {duration(seconds)} in all.", bold=True)
