"""`bertworks vocab --extend`: words added to a vocabulary, saved in the form in which it was given."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.cli.options import check_free_of_ids, check_rules, print_json, say, say_next, warn, warn_of_replaced
from bertworks.errors import UserError, counted

if TYPE_CHECKING:
    from bertworks.config import VocabSettings
    from bertworks.text.corpus import Corpus
    from bertworks.text.normalize import Rules
    from bertworks.text.tokenizer import Tokenizer


def extend_by_words(
    source: "Corpus",
    extended: str,
    out: str,
    word_rules: "Rules",
    settings: "VocabSettings",
    workers: int | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Add words to the vocabulary of a model, which gives a folder, or of a file, which gives a file."""
    from bertworks.config import VocabSettings
    from bertworks.progress import progress_bar
    from bertworks.text.extend import extend_vocabulary

    if settings != VocabSettings(size=settings.size, min_count=settings.min_count):
        raise UserError("--extend adds whole words: --algorithm, --unused and --coverage are not for it")
    started = time.monotonic()
    tokenizer, is_folder = _open_extended(extended, word_rules)
    _check_can_extend(out, source.files, is_folder=is_folder)
    with progress_bar(quiet=quiet or as_json) as progress:
        found = extend_vocabulary(
            source, tokenizer, size=settings.size, min_count=settings.min_count, workers=workers, progress=progress
        )
    _save_extended(out, found.pieces, tokenizer.rules, is_folder=is_folder)
    warn_of_replaced(source.num_replaced)
    if len(found.pieces) < settings.size:
        warn(f"the text gives only {counted(found.num_added, 'word')}; lower --min-count or add text")
    result: dict[str, Any] = {
        "out": out,
        "pieces": len(found.pieces),
        "added": found.num_added,
        "words": found.num_word_tokens,
        "distinct_words": found.num_words,
        "tokens_a_word_before": found.tokens_before / found.num_word_tokens,
        "tokens_a_word": found.tokens_after / found.num_word_tokens,
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json:
        print_json(result)
    elif not quiet:
        say(
            "{out}: {pieces:,} pieces, {added:,} of them new words; the text takes {tokens_a_word:.3f} tokens a word "
            "instead of {tokens_a_word_before:.3f}".format(**result)
        )
        say_next("prepare", "CORPUS", "--vocab", out, "--out", "DATA", "--holdout", "0.01")


def _open_extended(extended: str, word_rules: "Rules") -> "tuple[Tokenizer, bool]":
    """Open what is to be extended; a folder has its own rules."""
    from bertworks.interop.locate import find_model
    from bertworks.interop.sentence_folders import find_encoder
    from bertworks.text.kinds import open_tokenizer
    from bertworks.text.tokenizer import Tokenizer

    is_folder = not Path(extended).is_file()
    tokenizer = open_tokenizer(find_encoder(find_model(extended)) if is_folder else extended, word_rules)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{extended} is a vocabulary of {tokenizer.kind}; only WordPiece can be extended")
    check_rules(extended, tokenizer, word_rules)
    return tokenizer, is_folder


def _check_can_extend(out: str, sources: Sequence[Path], *, is_folder: bool) -> None:
    """Raise now what saving would raise after minutes of work."""
    from bertworks.files import check_can_write
    from bertworks.text.tokenizer_files import VOCABULARY_FILE

    if is_folder:
        check_free_of_ids(out)
    if is_folder and Path(out).is_file():
        raise UserError(f"cannot write {out}: it is a file, and to extend a model's vocabulary makes a folder")
    check_can_write(Path(out) / VOCABULARY_FILE if is_folder and Path(out).is_dir() else out, *sources)


def _save_extended(out: str, pieces: list[str], rules: "Rules", *, is_folder: bool) -> None:
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.text.vocabulary import write_vocabulary

    Tokenizer(pieces, **rules._asdict()).save(out) if is_folder else write_vocabulary(out, pieces)
