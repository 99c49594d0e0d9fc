"""BERT: the encoder of the paper, over packed tokens, with the heads that a task asks for.

T tokens, S sequences, D width, N heads, H width of a head, M masked positions, V vocabulary.

Section 3 in code: a token's embedding is the sum of its piece's, its segment's and its position's, normalised. Each
block attends, adds and normalises, then does the same with a feed-forward layer four times as wide (post-LN, as in the
Transformer). Dropout follows every sub-layer. The pooler reads [CLS], the first token of a sequence, or the last where
the configuration says so: of a network that looks to the left alone no other has seen the whole text.

- Heads stand on top, one small layer for each kind of task, as in the paper's Figure 4; K outputs:

| head     | reads            | gives                                                      |
|----------|------------------|------------------------------------------------------------|
| mlm      | masked positions | a score for every piece; its matrix is the piece embedding |
| nsp      | pooled [CLS]     | B follows A, B is random                                   |
| classify | pooled [CLS]     | a score for every class; one output: regression            |
| choose   | pooled [CLS]     | one score for each choice, each a sequence of its own      |
| tag      | tokens           | a score for every tag                                      |
| span     | tokens           | start and end scores; [CLS] stands for no answer           |

- A loss is a sum and the number of guesses in it, never a mean. A language model's token guesses the next one of its
  own sequence, or the one before: all T rows are scored, and those without a neighbour count 0, so shapes stay the same
  from batch to batch, and a sequence wastes one row. The scores of a whole batch would take gigabytes, so they are
  made for some thousands of rows at a time, and their gradient with them.
- Memory for time: what a block keeps for its backward pass is some fifteen times its input; a block that is recomputed
  keeps its input alone, and a step takes about a third longer. The gradients are the same to the last bit, for dropout
  is the same both times: a hash needs nothing for that, and the state of torch's generator is kept and set again.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bertworks.errors import UserError
from bertworks.nn.attention import Packing, Tokens, attend, attend_from_one, attention_weights
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import Dropout, Embedding, LayerNorm, Linear, activate, activated, place_key

_COLUMN_MULTIPLE = 64  # tensor cores want even columns; 30,522 pieces are three times slower than 30,528
_SCORES_AT_ONCE = 1 << 28  # 8,192 rows of BERT's vocabulary: half a gigabyte in bf16


class Embeddings(nn.Module):
    """Piece + segment + position, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token = Embedding(config.vocab_size, config.hidden_size)
        sinusoidal = config.positions == "sinusoidal"
        self.position = Embedding(config.max_position_embeddings, config.hidden_size, sinusoidal=sinusoidal)
        zeros = config.segments == "none"
        self.segment = Embedding(config.type_vocab_size, config.hidden_size, zeros=zeros)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, place=0)

    def forward(self, tokens: Tokens) -> Tensor:
        """Return [T, D]."""
        x_TD = self.token(tokens.token_ids) + self.segment(tokens.segment_ids) + self.position(tokens.position_ids)
        return self.dropout(self.norm(x_TD), tokens.dropout_seed)


