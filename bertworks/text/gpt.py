"""The pieces of GPT-1: byte-pair encoding of words whose last letter carries the mark `</w>`.

- Words are split by BERT's rules (GPT-1 used spaCy's, which need a trained model). A word starts as its letters. The
  neighbouring pair that was learned first is joined (the leftmost, if it occurs several times), again and again until
  no learned pair is left. A letter that is not in the vocabulary is an `<unk>`; so is a word of over 200 letters, which
  keeps the time linear.
- `GptTokenizer` adds no special pieces to a text. The three special pieces at the end of the vocabulary are for
  fine-tuning: `GptInputs` adds them to the texts of a task. Typed in a text, they are plain text.
- transformers and the tokenizers library open the files as `openai-gpt`: vocab.json has the pieces with their ids,
  merges.txt the pairs in the order of learning, tokenizer.json both, and the rules for words. Those libraries deviate
  from BERT's rules as described in `vocabulary.py`, and they split words of over 200 letters. transformers' class for
  GPT-1 knows only the uncased rules, so a folder with other rules names its general class, which follows
  tokenizer.json.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertworks.errors import UserError
from bertworks.files import atomic_write, make_folder, usable_path
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import BaseTokenizer, Encoding, Encodings, check_text, check_texts, joined_columns
from bertworks.text.vocabulary import (
    CLS,
    CONFIG_FILE,
    MAX_WORD_LENGTH,
    SEP,
    TOKENIZER_FILE,
    Match,
    join_tokens,
    length_config,
    normalizer,
    pieces_by_id,
    read_object,
    read_rules,
    rules_config,
    special_token,
    write_objects,
)

if TYPE_CHECKING:
    pass


UNK, START, DELIMITER, CLASSIFY = "<unk>", "_start_", "_delimiter_", "_classify_"
FINE_TUNING_TOKENS = (START, DELIMITER, CLASSIFY)
END_OF_WORD = "</w>"
_NEVER = -1  # the rank of a pair that was not learned
_POSITION_BITS = 8  # enough for any position in a word of 200 letters
_POSITION = (1 << _POSITION_BITS) - 1
Merges = Sequence[tuple[str, str]]


def letters_of(word: str) -> list[str]:
    """Return a word as the pieces to start from."""
    return [*word[:-1], word[-1] + END_OF_WORD]


class BytePairs:
    """Joins the letters of words by learned pairs, and remembers the words it joined last."""

    _MAX_REMEMBERED = 200_000

    def __init__(self, ids: Mapping[str, int], merges: Merges) -> None:
        self._ids, self._unk_id = ids, ids[UNK]
        self._ranks = {(ids[left], ids[right]): rank for rank, (left, right) in enumerate(merges)}
        self._wholes = [ids[left + right] for left, right in merges]
        self._remembered: dict[str, list[Match]] = {}

    def split(self, word: str) -> list[Match]:
        """Return the pieces of one normalised word."""
        matches = self._remembered.get(word)
        if matches is None:
            if len(word) > MAX_WORD_LENGTH:
                return [(self._unk_id, 0, len(word))]
            if len(self._remembered) >= self._MAX_REMEMBERED:
                self._remembered.clear()
            matches = self._remembered[word] = self._join(word)
        return matches

    def _join(self, word: str) -> list[Match]:
        """Join pairs, best first, with a heap ordered by rank and position; pairs that no longer exist are skipped."""
        rank_of, wholes = self._ranks.get, self._wholes
        ids = [self._ids.get(letter, self._unk_id) for letter in letters_of(word)]
        ends, befores = list(range(1, len(ids) + 1)), list(range(-1, len(ids)))
        ranks = [*(rank_of(pair, _NEVER) for pair in pairwise(ids)), _NEVER]  # of the pair that begins at a position
        waiting = [rank << _POSITION_BITS | position for position, rank in enumerate(ranks) if rank != _NEVER]
        heapify(waiting)
        while waiting:
            best = heappop(waiting)
            rank, position = best >> _POSITION_BITS, best & _POSITION
            if ranks[position] != rank:
                continue
            joined = ends[position]
            ids[position], ends[position] = wholes[rank], ends[joined]
            ranks[position] = ranks[joined] = _NEVER
            befores[ends[position]] = position
            for left, right in ((befores[position], position), (position, ends[position])):
                if left >= 0 and right < len(ids):
                    rank = ranks[left] = rank_of((ids[left], ids[right]), _NEVER)
                    if rank != _NEVER:
                        heappush(waiting, rank << _POSITION_BITS | left)
        matches, position = [], 0
        while position < len(ids):
            matches.append((ids[position], position, ends[position]))
            position = ends[position]
        return matches


class GptTokenizer(BaseTokenizer):
    """Splits text into the pieces of a vocabulary that was learned with `vocab --algorithm gpt-bpe`."""

    kind: Literal["gpt-bpe"] = "gpt-bpe"

    def __init__(self, pieces: Sequence[str], merges: Merges, rules: Rules | None = None) -> None:
        """Make a tokenizer from pieces in the order of their ids and merges in the order of learning."""
        super().__init__(pieces, rules or Rules(), unknown=UNK)
        self.merges = list(merges)
        seen = set()
        for number, (left, right) in enumerate(self.merges, start=1):
            for piece in (left, right, left + right):
                if piece not in self._ids:
                    raise UserError(f"merge {number}, {left!r} and {right!r}: {piece!r} is not in the vocabulary")
            if (left, right) in seen:
                raise UserError(f"merge {number}, {left!r} and {right!r}: it is listed twice; remove one")
            seen.add((left, right))
        self._pairs = BytePairs(self._ids, self.merges)
        self.split = self._pairs.split

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "GptTokenizer":
        """Open what `save` wrote, or the tokenizer files of any `openai-gpt` folder in Hugging Face's form."""
        return cls(*read_gpt_files(usable_path(folder)))

    def save(self, folder: str | os.PathLike[str], *, max_length: int | None = None) -> None:
        """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json, which transformers opens."""
        write_gpt_files(Path(folder), self.pieces, self.merges, self.rules, max_length)

    def encode(self, text: str) -> Encoding:
        """Encode a text without special pieces."""
        check_text(text)
        columns = self.columns_of(text)
        return Encoding(columns, 0, len(columns.ids), self.pieces)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids: pieces joined to words, and words with English and Korean spacing.

        The pieces for fine-tuning are left out unless `keep_special`; `<unk>` stands for text and is kept.
        """
        words = [""]
        for piece in self.pieces_of(ids):
            if piece == UNK or piece in FINE_TUNING_TOKENS:
                if piece == UNK or keep_special:
                    words += [piece, ""]
            elif piece.endswith(END_OF_WORD):
                words[-1] += piece.removesuffix(END_OF_WORD)
                words.append("")
            else:
                words[-1] += piece
        return join_tokens(words)


PIECES_FILE, MERGES_FILE = "vocab.json", "merges.txt"
_HEADER = "#version: 0.2"


def write_gpt_files(
    folder: Path, pieces: Sequence[str], merges: Merges, rules: Rules, max_length: int | None = None
) -> None:
    """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json; the same pieces give the same bytes."""
    make_folder(folder)
    ids = {piece: id for id, piece in enumerate(pieces) if piece}
    name = "OpenAIGPTTokenizer" if rules == Rules() else "PreTrainedTokenizerFast"
    config = {"tokenizer_class": name, **rules_config(rules), "unk_token": UNK, **length_config(max_length)}
    write_objects(folder, {PIECES_FILE: ids, TOKENIZER_FILE: _pipeline(ids, merges, rules), CONFIG_FILE: config})
    with atomic_write(folder / MERGES_FILE) as stream:
        stream.writelines(f"{line}\n" for line in (_HEADER, *map(" ".join, merges)))


def read_gpt_files(folder: Path) -> tuple[list[str], list[tuple[str, str]], Rules]:
    """Return pieces, merges and rules; from tokenizer.json if it is the only file (as transformers 5 writes it)."""
    rules = read_rules(folder)
    if (folder / PIECES_FILE).exists() or not (folder / TOKENIZER_FILE).exists():
        path = folder / PIECES_FILE
        pieces, path = pieces_by_id(read_object(path), path), folder / MERGES_FILE
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
        return pieces, [_pair(line, path) for line in lines if line and not line.startswith("#version")], rules
    path = folder / TOKENIZER_FILE
    model = read_object(path).get("model")
    if not isinstance(model, dict) or model.get("end_of_word_suffix") != END_OF_WORD:
        raise UserError(f"{path} holds no pieces of GPT-1, whose words end in {END_OF_WORD}")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise UserError(f"{path} holds no merges")
    return pieces_by_id(model.get("vocab"), path), [_pair(merge, path) for merge in merges], rules


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    halves = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(halves, list) or [type(half) for half in halves] != [str, str]:
        raise UserError(f"{path}: {str(merge)[:60]!r} is not a merge: two pieces with a space between them")
    return halves[0], halves[1]


def _pipeline(ids: dict[str, int], merges: Merges, rules: Rules) -> dict[str, Any]:
    special = [token for token in (UNK, *FINE_TUNING_TOKENS) if token in ids]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special_token(token, ids[token]) for token in special],
        "normalizer": normalizer(rules),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNK,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": END_OF_WORD,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": [list(merge) for merge in merges],
        },
    }


_NAMES = {CLS: START, SEP: DELIMITER}


def with_special_pieces(tokenizer: GptTokenizer) -> GptTokenizer:
    """Return a tokenizer with the pieces that fine-tuning needs; missing ones are added at the end."""
    missing = [piece for piece in FINE_TUNING_TOKENS if piece not in tokenizer.pieces]
    if not missing:
        return tokenizer
    return GptTokenizer([*tokenizer.pieces, *missing], tokenizer.merges, tokenizer.rules)


class GptInputs:
    """Makes the inputs of a task for GPT-1: `_start_` a `_classify_`, or `_start_` a `_delimiter_` b `_classify_`.

    It has the interface of BERT's tokenizer: [CLS] means the start piece, and [SEP] the delimiter.

    Args:
        tokenizer: one with the three special pieces, see `with_special_pieces`.
    """

    def __init__(self, tokenizer: GptTokenizer) -> None:
        self.tokenizer, self.pieces, self.save = tokenizer, tokenizer.pieces, tokenizer.save
        self._start, self._delimiter, self._end = map(tokenizer.id_of, FINE_TUNING_TOKENS)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary; [CLS] and [SEP] are start and delimiter."""
        return self.tokenizer.id_of(_NAMES.get(piece, piece))

    def encode(self, text: str) -> Encoding:
        """Encode one text."""
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = None
    ) -> Encodings:
        """Encode texts, or pairs of them, in at most `max_length` tokens, the special ones included."""
        smallest = 2 if pairs is None else 3
        if max_length is not None and max_length < smallest:
            raise UserError(f"max_length={max_length} is too small: the special pieces alone take {smallest}")
        check_texts(texts, pairs)
        room = None if max_length is None else max_length - smallest

        def keep(first: int, second: int | None) -> tuple[int, int | None]:
            # Two long texts are cut to the same length, so that both orders of a pair are cut alike; if the room is
            # odd, one token of it stays unused.
            if room is None or first + (second or 0) <= room:
                return first, second
            if second is None:
                return room, None
            half = room // 2
            if min(first, second) > half:
                return half, half
            return (first, room - first) if first < second else (room - second, second)

        encodings, signs = Encodings(self.pieces), (self._start, self._delimiter, self._end)
        encodings.add(*joined_columns(texts, pairs, self.tokenizer.columns_of, signs, keep))
        return encodings
