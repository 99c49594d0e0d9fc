"""The vocabulary of a tokenizer: its files, splitting words into pieces, and joining pieces to text.

- A vocabulary file has one piece per line; the number of the line is the piece's id. It is read as google-research/bert
  does: white space around a piece is stripped, so CRLF files work, and a byte-order mark is removed. A blank line keeps
  its id and matches nothing (the original Chinese vocabulary has one); blank lines at the end of the file are ignored.
  Errors that would silently give wrong ids are refused with their line number: a duplicate piece, a missing [UNK],
  bytes that are not UTF-8, and lines so long that the file cannot be a vocabulary.
- transformers and the tokenizers library can open the tokenizer files. The files state the original's rules as far as
  possible, including the word limit of 200 (which transformers' own class resets to 100). Some differences cannot be
  expressed: in those libraries a "[MASK]" typed in a text is a special token, not plain text; they do not split at
  U+2B820..U+2B91F; they drop private characters; they have no final sigma, and only the accents and punctuation of an
  older Unicode; they refuse lone surrogates.
- Added words (transformers' `add_tokens` gives them ids after the vocabulary) keep their ids here and become pieces, so
  that the rows that a model has learned for them are used and saved. They are matched as whole words, by BERT's rules;
  other libraries look for them anywhere in a text, before it is split into words.
- A word is split by longest match, as in google-research/bert: the longest piece that matches its beginning, then the
  longest that matches the rest, and so on. A word of more than 200 characters, or with a part that no piece matches,
  becomes a single [UNK]. The search starts with the length of the longest piece that begins with the same three
  characters, not with the whole word. The result is the same, in linear instead of quadratic time.
- Decoding: WordPiece does not keep the spaces of a text, so `join_tokens` follows typography and does not restore the
  original text. It joins pieces to words and spaces punctuation as in printed English and Korean: "don ' t" becomes
  "don't", "3 . 14" becomes "3.14", CJK characters get no spaces, and Hangul letters that accent stripping took apart
  become syllables again. Where printed texts differ (a dash between words, a bracket after a word), it uses the form
  that is more frequent in Wikipedia.
- Other steps that a folder's files may contain, such as another normalisation or words cut by MeCab, are not supported.
  These steps and added words are reported when a folder is opened.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.errors import UserError
from bertworks.text.normalize import Rules, is_cjk

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"
MAX_WORD_LENGTH = 200

_MAX_PIECE_LENGTH = 1_000
_MAX_FILE_BYTES = 1 << 28
VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
SENTENCE_FILE = "sentence_bert_config.json"
LOWERCASE = {"type": "Lowercase"}  # in tokenizer.json: sentence-transformers lower-cases text before cased rules
_MAX_PIECES = 10_000_000
_MAX_JSON_BYTES = 1 << 26  # enough for a vocabulary of a hundred languages
_SETTINGS = (  # our name, transformers' name, that of the tokenizers library, and the default
    ("lowercase", "do_lower_case", "lowercase", True),
    ("strip_accents", "strip_accents", "strip_accents", None),
    ("split_cjk", "tokenize_chinese_chars", "handle_chinese_chars", True),
)
_ADDED_FILE = "added_tokens.json"
_MODEL_FILE = "config.json"
_STEPS = (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer"))
_BASIC = "basic"  # the way of cutting words, in transformers' Japanese tokenizers, that needs no other program
_MOST_NAMED = 3


def read_vocabulary(path: str | os.PathLike[str], *, unknown: str = UNK) -> list[str]:
    """Return the pieces of a vocabulary file in the order of their ids; a UserError names the faulty line."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes: too large for a vocabulary")
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the vocabulary {path}: {reason}") from error
    try:
        pieces = [line.strip() for line in content.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{number}: not UTF-8 ({error.reason}); a vocabulary is plain text") from error
    while pieces and not pieces[-1]:
        pieces.pop()
    check_pieces(pieces, str(path), unknown=unknown)
    return pieces


def check_pieces(pieces: Sequence[str], where: str, *, unknown: str = UNK) -> None:
    """Raise UserError unless every piece is short and occurs once, and the unknown piece is among them."""
    if not pieces:
        raise UserError(f"{where} is empty; a vocabulary has one piece a line")
    if max(map(len, pieces)) > _MAX_PIECE_LENGTH or any("\0" in piece for piece in pieces):
        for number, piece in enumerate(pieces, start=1):
            if len(piece) > _MAX_PIECE_LENGTH or "\0" in piece:
                what = "a NUL character" if "\0" in piece else f"{len(piece):,} characters"
                raise UserError(f"{where}:{number}: a line with {what}; a vocabulary has one short piece a line")
    if len(set(pieces)) < len(pieces):
        first_line: dict[str, int] = {}
        for number, piece in enumerate(pieces, start=1):
            if piece and first_line.setdefault(piece, number) != number:
                raise UserError(f"{where}:{number}: {piece!r} is on line {first_line[piece]} already; remove one")
    if unknown not in pieces:
        raise UserError(f"{where} has no {unknown} line; words with unknown characters need it")


def write_vocabulary(path: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Write one piece per line; the file appears whole or not at all."""
    from bertworks.files import atomic_write  # imported here: tokenizing a sentence needs neither this nor JSON

    with atomic_write(path, "wb") as stream:
        for number, piece in enumerate(pieces):
            try:
                if piece != piece.strip() or "\n" in piece or "\0" in piece:
                    raise ValueError("it has a NUL or a line break, or white space at its start or end")
                stream.write(piece.encode() + b"\n")
            except ValueError as error:
                raise UserError(
                    f"piece {number}, {piece!r}, cannot be written to a vocabulary file: {error}"
                ) from error


def write_tokenizer_files(folder: Path, pieces: Sequence[str], rules: Rules, max_length: int | None = None) -> None:
    """Write vocab.txt, tokenizer.json and tokenizer_config.json; the same vocabulary gives the same bytes."""
    from bertworks.files import make_folder

    make_folder(folder)
    write_vocabulary(folder / VOCABULARY_FILE, pieces)
    names = {"cls_token": CLS, "mask_token": MASK, "pad_token": PAD, "sep_token": SEP, "unk_token": UNK}
    config = {"tokenizer_class": "BertTokenizer", **rules_config(rules), **names, **length_config(max_length)}
    write_objects(folder, {TOKENIZER_FILE: _pipeline(pieces, rules), CONFIG_FILE: config})


def write_objects(folder: Path, contents: dict[str, dict[str, Any]]) -> None:
    """Write JSON files, given as contents by file name."""
    import json

    from bertworks.files import atomic_write

    for name, content in contents.items():
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1)


def write_word_files(folder: Path, words: Sequence[str], rules: Rules, max_length: int | None = None) -> None:
    """Write vocab.txt and tokenizer_config.json for a list of words; no other library reads these."""
    from bertworks.files import make_folder

    make_folder(folder)
    write_vocabulary(folder / VOCABULARY_FILE, words)
    write_objects(folder, {CONFIG_FILE: {**rules_config(rules), **length_config(max_length)}})


def read_pieces(folder: Path) -> list[str]:
    """Return a folder's vocabulary: vocab.txt, or else tokenizer.json (transformers 5 writes only that)."""
    path = folder / TOKENIZER_FILE
    if (folder / VOCABULARY_FILE).exists() or not path.exists():
        return read_vocabulary(folder / VOCABULARY_FILE)
    model = read_object(path).get("model")
    if not isinstance(model, dict):
        model = {}
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or model.get("continuing_subword_prefix") != CONTINUATION:
        raise UserError(f"{path} holds no WordPiece vocabulary, as BERT has, with {CONTINUATION} inside words")
    pieces = pieces_by_id(vocab, path)
    check_pieces(pieces, str(path))
    return pieces


def pieces_by_id(vocab: Any, path: Path) -> list[str]:
    """Return pieces in the order of their ids; an id without a piece gives an empty string."""
    if not isinstance(vocab, dict):
        raise UserError(f"{path} holds no vocabulary: pieces, each with its id")
    if not all(type(id) is int and 0 <= id < _MAX_PIECES for id in vocab.values()):
        raise UserError(f"{path}: the ids of the vocabulary must be whole numbers from 0 to {_MAX_PIECES - 1:,}")
    pieces = [""] * (max(vocab.values(), default=-1) + 1)
    for piece, id in vocab.items():
        if pieces[id]:
            raise UserError(f"{path}: {pieces[id]!r} and {piece!r} have the same id {id}")
        pieces[id] = piece
    return pieces


def read_settings(folder: Path, *, lowercase: bool = True) -> dict[str, Any]:
    """Return the normalisation settings in a folder's files; missing ones are the original's.

    tokenizer_config.json has priority. If it is missing or does not mention lower-casing, tokenizer.json is read;
    otherwise accents follow tokenizer_config.json, whatever tokenizer.json has. sentence-transformers may lower-case a
    text before all of this, which does not change how accents are treated.
    """
    settings: dict[str, Any] = {name: default for name, _, _, default in _SETTINGS} | {"lowercase": lowercase}
    path = folder / CONFIG_FILE
    config = read_object(path) if path.exists() else {}
    if "do_lower_case" not in config and (folder / TOKENIZER_FILE).exists():
        steps = normalizer_steps(read_object(folder / TOKENIZER_FILE).get("normalizer"))
        found = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
        settings |= _stated(found, {key: name for name, _, key, _ in _SETTINGS}, folder / TOKENIZER_FILE)
    settings |= _stated(config, {key: name for name, key, _, _ in _SETTINGS}, path)
    path = folder / SENTENCE_FILE
    lowercases = read_object(path).get("do_lower_case", False) if path.exists() else False
    if not isinstance(lowercases, bool):
        raise UserError(f"{path}: do_lower_case is {str(lowercases)[:40]!r}, which is neither true nor false")
    path = folder / TOKENIZER_FILE
    steps = normalizer_steps(read_object(path).get("normalizer")) if path.exists() else []
    if (lowercases or LOWERCASE in steps) and not settings["lowercase"]:
        settings |= {"lowercase": True, "strip_accents": bool(settings["strip_accents"])}
    return settings


def read_rules(folder: Path, *, lowercase: bool = True) -> Rules:
    """Return the normalisation rules in a folder's files."""
    return Rules.of(**read_settings(folder, lowercase=lowercase))


def _stated(stated: dict[str, Any], names: dict[str, str], path: Path) -> dict[str, bool | None]:
    """Return a file's settings by our names; only strip_accents may be null: then it follows lower-casing."""
    settings = {}
    for key, name in names.items():
        if key in stated:
            settings[name] = stated[key]
            if not isinstance(stated[key], bool) and (name, stated[key]) != ("strip_accents", None):
                raise UserError(f"{path}: {key} is {stated[key]!r}, which is neither true nor false")
    return settings


def normalizer_steps(normalizer: Any) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer.json's normalisation."""
    if not isinstance(normalizer, dict):
        return []
    steps = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object, or raise UserError."""
    from bertworks import files

    return files.read_object(path, max_bytes=_MAX_JSON_BYTES)


def rules_config(rules: Rules) -> dict[str, bool]:
    """Return the rules under transformers' names."""
    return {key: getattr(rules, name) for name, key, _, _ in _SETTINGS}


def length_config(max_length: int | None) -> dict[str, int]:
    """Return the most tokens that the model reads, under transformers' name, so that other tools truncate there."""
    return {} if max_length is None else {"model_max_length": max_length}


def _pipeline(pieces: Sequence[str], rules: Rules) -> dict[str, Any]:
    ids = {piece: id for id, piece in enumerate(pieces) if piece}
    post_processor = None
    if CLS in ids and SEP in ids:
        cls, sep, sep_of_second, first, second = (
            {kind: {"id": name, "type_id": segment_id}}
            for kind, name, segment_id in (
                ("SpecialToken", CLS, 0), ("SpecialToken", SEP, 0), ("SpecialToken", SEP, 1), ("Sequence", "A", 0),
                ("Sequence", "B", 1),
            )
        )  # fmt: skip
        post_processor = {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, sep_of_second],
            "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (CLS, SEP)},
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special_token(token, ids[token]) for token in ids if token in SPECIAL_TOKENS],
        "normalizer": normalizer(rules),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor,
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": MAX_WORD_LENGTH,
            "vocab": ids,
        },
    }


