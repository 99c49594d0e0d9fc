"""The tokenizer files of a model folder, in the form that transformers and the tokenizers library open.

They follow the original in what can be said there, the word limit of 200 among it. What cannot be said stays
different in those libraries: a "[MASK]" typed in a text is a special token to them and plain text to us, they split
U+2B820..U+2B91F differently, drop unassigned and private characters, and have no final sigma.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.text.normalize import Rules
from bertworks.text.vocabulary import CLS, CONTINUATION, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, write_vocabulary
from bertworks.text.wordpiece import MAX_WORD_LENGTH

VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


def write_tokenizer_files(folder: Path, pieces: Sequence[str], rules: Rules) -> None:
    """Write vocab.txt, tokenizer.json and tokenizer_config.json; the same vocabulary gives the same bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    write_vocabulary(folder / VOCABULARY_FILE, pieces)
    for name, content in ((TOKENIZER_FILE, _pipeline(pieces, rules)), (CONFIG_FILE, _config(rules))):
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the tokenizer settings that a folder's tokenizer_config.json states; the original's where it is silent."""
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        given = {
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "split_cjk": config.get("tokenize_chinese_chars", True),
        }
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for name, value in given.items():
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise UserError(f"{path}: {name} is {value!r}, which is neither true nor false")
    return given


def _config(rules: Rules) -> dict[str, Any]:
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": rules.lowercase,
        "strip_accents": rules.strip_accents,
        "tokenize_chinese_chars": rules.split_cjk,
        "cls_token": CLS,
        "mask_token": MASK,
        "pad_token": PAD,
        "sep_token": SEP,
        "unk_token": UNK,
    }


def _pipeline(pieces: Sequence[str], rules: Rules) -> dict[str, Any]:
    ids = {piece: id for id, piece in enumerate(pieces) if piece}
    pipeline: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(token, ids[token]) for token in ids if token in SPECIAL_TOKENS],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": rules.split_cjk,
            "strip_accents": rules.strip_accents,
            "lowercase": rules.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(ids) if CLS in ids and SEP in ids else None,
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": ids,
        },
    }
    return pipeline


def _added(token: str, id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": token, **flags}


def _template(ids: dict[str, int]) -> dict[str, Any]:
    def special(token: str, segment_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": segment_id}}

    def sequence(name: str, segment_id: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment_id}}

    single = [special(CLS, 0), sequence("A", 0), special(SEP, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special(SEP, 1)],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (CLS, SEP)},
    }
