"""The kinds of tokens, one for each of the paper's systems: BERT's, GPT-1's and ELMo's.

The kind is found from the vocabulary's files: `vocab.json` and `merges.txt` are GPT-1's, a list that begins with `<S>`
is ELMo's, and everything else is taken as BERT's.
"""

import os
from pathlib import Path
from typing import Literal

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.elmo_words import BEGIN, WordTokenizer
from bertworks.text.gpt import MERGES_FILE, PIECES_FILE, GptTokenizer
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE, read_object

Kind = Literal["wordpiece", "gpt-bpe", "words"]
AnyTokenizer = Tokenizer | GptTokenizer | WordTokenizer

CLASSES: dict[str, type[Tokenizer] | type[GptTokenizer] | type[WordTokenizer]] = {
    "wordpiece": Tokenizer,
    "gpt-bpe": GptTokenizer,
    "words": WordTokenizer,
}
TOKENIZER_FILES = (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE, PIECES_FILE, MERGES_FILE)


def kind_of(vocab: str | os.PathLike[str]) -> Kind:
    """Return the kind of a vocabulary file, or of a folder with tokenizer files."""
    path = Path(vocab)
    if path.is_dir():
        if (path / PIECES_FILE).exists():
            return "gpt-bpe"
        if not (path / VOCABULARY_FILE).exists() and (path / TOKENIZER_FILE).exists():
            model = read_object(path / TOKENIZER_FILE).get("model")
            if isinstance(model, dict) and model.get("type") == "BPE":
                return "gpt-bpe"
        path = path / VOCABULARY_FILE
    try:
        with open(path, "rb") as stream:
            first_line = stream.read(len(BEGIN) + 2).split(b"\n")[0].strip()
    except (OSError, ValueError):
        return "wordpiece"  # whoever opens it reports the error
    return "words" if first_line == BEGIN.encode() else "wordpiece"


def open_tokenizer(vocab: str | os.PathLike[str], rules: Rules, kind: str | None = None) -> AnyTokenizer:
    """Open a vocabulary file with the given rules, or a folder with its own rules; another kind is a UserError."""
    if kind is not None and kind not in CLASSES:
        raise UserError(f"no tokens of kind {kind!r}; choose {', '.join(CLASSES)}")
    path = usable_path(vocab)
    if not path.exists():
        raise UserError(f"cannot read the vocabulary {path}: there is no such file or folder")
    names = (VOCABULARY_FILE, PIECES_FILE, TOKENIZER_FILE)
    if path.is_dir() and not any((path / name).exists() for name in names):
        raise UserError(f"cannot read the vocabulary {path}: the folder has none of {', '.join(names)}")
    found = kind_of(vocab)
    if found != (kind or found):
        raise UserError(
            f"{vocab} is a vocabulary of {found}, not {kind}; use --tokens {found}, or give another vocabulary"
        )
    if path.is_dir():
        return CLASSES[found].from_folder(vocab)
    if found == "words":
        return WordTokenizer.from_vocab(vocab, rules)
    return Tokenizer.from_vocab(vocab, **rules._asdict())