class Block(nn.Module):
    """Attention and feed-forward, each added to its input and normalised.

    Attributes:
        is_recomputed: whether its backward pass computes it again, see `recompute_blocks`.
    """

    is_recomputed = False

    def __init__(self, config: BertConfig, number: int = 0) -> None:
        super().__init__()
        width = config.hidden_size
        self.qkv = Linear(width, 3 * width)
        self.attention_out = Linear(width, width)
        self.attention_norm = LayerNorm(width, config.layer_norm_eps)
        self.up = Linear(width, config.intermediate_size)
        self.down = Linear(config.intermediate_size, width)
        self.norm = LayerNorm(width, config.layer_norm_eps)
        self.num_heads, self.head_width = config.num_attention_heads, config.head_width
        self.causal = config.direction != "both"
        self.act = config.hidden_act
        self.attention_dropout = config.attention_probs_dropout_prob
        self.first_place = 3 * number
        self.drop_attended = Dropout(config.hidden_dropout_prob, place=2)
        self.drop_fed = Dropout(config.hidden_dropout_prob, place=3)

    def forward(
        self, x_TD: Tensor, packing: Packing, seed: Tensor | None = None, rows_S: Tensor | None = None
    ) -> Tensor:
        """Return [T, D], or only the rows `rows_S`, [S, D], of tokens that see all of their sequences.

        `seed` is that of the block's dropout.
        """
        dropout = self.attention_dropout if self.training else 0.0
        if rows_S is None:
            attended_TD = attend(self.project(x_TD), packing, causal=self.causal, dropout=dropout, seed=seed, place=1)
        else:
            attended_TD = self._attended_from(x_TD, packing, dropout, rows_S)
            x_TD = x_TD.index_select(0, rows_S)
        x_TD = self.attention_norm(x_TD + self.drop_attended(self.attention_out(attended_TD), seed))
        return self.norm(x_TD + self.drop_fed(self.down(activated(self.up, x_TD, self.act)), seed))

    def _attended_from(self, x_TD: Tensor, packing: Packing, dropout: float, rows_S: Tensor) -> Tensor:
        """Let one token a sequence attend to all: its query alone is made, and everybody's keys and values."""
        weight, bias, width = self.qkv.weight, self.qkv.bias, x_TD.shape[1]
        q_SD = F.linear(x_TD.index_select(0, rows_S), weight[:width], bias[:width])
        kv_T2D = F.linear(x_TD, weight[width:], bias[width:])
        q_SNH = q_SD.view(-1, self.num_heads, self.head_width)
        kv_T2NH = kv_T2D.view(-1, 2, self.num_heads, self.head_width)
        return attend_from_one(q_SNH, kv_T2NH, packing, dropout)

    def own_seed(self, seed: Tensor | None) -> Tensor | None:
        """Return the block's seed, given the network's; its places then have the same numbers in every block.

        So all blocks are one compiled graph. A place's key is a multiple of its number, so this moves them all.
        """
        return None if seed is None else seed + place_key(self.first_place)

    def project(self, x_TD: Tensor) -> Tensor:
        """Return queries, keys and values of all heads, [T, 3, N, H]."""
        return self.qkv(x_TD).view(-1, 3, self.num_heads, self.head_width)


# Blocks that are computed again in the backward pass.


def recompute_blocks(net: nn.Module) -> None:
    """Have the blocks of a network computed again in the backward pass; of one that is spread, after it is."""
    blocks: Any = getattr(net, "blocks", None)
    if blocks is None:
        raise UserError("train.recompute is for networks of blocks, and this one has none; leave it out")
    for block in blocks:
        if hasattr(block, "unshard"):  # of FSDP2: its weights are in place again when its backward pass begins
            block.forward = _recomputed(block.forward)
        else:
            block.is_recomputed = True


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


def call_block(block: nn.Module, x_TD: Tensor, packing: Any, seed: Tensor | None, *more: Tensor) -> Tensor:
    """Return what a block makes of its input; `seed` is that of its dropout."""
    if not (block.is_recomputed and torch.is_grad_enabled()):
        return block(x_TD, packing, seed, *more)
    if hasattr(block, "unshard"):  # of FSDP2: it gathers its weights whenever it is called
        return checkpoint(block, x_TD, packing, seed, *more, use_reentrant=False)
    # With the weights that it has now: in half precision a block has its copies only while the forward pass lasts.
    weights: dict[str, Tensor] = dict(block.named_parameters())
    again = lambda *inputs: functional_call(block, weights, inputs)  # noqa: E731
    return checkpoint(again, x_TD, packing, seed, *more, use_reentrant=False)


