"""The last stage: what the words of a sentence attend to, one head in characters and all of them in the report.

Of the many heads the one is drawn whose words look most at words that are not beside them: most heads look at their
neighbours or at punctuation, which is no news.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertworks.demo.asked import TO_ATTEND
from bertworks.demo.folder import TUNED
from bertworks.demo.show import Show
from bertworks.demo.telling import shade, tell
from bertworks.show.page_files import escaped
from bertworks.text.normalize import is_punctuation
from bertworks.text.vocabulary import CLS, SEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LONGEST = 12  # letters of a word


def look_into(show: Show, model: Any) -> None:
    """Draw what attends to what in the fine-tuned model."""
    from bertworks.show.attention_page import attention_page

    command = f'bertworks attend {TUNED} "{TO_ATTEND}"'
    with show.stage("Attention: which word looks at which", command) as stage:
        encoding, weights = model.attention(TO_ATTEND)
        words = words_of(encoding.tokens)
        layer, head = most_telling_head(weights, words)
        tell(f"Layer {layer + 1}, head {head + 1} of {len(weights)} x {len(weights[0])}, the words in their order;")
        tell("behind each what it looks at most, besides itself")
        tell("\n".join(picture(encoding.tokens, words, weights[layer, head])))
        page = attention_page(encoding.tokens, encoding.segment_ids, weights, f"fine-tuned: {TO_ATTEND}")
        stage.html = (
            f'<iframe class="attention" title="Attention" sandbox="allow-scripts" srcdoc="{escaped(page)}"></iframe>'
        )


def words_of(tokens: Sequence[str]) -> list[int]:
    """Return the places of tokens that are neither special nor punctuation."""
    return [
        place for place, token in enumerate(tokens) if token not in (CLS, SEP) and not all(map(is_punctuation, token))
    ]


def most_telling_head(weights: "NDArray[np.float32]", words: Sequence[int]) -> tuple[int, int]:
    """Return (layer, head), counted from 0, of the head whose words look most at words that are not beside them."""
    import numpy as np

    places = np.array(words)
    is_far = np.abs(places[:, None] - places[None, :]) > 1
    among_words = weights[:, :, places][..., places] * is_far
    telling = among_words.max(-1).mean(-1)
    layer, head = np.unravel_index(telling.argmax(), telling.shape)
    return int(layer), int(head)


def picture(tokens: Sequence[str], words: Sequence[int], weights: "NDArray[np.float32]") -> list[str]:
    """Draw a head: a row for every word, darker where it looks more, and the other word that it looks at most.

    Args:
        tokens: of the sentence.
        words: the places of those that are drawn, two or more.
        weights: [from token, to token].
    """
    darkest = float(weights[:, words][words].max())
    rows = []
    for place in words:
        cells = "".join(2 * shade(float(weights[place, other]) / darkest) for other in words)
        nearest = max((other for other in words if other != place), key=lambda other: float(weights[place, other]))
        looks = f"looks at {tokens[nearest][:_LONGEST]}, {float(weights[place, nearest]):.0%}"
        rows.append(f"{tokens[place][:_LONGEST]:>{_LONGEST}} {cells} {looks}")
    return rows
