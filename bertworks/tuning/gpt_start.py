"""A GPT-1 to fine-tune, as its paper does it: special pieces around texts, and its language model goes on learning.

Pieces that its vocabulary does not have get rows in the embedding table that are drawn from the seed.
"""

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.interop.gpt_folder import read_gpt, write_gpt
from bertworks.interop.gpt_names import from_openai
from bertworks.nn.gpt import LM_WEIGHT, Gpt
from bertworks.nn.layers import initialise
from bertworks.text.gpt_bpe import FINE_TUNING_TOKENS, GptTokenizer
from bertworks.text.gpt_inputs import GptInputs, with_special_pieces
from bertworks.tuning.task_start import TaskStart, Wanted, check_sizes, take_over

_TABLE = "token.weight"


def open_gpt(wanted: Wanted) -> TaskStart:
    """Make the network of a GPT-1's folder."""
    if wanted.beside or wanted.settings.bilstm:
        what = "--with" if wanted.beside else "task.bilstm"
        raise UserError(f"{wanted.folder} is a GPT-1, and {what} is for BERTs; leave it out")
    opened, plain = read_gpt(wanted.folder), GptTokenizer.from_folder(wanted.folder)
    check_sizes(wanted, opened.net.config.n_positions, opened.net.config.vocab_size, len(plain))
    tokenizer = with_special_pieces(plain)
    update: dict[str, float] = {"vocab_size": max(opened.net.config.vocab_size, len(tokenizer))}
    if wanted.settings.dropout is not None:
        update |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), wanted.settings.dropout)
    config = opened.net.config.model_copy(update=update)
    net = Gpt(config, wanted.heads, both_orders=wanted.task.is_symmetric)
    initialise(net, config.initializer_range, wanted.seed, cut=False)
    weights: dict[str, Tensor] = dict(opened.net.named_parameters())
    weights[_TABLE] = _with_rows(weights[_TABLE], net.token.weight, len(plain) if tokenizer is not plain else None)
    about = take_over(net, weights, wanted, opened.labels)
    about["drawn"] += [piece for piece in FINE_TUNING_TOKENS if piece not in plain.pieces]
    weight = wanted.settings.lm_weight
    return TaskStart(
        net=net,
        tokenizer=GptInputs(tokenizer),
        about=about,
        write=lambda folder, about: write_gpt(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=from_openai,
        lm_weight=LM_WEIGHT if weight is None else weight,
    )


def _with_rows(theirs_VD: Tensor, drawn_VD: Tensor, num_known: int | None) -> Tensor:
    """Return a table with the known rows of theirs, and the others as they were drawn."""
    if num_known is None:
        return theirs_VD
    return torch.cat([theirs_VD[:num_known], drawn_VD[num_known:]]).detach()
