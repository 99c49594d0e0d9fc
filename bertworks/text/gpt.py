"""`GptTokenizer`: the pieces of GPT-1, byte-pair encoding of words whose last letter carries the mark `</w>`.

Words come from BERT's rules (GPT-1 took spaCy's, which need a model of their own). A word starts as its letters; the
pair of neighbours that was learned first is joined, the leftmost where it stands several times, until no pair is left
that was learned. A letter that is not in the vocabulary is an `<unk>`; so is a whole word of over 200 letters, which
keeps the time linear. Nothing is put around a text: the three special pieces at the end of the vocabulary are for
fine-tuning, and cannot be written in a text.
"""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, make_folder, usable_path
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.tokenizer import NO_WORD, Encoding, Encodings, IdsByWords, ListColumns, check_text, columns_by_words
from bertworks.text.tokenizer_files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    normalizer,
    pieces_by_id,
    read_object,
    read_settings,
    rules_config,
    special_token,
)
from bertworks.text.vocabulary import CLS, SEP, check_pieces
from bertworks.text.wordpiece import MAX_WORD_LENGTH, Match, join_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


UNK, START, DELIMITER, CLASSIFY = "<unk>", "_start_", "_delimiter_", "_classify_"
FINE_TUNING_TOKENS = (START, DELIMITER, CLASSIFY)
END_OF_WORD = "</w>"
_NEVER = -1  # the rank of a pair that was not learned
_PLACE_BITS = 8  # hold any place in a word of 200 letters
_PLACE = (1 << _PLACE_BITS) - 1
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
        """Join pairs, best first: in a heap by rank and place; a pair that is there no longer is passed over."""
        rank_of, wholes = self._ranks.get, self._wholes
        ids = [self._ids.get(letter, self._unk_id) for letter in letters_of(word)]
        ends, befores = list(range(1, len(ids) + 1)), list(range(-1, len(ids)))
        ranks = [*(rank_of(pair, _NEVER) for pair in pairwise(ids)), _NEVER]  # of the pair that begins at a place
        waiting = [rank << _PLACE_BITS | place for place, rank in enumerate(ranks) if rank != _NEVER]
        heapify(waiting)
        while waiting:
            best = heappop(waiting)
            rank, place = best >> _PLACE_BITS, best & _PLACE
            if ranks[place] != rank:
                continue
            joined = ends[place]
            ids[place], ends[place] = wholes[rank], ends[joined]
            ranks[place] = ranks[joined] = _NEVER
            befores[ends[place]] = place
            for left, right in ((befores[place], place), (place, ends[place])):
                if left >= 0 and right < len(ids):
                    rank = ranks[left] = rank_of((ids[left], ids[right]), _NEVER)
                    if rank != _NEVER:
                        heappush(waiting, rank << _PLACE_BITS | left)
        return _matches(ids, ends)


def _matches(ids: list[int], ends: list[int]) -> list[Match]:
    matches, place = [], 0
    while place < len(ids):
        matches.append((ids[place], place, ends[place]))
        place = ends[place]
    return matches


