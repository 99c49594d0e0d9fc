"""Guesses at the masks of a text, by a BERT with an MLM head.

In such a text [MASK], and nothing else, is a special token. It may be a part of a word: what follows it without a
space goes on with that word, as in pre-training, so "[MASK]이다" asks for a word that ends in -이다. A model that reads
in one direction guesses at a token what comes next to it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from bertworks.errors import UserError
from bertworks.inference.guesses import best_guesses, check_top_k
from bertworks.text.by_words import check_text
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import MASK, UNK

if TYPE_CHECKING:
    from bertworks.inference.model import Model

_AHEAD = {"both": 0, "left_to_right": -1, "right_to_left": 1}  # where a token is guessed, seen from the token


def fill_masks(
    model: "Model", text: str, top_k: int, targets: Sequence[str] | str | None, *, truncate: bool
) -> list[list[dict[str, Any]]]:
    """Return guesses for every mask, see `Model.fill`."""
    check_top_k(top_k)
    check_text(text)
    check_masks(text)
    tokenizer, mask_id = model.tokenizer, model.tokenizer.id_of(MASK)
    ids = model.cut(_ids_with_masks(tokenizer, text, mask_id), truncate)
    places = [place for place, id in enumerate(ids) if id == mask_id]
    num_masks = text.count(MASK)
    if len(places) < num_masks:
        raise UserError(f"{num_masks - len(places)} of {num_masks} [MASK] lie in what was cut; shorten the text")
    targets = [targets] if isinstance(targets, str) else targets
    allowed = list(dict.fromkeys(_piece_id(tokenizer, target) for target in targets)) if targets else None
    ahead = _AHEAD[model.net.config.direction]
    with torch.inference_mode():
        hidden_TD = model.net(model.pack([ids], None))
        logits_MV = model.mlm_logits(hidden_TD[[place + ahead for place in places]]).float()
        scores_MV = logits_MV.softmax(-1)[:, : len(tokenizer)]
    return [best_guesses(scores_V, tokenizer.pieces, top_k, allowed) for scores_V in scores_MV.cpu()]


def check_masks(text: str, where: str = "") -> None:
    """Refuse a text without a [MASK]; `where` comes before the words."""
    if MASK not in text:
        hint = f"; write it in capitals: {MASK}" if MASK.lower() in text.lower() else ""
        raise UserError(f"{where}no {MASK} to fill in {text[:60]!r}{hint}")


def _ids_with_masks(tokenizer: Tokenizer, text: str, mask_id: int) -> list[int]:
    first, *rest = text.split(MASK)
    *ids, end = tokenizer.encode(first).ids
    for part in rest:
        ids += [mask_id, *tokenizer.ids_behind(part)]
    return [*ids, end]


def _piece_id(tokenizer: Tokenizer, target: str) -> int:
    pieces = tokenizer.tokenize(target)
    if len(pieces) != 1:
        raise UserError(
            f"the target {target[:40]!r} is {len(pieces)} pieces ({' '.join(pieces)[:60]}), not one; choose a word "
            "that `bertworks tokenize` leaves whole"
        )
    if pieces == [UNK]:
        raise UserError(f"the target {target[:40]!r} is not in the vocabulary")
    return tokenizer.id_of(pieces[0])
