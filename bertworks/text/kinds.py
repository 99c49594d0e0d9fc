"""The kinds of tokens that there are, one for each of the paper's systems: BERT's, GPT-1's and ELMo's.

A vocabulary says of which kind it is: `vocab.json` and `merges.txt` are GPT-1's, a list that begins with `<S>` is
ELMo's, and everything else is taken for BERT's.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.elmo_words import BEGIN, WordTokenizer
from bertworks.text.elmo_words import UNK as WORD_UNK
from bertworks.text.gpt import MERGES_FILE, PIECES_FILE, GptTokenizer
from bertworks.text.gpt import UNK as GPT_UNK
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE, read_object
from bertworks.text.vocabulary import UNK

Kind = Literal["wordpiece", "gpt-bpe", "words"]
AnyTokenizer = Tokenizer | GptTokenizer | WordTokenizer

CLASSES: dict[str, type[Tokenizer] | type[GptTokenizer] | type[WordTokenizer]] = {
    "wordpiece": Tokenizer,
    "gpt-bpe": GptTokenizer,
    "words": WordTokenizer,
}
TOKENIZER_FILES = (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE, PIECES_FILE, MERGES_FILE)


def kind_of(vocab: str | os.PathLike[str]) -> Kind:
    """Tell of which kind a vocabulary file, or a folder with tokenizer files, is."""
    path = Path(vocab)
    if path.is_dir():
        if (path / PIECES_FILE).exists() or _is_bpe(path):
            return "gpt-bpe"
        path = path / VOCABULARY_FILE
    return "words" if _begins_with(path, BEGIN) else "wordpiece"


def open_tokenizer(vocab: str | os.PathLike[str], rules: Rules, kind: str | None = None) -> AnyTokenizer:
    """Open a vocabulary file with the rules given, or a folder with its own; of another kind than asked: UserError."""
    if kind is not None and kind not in CLASSES:
        raise UserError(f"no tokens of kind {kind!r}; choose {', '.join(CLASSES)}")
    _check_there(usable_path(vocab))
    found = kind_of(vocab)
    if found != (kind or found):
        raise UserError(f"{vocab} is a vocabulary of {found}, not {kind}; say --tokens {found}, or give another one")
    if Path(vocab).is_dir():
        return CLASSES[found].from_folder(vocab)
    if found == "words":
        return WordTokenizer.from_vocab(vocab, rules)
    return Tokenizer.from_vocab(vocab, **rules._asdict())


def _check_there(path: Path) -> None:
    """Refuse what holds no vocabulary of any kind, before it is told to be of the wrong one."""
    if not path.exists():
        raise UserError(f"cannot read the vocabulary {path}: there is no such file or folder")
    names = (VOCABULARY_FILE, PIECES_FILE, TOKENIZER_FILE)
    if path.is_dir() and not any((path / name).exists() for name in names):
        raise UserError(f"cannot read the vocabulary {path}: the folder has none of {', '.join(names)}")


def _is_bpe(folder: Path) -> bool:
    path = folder / TOKENIZER_FILE
    if (folder / VOCABULARY_FILE).exists() or not path.exists():
        return False
    model = read_object(path).get("model")
    return isinstance(model, dict) and model.get("type") == "BPE"


def _begins_with(path: Path, line: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(line) + 2).split(b"\n")[0].strip() == line.encode()
    except (OSError, ValueError):
        return False  # whoever opens it tells what is wrong


# How much of a text a vocabulary does not know: who took the wrong one should hear of it before counting on it.


# What is much, of each vocabulary's name for the unknown. Of the text of `mini`, in the vocabulary that was made of
# it, 0.015 % are [UNK]; a list of words is never complete.
_MUCH = {UNK: 0.05, GPT_UNK: 0.05, WORD_UNK: 0.2}


class UnknownCount:
    """Counts the tokens that a vocabulary, given by its pieces, does not know."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._name = next((name for name in _MUCH if name in pieces), "")
        self._id = pieces.index(self._name) if self._name else -1
        self._unknown = self._total = 0

    def add(self, ids: NDArray[Any]) -> None:
        """Count some more."""
        self._unknown += int(np.count_nonzero(ids == self._id))
        self._total += len(ids)

    def said(self) -> str:
        """Say how many are unknown, if they are many; "" where they are not, or nothing has such a name."""
        if not self._name or self._unknown <= _MUCH[self._name] * self._total:
            return ""
        return (
            f"{self._unknown / self._total:.1%} of the tokens are {self._name}; is the vocabulary one for this "
            "language? Hangul in parts (NFD), as Macs write it, must be composed"
        )


def much_unknown(pieces: Sequence[str], arrays: Iterable[NDArray[Any]]) -> str:
    """Say how many of some ids are unknown, if they are many."""
    count = UnknownCount(pieces)
    for ids in arrays:
        count.add(ids)
    return count.said()
