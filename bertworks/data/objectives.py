"""Which objectives tokens of a kind can give, and the special tokens that stand around their instances.

BERT's instances are [CLS] A [SEP] B [SEP], ELMo's `<S>` words `</S>`; GPT-1 reads running text and knows no special
tokens before fine-tuning, so a span fills all of `max_length`.
"""

from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.vocabulary import CLS, MASK, PAD, SEP
from bertworks.text.words import BEGIN, END

OBJECTIVES = {  # by kind of tokens, its usual one first
    "wordpiece": ("mlm+nsp", "mlm", "ltr", "rtl"),
    "gpt-bpe": ("ltr", "rtl"),
    "words": ("bilm",),
}
NO_TOKEN = -1


class Special(NamedTuple):
    """The ids that instances are built with; NO_TOKEN where a kind has none."""

    cls: int
    sep: int
    mask: int
    pad: int  # behind the instances of a batch, where no token is needed: any id will do


def check_objective(objective: str, kind: str) -> None:
    """Refuse an objective that tokens of a kind cannot give."""
    possible = OBJECTIVES[kind]
    if objective not in possible:
        kinds = [other for other, objectives in OBJECTIVES.items() if objective in objectives]
        raise UserError(
            f"objective={objective} needs data of {' or '.join(kinds)} tokens, and this is {kind}; "
            f"choose objective={' or '.join(possible)}, or prepare other data with --tokens"
        )


def special_ids(tokenizer: AnyTokenizer) -> Special:
    """Return the ids of the special tokens of a kind."""
    if tokenizer.kind == "gpt-bpe":
        return Special(NO_TOKEN, NO_TOKEN, NO_TOKEN, pad=0)
    if tokenizer.kind == "words":
        return Special(tokenizer.id_of(BEGIN), tokenizer.id_of(END), NO_TOKEN, pad=0)
    return Special(*(tokenizer.id_of(token) for token in (CLS, SEP, MASK, PAD)))