def rows_of_blocks(
    blocks: nn.ModuleList, x_TD: Tensor, packing: Packing, seed: Tensor | None, places_S: Tensor
) -> Tensor:
    """Return what blocks make of one token of each sequence, [S, D]; it must see the others, of which none is empty.

    Nothing else is read of the last block, so nothing else of it is computed but keys and values.

    Args:
        blocks: from the lowest to the last.
        x_TD: their input, in the order of `packing`.
        packing: of the whole batch.
        seed: of the network's dropout.
        places_S: where the batch has those tokens, in the order of its sequences.
    """
    if not blocks:
        return packing.leave(x_TD).index_select(0, places_S)
    *below, last = cast(Iterable[Block], blocks)
    for block in below:
        x_TD = call_block(block, x_TD, packing, block.own_seed(seed))
    rows_S, back_S = packing.rows_of(places_S)
    x_SD = call_block(last, x_TD, packing, last.own_seed(seed), rows_S)
    return x_SD if back_S is None else x_SD.index_select(0, back_S)


# What stands on top of the encoder.


class MlmHead(nn.Module):
    """Guesses the pieces at masked positions."""

    reads_pooled = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.act = config.hidden_act

    def forward(
        self, hidden_MD: Tensor, embedding_VD: Tensor, ids_M: Tensor | None = None, weights_M: Tensor | None = None
    ) -> Any:
        """Return logits, [M, V], with the extra columns of `tied_logits`; or the sums of guesses, if ids are given."""
        x_MD = self.norm(activate(self.dense(hidden_MD), self.act))
        if ids_M is None or weights_M is None:
            return tied_logits(x_MD, embedding_VD, self.bias)
        return guesses(x_MD, embedding_VD, self.bias, ids_M, weights_M)


