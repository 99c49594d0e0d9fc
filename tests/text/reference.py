"""The rules of google-research/bert's tokenization.py, restated step by step on whole strings: slow and obvious."""

import re
import unicodedata

CJK = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
ASCII_SYMBOLS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def clean(char):
    if char in " \t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    return "" if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf") else char


def is_punctuation(char):
    return char in ASCII_SYMBOLS or unicodedata.category(char)[0] == "P"


def split_words(text, lowercase, strip_accents, split_cjk):
    text = "".join(map(clean, text))
    if split_cjk:
        text = CJK.sub(r" \g<0> ", text)
    words = []
    for token in text.split():
        if lowercase:
            token = token.lower()
        if strip_accents:
            token = "".join(c for c in unicodedata.normalize("NFD", token) if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if is_punctuation(c) else c for c in token).split()
    return words


def split_pieces(word, vocabulary, limit=200):
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        fits = [end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary]
        if len(word) > limit or not fits:
            return ["[UNK]"]
        found.append(prefix + word[start : fits[0]])
        start = fits[0]
    return found


def tokenize(text, vocabulary, lowercase=True, strip_accents=True, split_cjk=True):
    words = split_words(text, lowercase, strip_accents, split_cjk)
    return [piece for word in words for piece in split_pieces(word, vocabulary)]
