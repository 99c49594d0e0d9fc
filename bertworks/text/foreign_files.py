"""What a folder's tokenizer files may say beyond BERT's own rules: words that were added, and other steps.

transformers' `add_tokens` gives words ids behind the vocabulary. They keep these here, as pieces of their own, so that
the rows that a model has learnt for them are used, and saved; but they are found as whole words, by BERT's rules,
where other libraries look for them anywhere in a text, before its words are cut. Other steps, such as another
normalisation or words cut by MeCab, are not there at all. Both are said where it may matter.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertworks.text.tokenizer_files import (
    CONFIG_FILE,
    LOWERCASE,
    TOKENIZER_FILE,
    normalizer_steps,
    pieces_by_id,
    read_object,
)

_ADDED_FILE = "added_tokens.json"
_MODEL_FILE = "config.json"
_STEPS = (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer"))
_BASIC = "basic"  # how words are cut, in transformers' Japanese tokenizers; others need a program
_MOST_NAMED = 3


def with_added(pieces: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Return a vocabulary with the words that were added behind it, and what is to be said of a folder's files.

    Words that the model has no rows for are left out: nothing can be looked up for them.
    """
    pipeline, config, model = (_read(folder / name) for name in (TOKENIZER_FILE, CONFIG_FILE, _MODEL_FILE))
    known, size = set(pieces), model.get("vocab_size")
    added = {
        word: id
        for word, id in _added(pipeline, config, _read(folder / _ADDED_FILE))
        if _is_piece(word) and type(id) is int and id >= len(pieces) and word not in known
    }
    if type(size) is int:
        added = {word: id for word, id in added.items() if id < size}
    unlike = [f"{folder}: {remark}" for remark in _unlike_bert(list(added), pipeline, config)]
    return [*pieces, *pieces_by_id(added, folder)[len(pieces) :]], unlike


def _unlike_bert(added: Sequence[str], pipeline: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    """Tell what other libraries would do with a text by these files, and is not done here."""
    if added:
        more = f" and {len(added) - _MOST_NAMED:,} more" if len(added) > _MOST_NAMED else ""
        named = ", ".join(map(repr, added[:_MOST_NAMED])) + more
        yield f"added tokens ({named}) are found as whole words here, not inside of others"
    for step, expected in _STEPS if pipeline else ():
        found = pipeline.get(step)
        if step == "normalizer" and LOWERCASE in normalizer_steps(found):  # which is done here
            found = {"normalizers": [one for one in normalizer_steps(found) if one != LOWERCASE]}
        if (kind := _kind(found)) != expected:
            yield f"the {step} of its {TOKENIZER_FILE} is {kind}, but texts are cut by BERT's own rules here"
    if (cutter := config.get("word_tokenizer_type") or _BASIC) != _BASIC:
        yield f"it was made for words that {str(cutter)[:40]} cuts, which is not done here; put blanks between them"


def _added(pipeline: dict[str, Any], config: dict[str, Any], words: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield added words with their ids, from each of the three files that may have them."""
    listed, decoder = pipeline.get("added_tokens"), config.get("added_tokens_decoder")
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, dict):
            yield token.get("content"), token.get("id")
    for id, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and id.isdecimal():
            yield token.get("content"), int(id)
    yield from words.items()


def _is_piece(word: Any) -> bool:
    """Tell whether a word can stand on a line of a vocabulary file."""
    return isinstance(word, str) and word != "" and word.isprintable() and word == word.strip()


def _kind(step: Any) -> str:
    """Name a step of a pipeline; several are named with a plus between them."""
    if not isinstance(step, dict):
        return "none"
    steps = step.get("normalizers") or step.get("pretokenizers")
    return " + ".join(map(_kind, steps)) if isinstance(steps, list) else str(step.get("type"))[:40]


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}