def normalizer(rules: Rules) -> dict[str, Any]:
    """Return the rules in the form of the tokenizers library."""
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": rules.split_cjk,
        "strip_accents": rules.strip_accents,
        "lowercase": rules.lowercase,
    }


def special_token(token: str, id: int) -> dict[str, Any]:
    """Return a special token in the form of the tokenizers library."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": token, **flags}


def with_added(pieces: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Return a vocabulary with the added words of a folder's files, and notes on what differs from other libraries.

    Words whose ids the model has no embedding rows for are left out.
    """
    names = (TOKENIZER_FILE, CONFIG_FILE, _MODEL_FILE, _ADDED_FILE)
    pipeline, config, model, words = (read_object(folder / name) if (folder / name).exists() else {} for name in names)
    known, size = set(pieces), model.get("vocab_size")
    added = {}
    for word, id in _added(pipeline, config, words):
        # Only words that can be a line of a vocabulary file.
        is_piece = isinstance(word, str) and word != "" and word.isprintable() and word == word.strip()
        if is_piece and type(id) is int and id >= len(pieces) and word not in known:
            added[word] = id
    if type(size) is int:
        added = {word: id for word, id in added.items() if id < size}
    unlike = [f"{folder}: {remark}" for remark in _unlike_bert(list(added), pipeline, config)]
    return [*pieces, *pieces_by_id(added, folder)[len(pieces) :]], unlike


