"""The fourth stage: the model that comes with the package fills masks and judges pairs."""

from pathlib import Path

from bertworks.demo.asked import MASKS, PAIRS, SHIPPED
from bertworks.demo.masks import fill_all, filled_html, judge_pairs, judged_html, tell_filled, tell_judged
from bertworks.demo.page_parts import paragraph
from bertworks.demo.show import Show
from bertworks.demo.telling import tell
from bertworks.shipped_models import describe_shipped


def ask_shipped(show: Show, shipped: Path) -> None:
    """Ask the shipped model what it has learned."""
    from bertworks.loading import load

    first, second = PAIRS[0]
    commands = (f'bertworks fill {SHIPPED} "{MASKS[0]}"', f'bertworks nsp {SHIPPED} "{first}" "{second}"')
    with show.stage(f"A model that has read more: {SHIPPED}, which comes with the package", *commands) as stage:
        model = load(shipped, device="cpu")
        filled, judged = fill_all(model, MASKS), judge_pairs(model)
        told = _told()
        tell(told)
        tell_filled(filled)
        tell("Does the second sentence follow the first?")
        tell_judged(judged)
        stage.html = paragraph(f"{told}.") + filled_html(filled)
        stage.html += paragraph("Does the second sentence follow the first?") + judged_html(judged)


def _told() -> str:
    about = describe_shipped(SHIPPED)
    told = f"{about.layers} layers of width {about.width}, {about.parameters / 1e6:.1f} million parameters"
    told += f", trained on {about.trained_on}" if about.trained_on else ""
    return told + (f"; it fills {about.mlm_accuracy:.0%} of masks rightly" if about.mlm_accuracy is not None else "")
