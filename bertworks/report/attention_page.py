"""The attention of one sentence, or of a pair, as one HTML page that needs no network, no server and no library.

The page is put together from the files of `pages/attention`: the scripts and the style are written into it, the tokens
and the weights follow as JSON. It opens from a disk. Tokens and title come from outside and are escaped where they are
written; besides, a content security policy lets the browser run the one script and the one style that we ship (known by
their hashes) and load nothing at all, so a slip in the escaping would show, not run.

A weight takes one byte: round(255 * sqrt(weight / largest)). Most weights are small, and the root gives most of the 256
steps to them: among 512 tokens one of 0.2 % is still told within 0.02 points, one of 50 % within 0.3. In base64, 12
layers of 12 heads over 60 tokens are 0.7 MB. Each layer is a text of its own, decoded when it is first looked at.
"""

import base64
import json
from string import Template
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError, counted
from bertworks.report.charts import content_hash, escaped, page_file

_SCRIPTS = ("weights.js", "head_view.js", "model_view.js")
_LEVELS = 255
# The paper's large model over 512 tokens fits (101 million); a browser's longest text is about four times this page.
_MAX_WEIGHTS = 1 << 27


class AttentionFiles(NamedTuple):
    """The style and the script of the page."""

    style: str
    script: str


def attention_page(tokens: list[str], segment_ids: list[int], attentions: NDArray[np.float32], title: str) -> str:
    """Return the page's text, to be written as UTF-8.

    Args:
        tokens: the pieces in order, [CLS] and [SEP] included.
        segment_ids: 0 for a token of the first sentence, 1 for one of the second.
        attentions: [layers, heads, tokens, tokens]; the row of a token says how much it attends to each.
        title: the model's name and the text, shown above the picture.
    """
    num_layers, num_heads = attentions.shape[:2]
    assert attentions.shape == (num_layers, num_heads, len(tokens), len(tokens)), attentions.shape
    assert len(segment_ids) == len(tokens), "a segment for every token"
    assert set(segment_ids) <= {0, 1}, "the first segment is 0, the second 1"
    _refuse_what_cannot_be_shown(attentions)
    scale = float(attentions.max()) or 1.0
    data = {
        "tokens": tokens,
        "segments": segment_ids,
        "numHeads": num_heads,
        "scale": scale,
        "layers": [_encode_layer(layer, scale) for layer in attentions],
    }
    style, script = attention_files()
    return Template(page_file("attention", "page.html")).substitute(
        title=escaped(title),
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
        data=_json_for_html(data),
    )


def attention_files() -> AttentionFiles:
    """Return what is written into every such page; a page that frames one has to allow both."""
    style, *scripts = (page_file("attention", name) for name in ("style.css", *_SCRIPTS))
    return AttentionFiles(style, "".join(scripts))


def _refuse_what_cannot_be_shown(attentions: NDArray[np.float32]) -> None:
    num_layers, num_heads, num_tokens, _ = attentions.shape
    if not attentions.size:
        raise UserError(
            f"no attention to show: the model has {counted(num_layers, 'layer')}, the text "
            f"{counted(num_tokens, 'token')}"
        )
    if attentions.size > _MAX_WEIGHTS:
        most = int((_MAX_WEIGHTS / num_layers / num_heads) ** 0.5)
        raise UserError(
            f"{counted(num_layers, 'layer')} of {counted(num_heads, 'head')} over {num_tokens} tokens are too much for "
            f"one page; at most {most} tokens of this model: shorten the text"
        )
    # Sums of rounded numbers: a weight may lie a little above 1. A comparison with NaN is false.
    if not (attentions.min() >= 0 and attentions.max() <= 1.001):
        raise UserError("the attention weights are not between 0 and 1: the model's weights are damaged")


def _encode_layer(weights: NDArray[np.float32], scale: float) -> str:
    levels = np.rint(np.sqrt(weights / scale) * _LEVELS).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode("ascii")


def _json_for_html(data: dict[str, object]) -> str:
    """Write JSON that may stand in a script element: all of it ASCII, and no `<` that could end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
