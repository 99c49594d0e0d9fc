"""The third stage: pre-training from nothing, and what the tiny BERT guesses then."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertworks.demo.asked import HELP_MASKS
from bertworks.demo.folder import DATA, RUN
from bertworks.demo.masks import fill_all, filled_html, tell_filled
from bertworks.demo.page_parts import paragraph
from bertworks.demo.show import Show, end_if_signalled
from bertworks.demo.telling import tell
from bertworks.demo.threads import one_thread
from bertworks.errors import counted
from bertworks.show.report_parts import tile

if TYPE_CHECKING:
    from bertworks.train.run import Outcome

_OF_TEXT = ("vocab.", "tokenizer.")  # sections of a recipe that are over when the shards are there


def pretrain_tiny(show: Show) -> None:
    """Pre-train on the shards, with the live view, and have the model fill masks."""
    from bertworks.inference.loading import load

    title = f"Pre-training: a BERT of size {show.recipe.model.preset} reads them, masks and all"
    with show.stage(title, _command(show.overrides), f'bertworks fill {RUN} "{HELP_MASKS[0]}"') as stage:
        outcome = _trained(show)
        filled = fill_all(load(show.folder / RUN, device="cpu"), HELP_MASKS)
        told = _told(outcome)
        tell(told)
        tell_filled(filled)
        stage.html = paragraph(f"{told}.") + _charts(show.folder / RUN) + filled_html(filled)
    show.tiles.append(tile("Pre-trained", f"{outcome.place.tokens:,}", f"tokens, {outcome.place.step:,} steps"))


def _command(overrides: Sequence[str]) -> str:
    changed = [shlex.quote(one) for one in overrides if not one.strip().startswith(_OF_TEXT)]
    return " ".join(["bertworks pretrain demo --data", DATA, "--out my-run", *changed])


def _trained(show: Show) -> "Outcome":
    from bertworks.train.pretrain import pretrain
    from bertworks.train.view import training_view

    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = pretrain(show.recipe, data=show.folder / DATA, out=show.folder / RUN, device="cpu", view=view)
    end_if_signalled(outcome.signal)
    return outcome


def _told(outcome: "Outcome") -> str:
    told = f"{counted(outcome.place.step, 'step')}, {counted(outcome.place.tokens, 'token')}"
    accuracy = outcome.metrics.get("holdout_mlm_accuracy")
    return told if accuracy is None else f"{told}; it fills {accuracy:.0%} of the masks of documents kept aside rightly"


def _charts(run: Path) -> str:
    from bertworks.train.report import learning_charts
    from bertworks.train.run_facts import read_run

    return f'<div class="charts">{"".join(learning_charts(read_run(run)))}</div>'