class GptTokenizer:
    """Splits text into the pieces of a vocabulary that was learned with `vocab --algorithm gpt-bpe`."""

    kind: Literal["gpt-bpe"] = "gpt-bpe"

    def __init__(self, pieces: Sequence[str], merges: Merges, rules: Rules | None = None) -> None:
        """Make a tokenizer from pieces in the order of their ids and merges in the order of learning."""
        self.pieces, self.merges, self.rules = list(pieces), list(merges), rules or Rules()
        check_pieces(self.pieces, "the vocabulary", unknown=UNK)
        self._ids = {piece: id for id, piece in enumerate(self.pieces) if piece}
        _check_merges(self.merges, self._ids)
        self._alphabet = Alphabet(self.rules)
        self._pairs = BytePairs(self._ids, self.merges)
        self._bulk = IdsByWords(self._pairs.split, self.rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "GptTokenizer":
        """Open what `save` wrote, or the tokenizer files of any `openai-gpt` folder in Hugging Face's form."""
        return cls(*read_gpt_files(usable_path(folder)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json, which transformers opens."""
        write_gpt_files(Path(folder), self.pieces, self.merges, self.rules)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={value}" for name, value in self.rules._asdict().items())
        return f"GptTokenizer({len(self):,} pieces, {rules})"

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary, such as "_start_"."""
        if piece not in self._ids:
            raise UserError(f"the vocabulary has no {piece!r}")
        return self._ids[piece]

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text as strings."""
        return self.encode(text).tokens

    def encode(self, text: str) -> Encoding:
        """Encode a text; nothing is added to it."""
        check_text(text)
        columns = columns_by_words(text, self._alphabet, self._pairs.split)
        return Encoding(columns, 0, len(columns.ids), self.pieces)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts end to end, and how many each has: the ids of `encode`, faster."""
        return self._bulk.ids_of(texts)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids: pieces joined to words, and words set as in English and Korean print.

        The pieces for fine-tuning are left out unless `keep_special`; `<unk>` stands for text and stays.
        """
        words = [""]
        for piece in map(self._piece, ids):
            if piece == UNK or piece in FINE_TUNING_TOKENS:
                if piece == UNK or keep_special:
                    words += [piece, ""]
            elif piece.endswith(END_OF_WORD):
                words[-1] += piece.removesuffix(END_OF_WORD)
                words.append("")
            else:
                words[-1] += piece
        return join_tokens(words)

    def _piece(self, id: int) -> str:
        if not 0 <= id < len(self.pieces):
            raise UserError(f"id {id} is not in the vocabulary of {len(self.pieces)} pieces")
        return self.pieces[id]


def _check_merges(merges: Merges, ids: Mapping[str, int]) -> None:
    seen = set()
    for number, (left, right) in enumerate(merges, start=1):
        for piece in (left, right, left + right):
            if piece not in ids:
                raise UserError(f"merge {number}, {left!r} and {right!r}: {piece!r} is not in the vocabulary")
        if (left, right) in seen:
            raise UserError(f"merge {number}, {left!r} and {right!r}: it stands earlier already; remove one")
        seen.add((left, right))


# The files of a GPT-1 tokenizer, in the form that transformers and the tokenizers library open as `openai-gpt`.
#
# vocab.json has the pieces with their ids, merges.txt the pairs in the order of learning, tokenizer.json both and
# the rules for words. What those libraries do otherwise is what they do otherwise with BERT's rules
# (`tokenizer_files.py`); besides, they split words of over 200 letters. transformers' class for GPT-1 knows the
# uncased rules only, so a folder with other rules names its general class, which follows tokenizer.json.


PIECES_FILE, MERGES_FILE = "vocab.json", "merges.txt"
_HEADER = "#version: 0.2"


def write_gpt_files(folder: Path, pieces: Sequence[str], merges: Merges, rules: Rules) -> None:
    """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json; the same pieces give the same bytes."""
    make_folder(folder)
    ids = {piece: id for id, piece in enumerate(pieces) if piece}
    contents = {PIECES_FILE: ids, TOKENIZER_FILE: _pipeline(ids, merges, rules), CONFIG_FILE: _config(rules)}
    for name, content in contents.items():
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1)
    with atomic_write(folder / MERGES_FILE) as stream:
        stream.writelines(f"{line}\n" for line in (_HEADER, *map(" ".join, merges)))


def read_gpt_files(folder: Path) -> tuple[list[str], list[tuple[str, str]], Rules]:
    """Return pieces, merges and rules; from tokenizer.json where that is all (as transformers 5 writes it)."""
    settings = read_settings(folder)
    if settings["strip_accents"] is None:
        settings["strip_accents"] = settings["lowercase"]
    if (folder / PIECES_FILE).exists() or not (folder / TOKENIZER_FILE).exists():
        path = folder / PIECES_FILE
        return pieces_by_id(read_object(path), path), _read_merges(folder / MERGES_FILE), Rules(**settings)
    path = folder / TOKENIZER_FILE
    model = read_object(path).get("model")
    if not isinstance(model, dict) or model.get("end_of_word_suffix") != END_OF_WORD:
        raise UserError(f"{path} holds no pieces of GPT-1, whose words end in {END_OF_WORD}")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise UserError(f"{path} holds no merges")
    return pieces_by_id(model.get("vocab"), path), [_pair(merge, path) for merge in merges], Rules(**settings)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return [_pair(line, path) for line in lines if line and not line.startswith("#version")]


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    halves = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(halves, list) or [type(half) for half in halves] != [str, str]:
        raise UserError(f"{path}: {str(merge)[:60]!r} is no merge; one is two pieces with a space between them")
    return halves[0], halves[1]


def _config(rules: Rules) -> dict[str, Any]:
    name = "OpenAIGPTTokenizer" if rules == Rules() else "PreTrainedTokenizerFast"
    return {"tokenizer_class": name, **rules_config(rules), "unk_token": UNK}


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


# Texts and pairs of texts as GPT-1 is fine-tuned on them: `_start_` a `_delimiter_` b `_classify_`.
#
# To a task it looks like BERT's tokenizer: what a task calls [CLS] is the start and what it calls [SEP] the
# delimiter. The three pieces are at the end of the vocabulary; where it does not have them, `with_special_pieces`
# puts them there. Of a pair that is too long, and of which both texts are long, both keep as much: so a pair is cut
# alike in either order.


_NAMES = {CLS: START, SEP: DELIMITER}


def with_special_pieces(tokenizer: GptTokenizer) -> GptTokenizer:
    """Return a tokenizer whose vocabulary has the pieces that fine-tuning needs, those that were missing at its end."""
    missing = [piece for piece in FINE_TUNING_TOKENS if piece not in tokenizer.pieces]
    if not missing:
        return tokenizer
    return GptTokenizer([*tokenizer.pieces, *missing], tokenizer.merges, tokenizer.rules)


class GptInputs:
    """Makes the inputs of a task for GPT-1.

    Args:
        tokenizer: with the three special pieces.
    """

    def __init__(self, tokenizer: GptTokenizer) -> None:
        self.tokenizer, self.pieces = tokenizer, tokenizer.pieces
        self._start, self._delimiter, self._end = (tokenizer.id_of(piece) for piece in FINE_TUNING_TOKENS)
        assert (START, DELIMITER, CLASSIFY) == FINE_TUNING_TOKENS

    def __len__(self) -> int:
        return len(self.tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save(folder)

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
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"{counted(len(texts), 'text')} but {counted(len(pairs), 'pair')}; give one for each")
        columns, bounds = ListColumns([], [], [], [], []), [0]
        for text, pair in zip(texts, pairs or itertools.repeat(None, len(texts)), strict=True):
            self._add(columns, text, pair, None if max_length is None else max_length - smallest)
            bounds.append(len(columns.ids))
        encodings = Encodings(self.pieces)
        encodings.add(columns, bounds)
        return encodings

    def _add(self, columns: ListColumns, text: str, pair: str | None, room: int | None) -> None:
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        total = len(first) + len(second or ())
        kept = _kept(len(first), len(second or ()), total if room is None else room)
        _special(columns, self._start, 0)
        _extend(columns, first.cut(kept[0]), 0)
        if second is not None:
            _special(columns, self._delimiter, 0)
            _extend(columns, second.cut(kept[1]), 1)
        _special(columns, self._end, 0 if second is None else 1)


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many pieces of each text stay; of an odd room for two long texts one place stays empty."""
    if first + second <= room:
        return first, second
    half = room // 2
    if min(first, second) > half:
        return half, half
    return (first, room - first) if first < second else (room - second, second)


def _special(columns: ListColumns, id: int, segment_id: int) -> None:
    for column, value in zip(columns, (id, segment_id, 0, 0, NO_WORD), strict=True):
        column.append(value)


def _extend(columns: ListColumns, encoding: Encoding, segment_id: int) -> None:
    columns.ids.extend(encoding.ids)
    columns.segment_ids.extend([segment_id] * len(encoding))
    for start, end in encoding.offsets:
        columns.starts.append(start)
        columns.ends.append(end)
    columns.word_ids.extend(NO_WORD if word is None else word for word in encoding.word_ids)
