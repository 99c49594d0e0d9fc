"""The files of a GPT-1 tokenizer, in the form that transformers and the tokenizers library open as `openai-gpt`.

vocab.json has the pieces with their ids, merges.txt the pairs in the order of learning, tokenizer.json both and the
rules for words. What those libraries do otherwise is what they do otherwise with BERT's rules (`tokenizer_files.py`);
besides, they split words of over 200 letters. transformers' class for GPT-1 knows the uncased rules only, so a
folder with other rules names its general class, which follows tokenizer.json.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.files import atomic_write, make_folder
from bertworks.text.gpt_bpe import END_OF_WORD, FINE_TUNING_TOKENS, UNK, Merges
from bertworks.text.normalize import Rules
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
