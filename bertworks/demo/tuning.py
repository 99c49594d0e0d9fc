"""The fifth and the sixth stage: the shipped model is fine-tuned on labelled sentences, and judges new ones."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks.demo.asked import FINETUNING, SHIPPED, TO_CLASSIFY
from bertworks.demo.folder import DEV, TRAIN, TUNED
from bertworks.demo.page_parts import cards, paragraph, shares, text
from bertworks.demo.show import Show, end_if_signalled
from bertworks.demo.telling import bar, tell
from bertworks.demo.threads import one_thread
from bertworks.show.report_parts import tile

if TYPE_CHECKING:
    from bertworks.tuning.session import Finetuned

_FINETUNE = (
    f"bertworks finetune classify --model {SHIPPED} --train {TRAIN} --dev {DEV} --out my-tuned {' '.join(FINETUNING)}"
)


class Predicted(NamedTuple):
    """A sentence and what the model finds of it: the labels with their shares, the likeliest first."""

    text: str
    scores: list[tuple[str, float]]


def finetune_shipped(show: Show, shipped: Path) -> Any:
    """Fine-tune on the sentences in the folder, with the live view, and return the model."""
    from bertworks.inference.loading import load

    with show.stage("Fine-tuning: labelled sentences teach it who is pleased and who is not", _FINETUNE) as stage:
        outcome = _tuned(show, shipped)
        told = (
            f"{outcome.score:.0%} of {DEV} is judged rightly, by the model of step {outcome.step:,} of "
            f"{outcome.place.step:,}: the best one is kept"
        )
        tell(told)
        stage.html = paragraph(f"{told}.") + _tables(show.folder / TUNED)
    show.tiles.append(tile("Sentences judged rightly", f"{outcome.score:.0%}", f"of {DEV}, once fine-tuned"))
    return load(show.folder / TUNED, device="cpu")


def _tuned(show: Show, shipped: Path) -> "Finetuned":
    from bertworks.train.run_folder import CHECKPOINTS
    from bertworks.train.view import training_view
    from bertworks.tuning.finetune import finetune

    folder = show.folder
    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = finetune(
            "classify", model=shipped, train=folder / TRAIN, dev=folder / DEV, out=folder / TUNED,
            overrides=FINETUNING, device="cpu", view=view,
        )  # fmt: skip
    end_if_signalled(outcome.signal)
    shutil.rmtree(folder / TUNED / CHECKPOINTS)  # twice as large as the model, and nobody goes on from there
    return outcome


def _tables(run: Path) -> str:
    """Return the curves of a run, and how its model did by classes."""
    from bertworks.tuning.dev_page import class_tables
    from bertworks.tuning.report import learning_charts, read_finetune_run

    found = read_finetune_run(run)
    assert found.dev, "the dev set was measured"
    return f'<div class="charts">{"".join(learning_charts(found))}</div>{class_tables(found.dev)}'


def judge_sentences(show: Show, model: Any) -> None:
    """Have the fine-tuned model judge sentences that nobody has labelled."""
    with show.stage("New sentences, judged", f'bertworks classify {TUNED} "{TO_CLASSIFY[0]}"') as stage:
        predicted = [
            Predicted(one, sorted(result["scores"].items(), key=lambda item: -item[1]))
            for one, result in zip(TO_CLASSIFY, model.classify(TO_CLASSIFY), strict=True)
        ]
        _tell(predicted)
        stage.html = cards(text(one.text) + shares(one.scores) for one in predicted)


def _tell(predicted: Sequence[Predicted]) -> None:
    for one in predicted:
        label, share = one.scores[0]
        tell(f"{label:<10}  {bar(share)} {share:4.0%}  {one.text}")
