"""The commands of text: vocab, tokenize."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.cli.extend import extend_by_words
from bertworks.cli.inputs import lines_of
from bertworks.cli.options import (
    CasedOption,
    CorpusArgument,
    JoinCjkOption,
    JsonOption,
    KeepAccentsOption,
    QuietOption,
    StrictOption,
    TextFieldOption,
    TextsArgument,
    VocabOption,
    WorkersOption,
    check_free_of_ids,
    check_workers,
    open_words,
    print_json,
    rules,
    say,
    say_next,
    warn,
    warn_of_replaced,
)
from bertworks.errors import UserError, counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bertworks.text.learn import Learned
    from bertworks.text.normalize import Rules


def vocab(
    corpus: CorpusArgument,
    out: Annotated[str, typer.Option(help="The file to write, one piece a line; for gpt-bpe a folder.")],
    size: Annotated[int, typer.Option(help="How many pieces, special and unused ones among them.")] = 30_522,
    algorithm: Annotated[
        str,
        typer.Option(
            help="For BERT wordpiece (gain in likelihood) or bpe (frequency); for GPT-1 gpt-bpe; for ELMo words."
        ),
    ] = "wordpiece",
    unused: Annotated[int, typer.Option(help="How many [unusedN] pieces to reserve.")] = 0,
    coverage: Annotated[float, typer.Option(help="Share of the text's characters to cover.")] = 0.99995,
    min_count: Annotated[int, typer.Option(help="What occurs less often is not used.")] = 20,
    extend: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|VOCAB", help="Add whole words to a model's vocabulary (to a folder), or to a file's."
        ),
    ] = None,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    text_field: TextFieldOption = "text",
    strict: StrictOption = False,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Learn a vocabulary from raw text, or add words to one."""
    from bertworks.config import VocabSettings, validate
    from bertworks.progress import progress_bar
    from bertworks.text.corpus import Corpus
    from bertworks.text.learn import learn_vocabulary

    started = time.monotonic()
    options = {"size": size, "algorithm": algorithm, "unused": unused, "coverage": coverage, "min_count": min_count}
    settings = validate(VocabSettings, options, "bertworks vocab")
    check_workers(workers)
    source = Corpus(corpus, strict=strict, text_field=text_field)
    word_rules = rules(cased, keep_accents, join_cjk)
    if extend is not None:
        extend_by_words(source, extend, out, word_rules, settings, workers, quiet=quiet, as_json=as_json)
        return
    _check_can_save(out, settings.algorithm, source.files)
    with progress_bar(quiet=quiet or as_json) as progress:
        learned = learn_vocabulary(source, rules=word_rules, workers=workers, progress=progress, **dict(settings))
        _save_vocabulary(out, learned, word_rules, settings.algorithm)
    result: dict[str, Any] = {
        "out": out,
        "pieces": len(learned.pieces),
        "words": learned.num_word_tokens,
        "distinct_words": learned.num_words,
        "alphabet": learned.num_letters,
        "documents": source.num_documents,
        "replaced_lines": source.num_replaced,
        "seconds": round(time.monotonic() - started, 2),
    }
    warn_of_replaced(source.num_replaced)
    if len(learned.pieces) < size:
        warn(f"the text gives only {len(learned.pieces):,} of {counted(size, 'piece')}; lower --min-count or add text")
    if as_json:
        print_json(result)
    elif not quiet:
        say(
            "{out}: {pieces:,} pieces from {words:,} words ({distinct_words:,} distinct, {alphabet:,} characters) "
            "of {documents:,} documents in {seconds:.0f} s".format(**result)
        )
        same = [*(["--cased"] * cased), *(["--keep-accents"] * keep_accents), *(["--join-cjk"] * join_cjk)]
        tokens = {"gpt-bpe": ["--tokens", "gpt-bpe"], "words": ["--tokens", "words"]}.get(algorithm, [])
        say_next("prepare", *corpus, "--vocab", out, *tokens, *same, "--out", "DATA", "--holdout", "0.01")


def _check_can_save(out: str, algorithm: str, sources: "Sequence[Path]") -> None:
    """Raise now what saving a vocabulary would raise after minutes of work."""
    from pathlib import Path

    from bertworks.files import check_can_write
    from bertworks.text.gpt_files import PIECES_FILE

    if algorithm == "gpt-bpe" and Path(out).is_file():
        raise UserError(f"cannot write {out}: it is a file, and gpt-bpe makes a folder; choose another --out")
    is_folder = algorithm == "gpt-bpe" and Path(out).is_dir()
    if is_folder:
        check_free_of_ids(out)
    check_can_write(Path(out) / PIECES_FILE if is_folder else out, *sources)


def _save_vocabulary(out: str, learned: "Learned", rules: "Rules", algorithm: str) -> None:
    """Write a vocabulary file, or the folder of a GPT-1 tokenizer."""
    from bertworks.text.gpt_bpe import GptTokenizer
    from bertworks.text.vocabulary import write_vocabulary

    if algorithm == "gpt-bpe":
        GptTokenizer(learned.pieces, learned.merges, rules).save(out)
    else:
        write_vocabulary(out, learned.pieces)


def tokenize(
    texts: TextsArgument,
    vocab: VocabOption,
    cased: CasedOption = False,
    keep_accents: KeepAccentsOption = False,
    join_cjk: JoinCjkOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how texts are split into pieces."""
    tokenizer = open_words(vocab, rules(cased, keep_accents, join_cjk))
    for text in lines_of(texts):
        if as_json:
            encoding = tokenizer.encode(text)
            print_json({"ids": encoding.ids, "tokens": encoding.tokens, "offsets": encoding.offsets})
        else:
            say(" ".join(tokenizer.tokenize(text)))