def _unlike_bert(added: Sequence[str], pipeline: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    """Yield what other libraries would do with a text because of these files, and this one does not."""
    if added:
        more = f" and {len(added) - _MOST_NAMED:,} more" if len(added) > _MOST_NAMED else ""
        named = ", ".join(map(repr, added[:_MOST_NAMED])) + more
        yield f"added tokens ({named}) are found only as whole words here, not inside other words"
    for step, expected in _STEPS if pipeline else ():
        found = pipeline.get(step)
        if step == "normalizer" and LOWERCASE in normalizer_steps(found):  # which is supported here
            found = {"normalizers": [one for one in normalizer_steps(found) if one != LOWERCASE]}
        if (kind := _kind(found)) != expected:
            yield f"the {step} of its {TOKENIZER_FILE} is {kind}, but texts are cut by BERT's own rules here"
    if (cutter := config.get("word_tokenizer_type") or _BASIC) != _BASIC:
        yield f"it was made for words cut by {str(cutter)[:40]}, which is not supported; put spaces between words"


def _added(pipeline: dict[str, Any], config: dict[str, Any], words: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield added words with their ids, from the three files that may contain them."""
    listed, decoder = pipeline.get("added_tokens"), config.get("added_tokens_decoder")
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, dict):
            yield token.get("content"), token.get("id")
    for id, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and id.isdecimal():
            yield token.get("content"), int(id)
    yield from words.items()


def _kind(step: Any) -> str:
    """Name a step of a pipeline; several are named with a plus between them."""
    if not isinstance(step, dict):
        return "none"
    steps = step.get("normalizers") or step.get("pretokenizers")
    return " + ".join(map(_kind, steps)) if isinstance(steps, list) else str(step.get("type"))[:40]


_NUM_LOOKED_UP = 3  # number of first characters by which the longest piece is looked up

# A piece's id, and its start and end in the word. A plain tuple takes a fifth of a NamedTuple's time, and the garbage
# collector does not visit the remembered ones.
Match = tuple[int, int, int]


class WordPiece:
    """Splits words into the pieces of a vocabulary, and remembers recent words."""

    _MAX_REMEMBERED = 50_000

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.unk_id = ids[UNK]
        self._first = ids
        self._rest = {piece[2:]: id for piece, id in ids.items() if piece.startswith(CONTINUATION)}
        self._first_reach = _reach(self._first)
        self._rest_reach = _reach(self._rest)
        self._remembered: dict[str, list[Match]] = {}

    def split(self, word: str) -> list[Match]:
        """Return the pieces of one normalised word."""
        matches = self._remembered.get(word)
        if matches is None:
            matches = self._match(word)
            if len(self._remembered) >= self._MAX_REMEMBERED:
                self._remembered.clear()
            if len(word) <= MAX_WORD_LENGTH:
                self._remembered[word] = matches
        return matches

    def split_rest(self, rest: str) -> list[Match]:
        """Return the pieces of the rest of a word, without its beginning."""
        return self._match(rest, is_rest=True)

    def _match(self, word: str, *, is_rest: bool = False) -> list[Match]:
        unknown = [(self.unk_id, 0, len(word))]
        if len(word) + is_rest > MAX_WORD_LENGTH:  # a rest has a letter before it
            return unknown
        matches: list[Match] = []
        start = 0
        ids, reach = (self._rest, self._rest_reach) if is_rest else (self._first, self._first_reach)
        while start < len(word):
            piece = word[start : start + reach.get(word[start : start + _NUM_LOOKED_UP], _NUM_LOOKED_UP - 1)]
            while piece and piece not in ids:
                piece = piece[:-1]
            if not piece:
                return unknown
            end = start + len(piece)
            matches.append((ids[piece], start, end))
            start, ids, reach = end, self._rest, self._rest_reach
        return matches


def _reach(pieces: Iterable[str]) -> dict[str, int]:
    """Map the first characters of pieces to the length of the longest piece that begins with them."""
    reach: dict[str, int] = {}
    for piece in pieces:
        beginning = piece[:_NUM_LOOKED_UP]
        if len(piece) > reach.get(beginning, 0):
            reach[beginning] = len(piece)
    return reach


_HYPHEN = "-"
_NO_SPACE_BEFORE = set(".,!?;:%)]}»”’…、。，！？；：）］｝」』》〉·—") | {"--"}
_NO_SPACE_AFTER = set("([{«“‘$£€₩#@¿¡（［｛「『《〈·—") | {"--"}
_WIDE_MARKS = set("、。，！？；：（）［］｛｝「」『』《》〈〉")
_TIGHT_BETWEEN_WORDS = set("-/_@")
_TIGHT_BETWEEN_DIGITS = set(".,:-–/~")
_CONTRACTIONS = {"s", "t", "d", "m", "re", "ve", "ll"}  # short for is, not, would, am, are, have, will
_ELISIONS = {"o", "d", "l"}  # as in o'clock, d'Arc, l'homme
_BEFORE_PARTICLES = set(")]）］》〉」』”’\"'%")
# Korean particles and forms of 이다 follow without a space, also after a bracket or a quotation mark; other words get a
# space.
_PARTICLE = re.compile(
    "[은는이가을를의도만고며나인]|(?:와|과|에|에게|에서|으?로|까지|부터|처럼|보다)(?:[는도만의]|서|서의|써|부터)?"
    "|이?(?:라|란|다|며|고|나|자|지만|라는|라고|라고도|라며)|이?[었였].*"
)


def join_tokens(tokens: Iterable[str]) -> str:
    """Return the text of a sequence of tokens."""
    spelt: list[list[str]] = []
    for token in filter(None, tokens):
        continues = token.startswith(CONTINUATION) and token != CONTINUATION
        if continues and spelt and spelt[-1][0] not in SPECIAL_TOKENS:
            spelt[-1].append(token.removeprefix(CONTINUATION))
        elif spelt and spelt[-1] == [token] == [_HYPHEN]:  # a dash written as two hyphens
            spelt[-1].append(token)
        else:
            spelt.append([token])
    # Letters and accents are composed; not in extremely long words, where this takes quadratic time.
    whole = map("".join, spelt)
    words = [unicodedata.normalize("NFC", word) if len(word) <= MAX_WORD_LENGTH else word for word in whole]
    parts: list[str] = []
    before, is_tight_after = "", True
    for word, (is_tight_before, tight_after) in zip(words, _tight_sides(words), strict=True):
        if not (is_tight_after or is_tight_before or _closes_up(before, word)):
            parts.append(" ")
        parts.append(word)
        before, is_tight_after = word, tight_after
    return "".join(parts)


def _tight_sides(words: list[str]) -> Iterator[tuple[bool, bool]]:
    """Yield for each word whether it has no space before it, and whether it has no space after it."""
    around = list(zip(["", *words], words, [*words[1:], ""], [*words[2:], "", ""], strict=False))
    num_quotes = sum(word == "'" and not _is_tight(before, word, after, later) for before, word, after, later in around)
    is_open = {'"': False, "'": False}
    for before, word, after, later in around:
        if _is_tight(before, word, after, later):
            yield True, True
        elif word not in is_open:
            yield word in _NO_SPACE_BEFORE, word in _NO_SPACE_AFTER
        elif word == "'" and num_quotes % 2 and before.endswith("s") and not is_open["'"]:
            num_quotes -= 1  # not one of a pair: the apostrophe of a plural, as in the others' words
            yield True, False
        else:
            yield is_open[word], not is_open[word]
            is_open[word] = not is_open[word]


def _is_tight(before: str, mark: str, after: str, later: str) -> bool:
    """Tell whether a mark between two words has no space on either side, as in well-known, 10:30, U.S. and don't."""
    if not before[-1:].isalnum() or not after[:1].isalnum():
        return False
    if mark in _TIGHT_BETWEEN_DIGITS and before[-1].isdigit() and after[0].isdigit():
        return mark != "," or (len(before) <= 3 and len(after) == 3)
    if mark in ("'", "’"):
        return after in _CONTRACTIONS or before.lower() in _ELISIONS
    if mark == ".":
        return len(before) == len(after) == 1 and later == "."
    return mark in _TIGHT_BETWEEN_WORDS or (mark == "&" and 1 in (len(before), len(after)))


def _closes_up(before: str, word: str) -> bool:
    """Tell whether there is no space between two words because of their script."""
    if _is_hangul(word[0]):
        return _is_spaceless(before[-1]) or (before in _BEFORE_PARTICLES and _PARTICLE.fullmatch(word) is not None)
    if word in ("(", "[", "（", "［"):
        return _is_hangul(before[-1]) or _is_spaceless(before[-1]) or before in ("》", "〉", "」", "』")
    is_spaceless_before = _is_spaceless(before[-1]) or before in _WIDE_MARKS
    return is_spaceless_before and (_is_spaceless(word[0]) or word in _WIDE_MARKS)


def _is_spaceless(char: str) -> bool:
    """Tell whether a character is of a script written without spaces: Chinese characters and kana."""
    return is_cjk(char) or "\u3040" <= char <= "\u30ff"


def _is_hangul(char: str) -> bool:
    return "가" <= char <= "힣"


# The share of unknown tokens above which a warning is given, by the name of the unknown piece. With the vocabulary of
# `mini`, 0.015 % of its own training text is [UNK]; a list of words is never complete.
_MUCH = {UNK: 0.05, "<unk>": 0.05, "<UNK>": 0.2}


class UnknownCount:
    """Counts unknown tokens."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._name = next((name for name in _MUCH if name in pieces), "")
        self._id = pieces.index(self._name) if self._name else -1
        self._unknown = self._total = 0

    def add(self, ids: "NDArray[Any]") -> None:
        """Count some more."""
        self._unknown += int((ids == self._id).sum())
        self._total += len(ids)

    def warning(self) -> str:
        """Return a warning if many tokens are unknown, else ""; also "" if the vocabulary has no unknown piece."""
        if not self._name or self._unknown <= _MUCH[self._name] * self._total:
            return ""
        return (
            f"{self._unknown / self._total:.1%} of the tokens are {self._name}; is the vocabulary for this "
            "language? Decomposed Hangul (NFD), as in file names on Macs, must be composed first"
        )


def much_unknown(pieces: Sequence[str], arrays: Iterable["NDArray[Any]"]) -> str:
    """Return a warning if many of these ids are unknown, else ""."""
    count = UnknownCount(pieces)
    for ids in arrays:
        count.add(ids)
    return count.warning()
