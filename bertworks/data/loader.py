"""Batches for training, made from shards while they are loaded: reproducible, endless, and resumable at any batch.

- A shard is a block. Each epoch has its own random order of blocks. When a block begins, its instances are planned and
  shuffled; then they fill, in that order, batches of a fixed shape.
- All random numbers are hashes of (seed, epoch, document, position), so the state is three numbers: epoch, block,
  offset. Nothing has to be replayed to resume from a state.
- The sequence of batches is the same for any number of ranks: each rank makes all plans, and fills its own
  micro-batches.
- BERT's instances are [CLS] A [SEP] B [SEP], ELMo's `<S>` words `</S>`; GPT-1 reads running text and knows no special
  tokens before fine-tuning, so a span fills all of `max_length`.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.config import OBJECTIVES, DataSettings
from bertworks.data import kernel
from bertworks.data.shards import Dataset
from bertworks.errors import CorruptFile, UserError
from bertworks.text.elmo_words import BEGIN, END
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.vocabulary import CLS, CONTINUATION, MASK, PAD, SEP

NO_TOKEN = -1


class Special(NamedTuple):
    """The ids of special tokens in instances; NO_TOKEN if a kind of tokens does not have one."""

    cls: int
    sep: int
    mask: int
    pad: int  # fills up a batch after its instances; any id will do


def check_objective(objective: str, kind: str) -> None:
    """Refuse an objective that is not possible with a kind of tokens."""
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


NewArray = Callable[[int, type[np.generic]], NDArray[Any]]  # (length, type) -> an array of any content

_ORDER = -1  # the part of an epoch's key for shuffling; the other parts are its documents, from 0

_MEAN_LENGTH_WITH_ROOM = 32  # if sequences are shorter than this on average, micro-batches are not filled


class State(NamedTuple):
    """The position in the data: the next instance. Plain numbers, to be saved as JSON."""

    epoch: int = 0
    block: int = 0  # in the epoch's order
    offset: int = 0  # in the block's order


class Shape(NamedTuple):
    """The fixed sizes of a micro-batch; a global batch has `slices` of them, which the ranks share."""

    tokens: int
    sequences: int
    masked: int
    slices: int = 1


class Packed(NamedTuple):
    """The arrays of a micro-batch of fixed shape; the unused rest is padding with weight 0."""

    token_ids: NDArray[np.int32]  # [T]
    segment_ids: NDArray[np.int32]  # [T]
    position_ids: NDArray[np.int32]  # [T]
    # [S + 1 + tail pieces]: the start of each sequence. Unused sequences are empty; entry S is the end of the real
    # tokens; the padding after it is cut into sequences that are not longer than a real one.
    cumulative_lengths: NDArray[np.int32]
    masked_positions: NDArray[np.int32]  # [M], into the tokens
    masked_ids: NDArray[np.int32]  # [M]: the original ids there
    masked_weights: NDArray[np.float32]  # [M]
    next_labels: NDArray[np.int32]  # [S]: 0 = B follows A, 1 = B is random
    next_weights: NDArray[np.float32]  # [S]


class Masking(NamedTuple):
    """How tokens are chosen and what they become; those that become neither [MASK] nor random stay the same."""

    rate: float
    mask_share: float
    random_share: float
    whole_word: bool
    max_predictions: int
    vocab_size: int


Block = tuple[int, NDArray[np.int64], NDArray[np.int64]]  # the number of its shard, its plan, the order of its rows


class Loader:
    """Yields the batches of a split for one rank, starting from any state.

    Args:
        dataset: prepared data.
        settings: how instances are made.
        shape: the sizes of a micro-batch, see `shape_for`.
        seed: the seed of all random choices.
        split: `train` or `holdout`.
        rank: the rank whose share of every global batch is yielded.
        world_size: the number of ranks; it must divide the number of micro-batches.
    """

    def __init__(
        self,
        dataset: Dataset,
        settings: DataSettings,
        shape: Shape,
        *,
        seed: int = 0,
        split: str = "train",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if shape.slices % world_size:
            raise UserError(
                f"{world_size} ranks cannot share {shape.slices} micro-batches of a batch; choose a divisor"
            )
        self._dataset, self._settings, self._shape, self._seed = dataset, settings, shape, seed
        self._split, self._rank, self._world_size = split, rank, world_size
        self._own_slices = range(rank, shape.slices, world_size)
        self._shards = dataset.shards(split)
        self._document_ends = np.cumsum([shard.num_documents for shard in self._shards])
        self._has_pairs = settings.objective == "mlm+nsp"
        check_objective(settings.objective, dataset.tokenizer.kind)
        self._special = special_ids(dataset.tokenizer)
        self._num_special = 0 if self._special.cls == NO_TOKEN else 3 if self._has_pairs else 2
        if self._has_pairs and self._document_ends[-1] < 2:
            what = " held out; prepare it with another --holdout, or" if split == "holdout" else ";"
            raise UserError(
                f"a random next sentence needs two documents, and the data has one{what} set data.objective=mlm"
            )
        self._continues = np.array([piece.startswith(CONTINUATION) for piece in dataset.tokenizer.pieces])
        self._masking = Masking(
            rate=settings.mask_rate if settings.objective.startswith("mlm") else 0.0,
            mask_share=settings.mask_share,
            random_share=settings.random_share,
            whole_word=settings.whole_word,
            max_predictions=settings.max_predictions or settings.max_length,
            vocab_size=dataset.vocab_size,
        )
        self._tokens, self._sentences, self._documents = map(kernel.list_of, list(zip(*self._shards, strict=True))[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process receives the arguments and makes its own loader: maps and compiled lists are opened again
        # there.
        make = partial(Loader, seed=self._seed, split=self._split, rank=self._rank, world_size=self._world_size)
        return make, (self._dataset, self._settings, self._shape)

    @property
    def num_slices(self) -> int:
        """The number of this rank's micro-batches of every global batch."""
        return len(self._own_slices)

    def new_slice(self, new_array: NewArray = np.empty) -> Packed:
        """Return arrays for a micro-batch, with any content."""
        shape = self._shape
        num_tails = -(-shape.tokens // self._settings.max_length)
        return Packed(
            token_ids=new_array(shape.tokens, np.int32),
            segment_ids=new_array(shape.tokens, np.int32),
            position_ids=new_array(shape.tokens, np.int32),
            cumulative_lengths=new_array(shape.sequences + 1 + num_tails, np.int32),
            masked_positions=new_array(shape.masked, np.int32),
            masked_ids=new_array(shape.masked, np.int32),
            masked_weights=new_array(shape.masked, np.float32),
            next_labels=new_array(shape.sequences, np.int32),
            next_weights=new_array(shape.sequences, np.float32),
        )

    def batches(
        self,
        state: State | None = None,
        *,
        first: int = 0,
        step: int = 1,
        new_slice: Callable[[], Packed] | None = None,
    ) -> Iterator[tuple[list[Packed], State]]:
        """Yield (the rank's micro-batches of the next global batch, the state after it), without end.

        Args:
            state: where to resume; the start if not given.
            first: the number, counted from the state, of the first batch to fill; earlier ones are only planned.
            step: fill only every `step`-th batch from there.
            new_slice: a function that returns arrays to fill; new arrays if not given.
        """
        state = state or State()
        if min(state) < 0 or state.block >= len(self._shards):
            raise UserError(
                f"{state} does not belong to this data, which has {len(self._shards)} blocks; start without it"
            )
        block = None
        for number in itertools.count(-first):
            is_wanted = number >= 0 and number % step == 0
            slices = []
            try:
                for index in range(self._shape.slices):
                    block, state, rows = self._next_rows(block, state)
                    if is_wanted and index in self._own_slices:
                        shard, plan, _ = block
                        slices.append((new_slice or self.new_slice)())
                        kernel.fill_batch(
                            plan, rows, self._shards[shard].tokens, self._tokens, self._special, self._masking,
                            self._continues, self._has_pairs, slices[-1],
                        )  # fmt: skip
            except IndexError as error:
                # The shard from which a random B was taken may not have been checked yet.
                for each in self._shards:
                    self._dataset.check(each)
                raise CorruptFile(f"{self._dataset.folder}: offsets that do not fit the tokens") from error
            if is_wanted:
                yield slices, state

    def _next_rows(self, block: Block | None, state: State) -> tuple[Block, State, NDArray[np.int64]]:
        """Return the rows of the next micro-batch, which never crosses the end of a block."""
        if block is None:
            block = self._enter(state)
        while state.offset >= len(block[2]):
            next_block = state.block + 1
            at_end = next_block >= len(self._shards)
            state = State(state.epoch + at_end, 0 if at_end else next_block, 0)
            block = self._enter(state)
        _, plan, order = block
        count = kernel.count_fitting(
            plan, order, state.offset, self._num_special, self._shape.sequences, self._shape.tokens,
            self._shape.masked, self._masking.rate, self._masking.max_predictions,
        )  # fmt: skip
        assert count > 0, "a micro-batch holds at least one instance"
        rows = order[state.offset : state.offset + count]
        return block, State(state.epoch, state.block, state.offset + count), rows

    def _enter(self, state: State) -> Block:
        """Plan and shuffle the instances of a block."""
        order_key = kernel.derive_key(kernel.derive_key(self._seed, state.epoch), _ORDER)
        number = int(np.argsort(kernel.order_keys(order_key, len(self._shards)), kind="stable")[state.block])
        shard, settings = self._shards[number], self._settings
        self._dataset.check(shard)
        repeated = state.epoch % settings.dupe_factor if settings.dupe_factor else state.epoch
        key = kernel.derive_key(self._seed, repeated)
        most = settings.max_length - self._num_special
        if self._has_pairs:
            plan = kernel.plan_pairs(
                number, self._sentences, self._documents, self._document_ends, key, most, settings.short_seq_prob
            )
        else:
            first_document = int(self._document_ends[number - 1]) if number else 0
            plan = kernel.plan_spans(number, shard.sentences, shard.documents, first_document, key, most)
        keys = kernel.order_keys(kernel.derive_key(order_key, number), len(plan))
        return number, plan, np.argsort(keys, kind="stable")


def shape_for(
    settings: DataSettings, *, tokens: int | None = None, sequences: int | None = None, slices: int = 1
) -> Shape:
    """Return the shape of micro-batches with a number of tokens or of sequences; give exactly one of the two.

    A micro-batch of `tokens` has room for as many sequences and masks as ordinary text can need; only if texts are tiny
    do these limits end a micro-batch before its tokens are full. Room for a sequence costs almost nothing; room for a
    mask costs a row of the vocabulary's size. A micro-batch of `sequences` has room for that many of the longest
    length.
    """
    if (tokens is None) == (sequences is None):
        raise UserError(
            f"tokens={tokens} and sequences={sequences}: give exactly one of them as the size of a micro-batch"
        )
    is_masked = settings.objective.startswith("mlm")
    if sequences is not None:
        if sequences < 1:
            raise UserError(f"a micro-batch of {sequences} sequences is empty; choose 1 or more")
        most = min(
            settings.max_predictions or settings.max_length, max(1, round(settings.max_length * settings.mask_rate))
        )
        return Shape(sequences * settings.max_length, sequences, sequences * most * is_masked, slices)
    assert tokens is not None
    if tokens < settings.max_length:
        raise UserError(f"a micro-batch of {tokens} tokens holds no sequence of max_length {settings.max_length}")
    sequences = tokens // min(_MEAN_LENGTH_WITH_ROOM, settings.max_length // 2)
    masked = int(np.ceil(tokens * settings.mask_rate)) + tokens // (2 * settings.max_length) + 1 if is_masked else 0
    return Shape(tokens, sequences, masked, slices)
