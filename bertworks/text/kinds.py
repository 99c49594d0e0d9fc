"""The kinds of tokens that there are, one for each of the paper's systems: BERT's, GPT-1's and ELMo's.

A vocabulary says of which kind it is: `vocab.json` and `merges.txt` are GPT-1's, a list that begins with `<S>` is
ELMo's, and everything else is taken for BERT's.
"""

import os
from pathlib import Path
from typing import Literal

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.gpt_bpe import GptTokenizer
from bertworks.text.gpt_files import MERGES_FILE, PIECES_FILE
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_files import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE, read_object
from bertworks.text.words import BEGIN, WordTokenizer

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
