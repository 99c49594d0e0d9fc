"""The fourth stage: the models that come with the package fill masks, and one of them judges pairs."""

from pathlib import Path

from bertworks.demo.asked import KOREAN, KOREAN_MASKS, MASKS, PAIRS, SHIPPED
from bertworks.demo.masks import fill_all, filled_html, judge_pairs, judged_html, tell_filled, tell_judged
from bertworks.demo.page_parts import paragraph
from bertworks.demo.show import Show
from bertworks.demo.telling import tell
from bertworks.interop.shipped_models import describe_shipped, find_shipped


def ask_shipped(show: Show, shipped: Path) -> None:
    """Ask the shipped model what it has learned, and the Korean one if it is there too."""
    from bertworks.inference.loading import load

    (first, second), korean = PAIRS[0], find_shipped(KOREAN)
    commands = [f'bertworks fill {SHIPPED} "{MASKS[0]}"', f'bertworks nsp {SHIPPED} "{first}" "{second}"']
    if korean:
        commands.append(f'bertworks fill {KOREAN} "{KOREAN_MASKS[0]}"')
    with show.stage(f"A model that has read more: {SHIPPED}, which comes with the package", *commands) as stage:
        model = load(shipped, device="cpu")
        filled, judged = fill_all(model, MASKS), judge_pairs(model)
        told = _told(SHIPPED)
        tell(told)
        tell_filled(filled)
        tell("Does the second sentence follow the first?")
        tell_judged(judged)
        stage.html = paragraph(f"{told}.") + filled_html(filled)
        stage.html += paragraph("Does the second sentence follow the first?") + judged_html(judged)
        if korean:
            filled = fill_all(load(korean, device="cpu"), KOREAN_MASKS)
            told = f"{KOREAN} reads Korean: {_told(KOREAN)}"
            tell(told)
            tell_filled(filled)
            stage.html += paragraph(f"{told}.") + filled_html(filled)


def _told(name: str) -> str:
    about = describe_shipped(name)
    told = f"{about.layers} layers of width {about.width}, {about.parameters / 1e6:.1f} million parameters"
    told += f", trained on {about.trained_on}" if about.trained_on else ""
    return told + (f"; it fills {about.mlm_accuracy:.0%} of masks rightly" if about.mlm_accuracy is not None else "")