def tied_logits(x_MD: Tensor, embedding_VD: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """Score rows with each piece's embedding, [M, V]; on CUDA up to 63 columns of -inf follow, unseen by a softmax."""
    return F.linear(x_MD, *padded_columns(x_MD, embedding_VD, bias_V))


def padded_columns(x_MD: Tensor, embedding_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the matrix and bias of scores in the precision of the rows, with the extra columns on CUDA."""
    embedding_VD, bias_V = embedding_VD.to(x_MD.dtype), None if bias_V is None else bias_V.to(x_MD.dtype)
    missing = -len(embedding_VD) % _COLUMN_MULTIPLE if x_MD.is_cuda else 0
    if not missing:
        return embedding_VD, bias_V
    bias_V = embedding_VD.new_zeros(len(embedding_VD)) if bias_V is None else bias_V
    return F.pad(embedding_VD, (0, 0, 0, missing)), F.pad(bias_V, (0, missing), value=-torch.inf)


class OutputHead(nn.Module):
    """A linear map from each row to K outputs, with dropout before it."""

    def __init__(self, config: BertConfig, num_outputs: int, *, reads_pooled: bool, dropout: bool) -> None:
        super().__init__()
        self.out = Linear(config.hidden_size, num_outputs)
        self.dropout = config.hidden_dropout_prob if dropout else 0.0
        self.reads_pooled, self.num_outputs = reads_pooled, num_outputs

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows of width D to K outputs."""
        return self.out(F.dropout(rows, self.dropout, self.training))


Head = MlmHead | OutputHead


def make_head(name: str, config: BertConfig, num_outputs: int) -> Head:
    """Make a head by its name; `num_outputs` is the number of classes or tags where the task decides it."""
    if name == "mlm":
        return MlmHead(config)
    if name == "nsp":
        return OutputHead(config, 2, reads_pooled=True, dropout=False)
    if name == "classify":
        return OutputHead(config, num_outputs, reads_pooled=True, dropout=True)
    if name == "choose":
        return OutputHead(config, 1, reads_pooled=True, dropout=True)
    if name == "tag":
        return OutputHead(config, num_outputs, reads_pooled=False, dropout=True)
    assert name == "span", f"no head is called {name}"
    return OutputHead(config, 2, reads_pooled=False, dropout=False)


# Losses: sums over predictions, and a language model's guesses.


def next_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the token after each, and how much each guess counts: `weights_T` is 0 at tokens that fill up a batch."""
    return _neighbours(tokens, ~_begins(tokens)[1:], -1, weights_T)


def previous_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the token before each, and how much each guess counts."""
    return _neighbours(tokens, ~_begins(tokens)[:-1], 1, weights_T)


def _begins(tokens: Tokens) -> Tensor:
    """Say of each of T + 1 places whether a sequence begins or ends there."""
    places = torch.zeros(len(tokens.token_ids) + 1, dtype=torch.bool, device=tokens.token_ids.device)
    return places.index_fill(0, tokens.packing.cumulative_lengths.long(), True)


def _neighbours(tokens: Tokens, is_there_T: Tensor, shift: int, weights_T: Tensor | None) -> tuple[Tensor, Tensor]:
    counted_T = is_there_T.float() if weights_T is None else is_there_T * weights_T
    return tokens.token_ids.roll(shift).long(), counted_T


class Sums(NamedTuple):
    """Of one kind of prediction: the summed loss, how many were right, and of how many."""

    loss: Tensor
    correct: Tensor
    total: Tensor  # of the weights: how many predictions there were


def sums_of(logits_MV: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
    """Return the sums of predictions whose right outcomes are `ids_M`."""
    scores = logits_MV.float()
    best = scores.detach().amax(-1)
    chosen = scores.gather(1, ids_M[:, None]).squeeze(1)
    losses = scores.sub(best[:, None]).exp().sum(-1).log() + best - chosen
    # The best score was needed anyway, so it costs nothing to see whether it was the right one.
    return Sums((losses * weights_M).sum(), ((chosen >= best) * weights_M).sum().detach(), weights_M.sum())


def total_of(found: Iterable[Sums]) -> Sums:
    """Add up the sums of parts."""
    return Sums(*(torch.stack(column).sum() for column in zip(*found, strict=True)))


def guesses(x_MD: Tensor, embedding_VD: Tensor, bias_V: Tensor | None, ids_M: Tensor, weights_M: Tensor) -> Sums:
    """Return the sums of guesses over a whole vocabulary, by the scores of `tied_logits`, for any number of rows."""
    weight_VD, bias_V = padded_columns(x_MD, embedding_VD, bias_V)
    weights_M = weights_M.float()  # FSDP2 hands them over in half precision, in which nothing large is counted
    if torch.is_grad_enabled():
        return Sums(*_Guesses.apply(x_MD, weight_VD, bias_V, ids_M, weights_M))  # type: ignore[no-untyped-call]
    parts = rows_at_once(len(weight_VD), x_MD, ids_M, weights_M)
    return total_of(sums_of(F.linear(x_PD, weight_VD, bias_V), ids_P, weights_P) for x_PD, ids_P, weights_P in parts)


class _Guesses(torch.autograd.Function):
    """Guesses whose gradient is made together with their loss, so that no score is needed twice.

    What follows the loss only multiplies it by a number, and the backward pass multiplies the gradient by the same.
    """

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, ids_M: Tensor, weights_M: Tensor
    ) -> Any:
        grads_MD, grad_VD, grad_V = [], torch.zeros_like(weight_VD, dtype=torch.float32), None
        if bias_V is not None:
            grad_V = torch.zeros_like(bias_V, dtype=torch.float32)
        found = []
        for x_PD, ids_P, weights_P in rows_at_once(len(weight_VD), x_MD, ids_M, weights_M):
            scores_PV = F.linear(x_PD, weight_VD, bias_V).float()
            best_P = scores_PV.amax(1)
            chosen_P = scores_PV.gather(1, ids_P[:, None]).squeeze(1)
            shares_PV = scores_PV.sub_(best_P[:, None]).exp_()
            total_P = shares_PV.sum(1)
            losses_P = total_P.log() + best_P - chosen_P
            found.append(Sums((losses_P * weights_P).sum(), ((chosen_P >= best_P) * weights_P).sum(), weights_P.sum()))
            is_right_PV = torch.arange(len(weight_VD), device=ids_P.device) == ids_P[:, None]
            grad_PV = shares_PV.div_(total_P[:, None]).sub_(is_right_PV.float()).mul_(weights_P[:, None]).to(x_PD.dtype)
            grads_MD.append(grad_PV @ weight_VD)
            grad_VD += grad_PV.t() @ x_PD
            if grad_V is not None:
                grad_V += grad_PV.sum(0, dtype=torch.float32)
        ctx.save_for_backward(torch.cat(grads_MD), grad_VD, grad_V)
        sums = total_of(found)
        ctx.mark_non_differentiable(sums.correct, sums.total)
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, factor: Tensor, *_: Tensor) -> Any:
        grad_MD, grad_VD, grad_V = ctx.saved_tensors
        bias = None if grad_V is None else (grad_V * factor).to(grad_MD.dtype)
        return grad_MD * factor.to(grad_MD.dtype), (grad_VD * factor).to(grad_MD.dtype), bias, None, None


def rows_at_once(num_scores: int, *per_row: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cut columns into parts of as many rows as memory should hold the scores of."""
    num_rows = 1 << (_SCORES_AT_ONCE // num_scores).bit_length() - 1
    return zip(*(torch.split(column, num_rows) for column in per_row), strict=True)


# The network.


class Encoded(NamedTuple):
    """The output of the encoder; the lists are empty unless requested."""

    hidden_TD: Tensor
    all_hidden: list[Tensor]  # embeddings and every layer, [T, D] each
    attentions: list[list[Tensor]]  # for every layer and sequence, [N, L, L]


class Engine(Protocol):
    """Another way to compute the encoder: faster on one kind of processor, or in another runtime."""

    def __call__(self, tokens: Tokens, places_S: Tensor | None = None) -> Tensor:
        """Return the last layer's output, [T, D], or only its rows `places_S`, [S, D]: one token of each sequence."""

    def all_hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return the output of the embeddings and of every layer, [T, D] each."""


class Bert(nn.Module):
    """The encoder and its heads.

    Args:
        config: the sizes.
        heads: which heads to have and how many outputs each has, see `make_head`.
        pooler: whether to have the layer over [CLS] that is trained with NSP; heads that read it bring it along.

    Attributes:
        engine: computes the encoder instead of the blocks, for inference; None: the blocks do.
    """

    engine: Engine | None = None

    def __init__(self, config: BertConfig, heads: dict[str, int] | None = None, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.num_hidden_layers))
        self.heads: nn.ModuleDict = nn.ModuleDict(
            {name: make_head(name, config, num_outputs) for name, num_outputs in (heads or {}).items()}
        )
        needs_pooler = pooler or any(head.reads_pooled for head in self.all_heads())
        self.pooler = Linear(config.hidden_size, config.hidden_size) if needs_pooler else None

    def all_heads(self) -> Iterable[Head]:
        """Return the heads."""
        return self.heads.values()  # type: ignore[return-value]

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the last layer's output, [T, D]."""
        if self.engine is not None:
            return self.engine(tokens)
        x_TD, packing = self.begin(tokens)
        for block in cast(Iterable[Block], self.blocks):
            x_TD = call_block(block, x_TD, packing, block.own_seed(tokens.dropout_seed))
        return packing.leave(x_TD)

    def encode(
        self, tokens: Tokens, *, hidden: bool = False, attentions: bool = False, depth: int | None = None
    ) -> Encoded:
        """Return the last layer's output and, if requested, every layer's and the attention weights.

        With `depth` the layers end there, and what is above is not computed.
        """
        if self.engine is not None and hidden and not attentions:
            states = self.engine.all_hidden(tokens)[: None if depth is None else depth + 1]
            return Encoded(states[-1], states, [])
        x_TD, packing = self.begin(tokens)
        all_hidden = [packing.leave(x_TD)] if hidden else []
        all_attentions = []
        for block in cast(Iterable[Block], self.blocks[:depth]):
            if attentions:
                heads_T3NH = packing.leave(block.project(x_TD))
                starts = tokens.packing.cumulative_lengths.tolist()
                all_attentions.append(attention_weights(heads_T3NH, starts, self.config.direction))
            x_TD = call_block(block, x_TD, packing, block.own_seed(tokens.dropout_seed))
            if hidden:
                all_hidden.append(packing.leave(x_TD))
        return Encoded(packing.leave(x_TD), all_hidden, all_attentions)

    def begin(self, tokens: Tokens) -> tuple[Tensor, Packing]:
        """Return the embeddings' output in the order that attention wants, and the packing in that order."""
        packing = tokens.packing
        if self.config.direction == "right_to_left":
            packing = packing.backwards(len(tokens.token_ids))
        # In training the embeddings stay in fp32, whose rows gather gradients from thousands of tokens.
        x_TD = self.embeddings(tokens)
        if self.blocks:
            x_TD = x_TD.to(cast(Block, self.blocks[0]).norm.weight.dtype)
        return packing.enter(x_TD), packing

    def pooled(self, hidden_TD: Tensor, packing: Packing, num_sequences: int | None = None) -> Tensor:
        """Return the pooled output of all sequences, or of so many, [S, D]: a token through a dense layer and tanh."""
        # An empty sequence after the last token has no [CLS]; whatever row it gets, its weight is 0.
        places_S = self._summary_places(packing)[:num_sequences].clamp(min=0, max=len(hidden_TD) - 1)
        return self._pool(hidden_TD.index_select(0, places_S))

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return the pooled output of every sequence, [S, D], of the tokens themselves; none may be empty."""
        return self._pool(self.summary_of(tokens))

    def summary_of(self, tokens: Tokens) -> Tensor:
        """Return the last layer's output at the token that the pooler reads of each sequence, [S, D]; none is empty."""
        if not self._summary_sees_all():
            return self(tokens).index_select(0, self._summary_places(tokens.packing))
        if self.engine is not None:
            return self.engine(tokens, self._summary_places(tokens.packing))
        x_TD, packing = self.begin(tokens)
        return rows_of_blocks(self.blocks, x_TD, packing, tokens.dropout_seed, self._summary_places(tokens.packing))

    def _summary_places(self, packing: Packing) -> Tensor:
        """Return where each sequence has the token that the pooler reads."""
        if self.config.summary == "last":
            return packing.cumulative_lengths[1:] - 1
        return packing.cumulative_lengths[:-1]

    def _summary_sees_all(self) -> bool:
        config = self.config
        return config.direction == "both" or (config.direction == "left_to_right") == (config.summary == "last")

    def _pool(self, summary_SD: Tensor) -> Tensor:
        assert self.pooler is not None, "this model has no pooler"
        return torch.tanh(self.pooler(summary_SD))

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return what the weights of its layers are called, from the embeddings up, for each encoder there is: one."""
        return [[("embeddings.",), *((f"blocks.{number}.",) for number in range(len(self.blocks)))]]

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head with a few outputs makes of rows of width D."""
        return cast(OutputHead, self.heads[head])(rows)

    def lm_sums(self, hidden_TD: Tensor, tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the sums of guesses of the next token, or the previous one, by a model that reads in one direction.

        Args:
            hidden_TD: the last layer's output.
            tokens: what it was made of.
            weights_T: 0 at tokens that fill up a batch.
        """
        assert self.config.direction != "both", "a model that sees a token need not guess it"
        neighbours = next_tokens if self.config.direction == "left_to_right" else previous_tokens
        return self.heads["mlm"](hidden_TD, self.embeddings.token.weight, *neighbours(tokens, weights_T))
