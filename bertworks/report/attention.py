"""The page of `attend`: the attention within a sentence or a pair, as one HTML file that loads nothing from outside.

The page contains its scripts and its style (`pages/attention`), and the tokens and the weights as JSON. A content
security policy allows only the scripts and styles that we ship, by their hashes, and no loading. So even if text from
outside were not escaped correctly, it could not run. A weight takes one byte: round(255 * sqrt(weight / largest)). Most
weights are small, and the root gives them most of the 256 steps: among 512 tokens a weight of 0.2 % has an error of at
most 0.02 points, and one of 50 % of at most 0.3. In base64, 12 layers of 12 heads over 60 tokens take 0.7 MB. Each
layer is a separate text, which is decoded when it is first shown.
"""

import base64
import json
from string import Template

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError, counted
from bertworks.report.charts import content_hash, escaped, page_file

# Enough for the paper's large model over 512 tokens (101 million); a browser's longest string is about four times this
# page.
_MAX_WEIGHTS = 1 << 27


def attention_page(tokens: list[str], segment_ids: list[int], attentions: NDArray[np.float32], title: str) -> str:
    """Return the text of a page with the attention of all heads, to be written as UTF-8.

    Args:
        tokens: the pieces in order, [CLS] and [SEP] included.
        segment_ids: 0 for a token of the first sentence, 1 for one of the second.
        attentions: [layers, heads, tokens, tokens]; the row of a token has its attention weights for all tokens.
        title: the model's name and the text, shown above the picture.
    """
    num_layers, num_heads, num_tokens = attentions.shape[:3]
    assert attentions.shape == (num_layers, num_heads, len(tokens), len(tokens)), attentions.shape
    assert len(segment_ids) == len(tokens), "a segment for every token"
    assert set(segment_ids) <= {0, 1}, "the first segment is 0, the second 1"
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
    # Because of rounding a weight may be slightly above 1. A comparison with NaN is false.
    if not (attentions.min() >= 0 and attentions.max() <= 1.001):
        raise UserError("the attention weights are not between 0 and 1: the model's weights are damaged")
    scale = float(attentions.max()) or 1.0
    layers = [np.rint(np.sqrt(weights / scale) * 255).astype(np.uint8) for weights in attentions]
    data = {
        "tokens": tokens,
        "segments": segment_ids,
        "numHeads": num_heads,
        "scale": scale,
        "layers": [base64.b64encode(levels.tobytes()).decode("ascii") for levels in layers],
    }
    style, script = attention_files()
    return Template(page_file("attention", "page.html")).substitute(
        title=escaped(title),
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
        # JSON that is safe in a script element: ASCII only, and without `<`, which could end the element.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )


def attention_files() -> tuple[str, str]:
    """Return the style and the script of attention pages; a page that contains one in a frame must allow both."""
    scripts = (page_file("attention", name) for name in ("weights.js", "head_view.js", "model_view.js"))
    return page_file("attention", "style.css"), "".join(scripts)
