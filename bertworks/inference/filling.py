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
from bertworks.nn.hidden_states import batches
from bertworks.text.by_words import check_text
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import MASK, UNK

if TYPE_CHECKING:
    from bertworks.inference.model import Model

_AHEAD = {"both": 0, "left_to_right": -1, "right_to_left": 1}  # where a token is guessed, seen from the token


def fill_masks(
    model: "Model", texts: Sequence[str], top_k: int, targets: Sequence[str] | str | None, *, truncate: bool
) -> list[list[list[dict[str, Any]]]]:
    """Return guesses for every mask of each text, see `Model.fill`; a text without a word has none."""
    check_top_k(top_k)
    tokenizer, mask_id = model.tokenizer, model.tokenizer.id_of(MASK)
    targets = [targets] if isinstance(targets, str) else targets
    allowed = list(dict.fromkeys(_piece_id(tokenizer, target) for target in targets)) if targets else None
    ids = [_ids_of(model, text, mask_id, f"text {number} of {len(texts)}: " if len(texts) > 1 else "", truncate)
           for number, text in enumerate(texts, 1)]  # fmt: skip
    ahead = _AHEAD[model.net.config.direction]
    found: list[list[list[dict[str, Any]]]] = [[] for _ in texts]
    for numbers in batches([len(one) for one in ids], model.net.embeddings.token.weight.device):
        together = [id for number in numbers for id in ids[number]]
        places = [place for place, id in enumerate(together) if id == mask_id]
        owners = [number for number in numbers for id in ids[number] if id == mask_id]
        if not places:
            continue
        with torch.inference_mode():
            hidden_TD = model.net(model.pack([ids[number] for number in numbers], None))
            logits_MV = model.mlm_logits(hidden_TD[[place + ahead for place in places]]).float()
            scores_MV = logits_MV.softmax(-1)[:, : len(tokenizer)]
        for number, scores_V in zip(owners, scores_MV.cpu(), strict=True):
            found[number].append(best_guesses(scores_V, tokenizer.pieces, top_k, allowed))
    return found


def _ids_of(model: "Model", text: str, mask_id: int, where: str, truncate: bool) -> list[int]:
    """Return a text's ids with those of its masks, none of which may be cut away."""
    check_text(text)
    if not text.strip():
        return model.tokenizer.encode(text).ids
    check_masks(text, where)
    ids = model.cut(_ids_with_masks(model.tokenizer, text, mask_id), truncate)
    num_masks = text.count(MASK)
    if lost := num_masks - ids.count(mask_id):
        raise UserError(f"{where}{lost} of {num_masks} [MASK] lie in what was cut; shorten the text")
    return ids


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
