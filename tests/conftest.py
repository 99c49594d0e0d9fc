"""What several test folders share: a vocabulary that hides no mistake, both ways of the tokenizer, the command."""

import gc
import os
import sys
import unicodedata

import pytest
import torch
from fault_table import (  # noqa: F401 -- hooks
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    write_table,
)
from other_texts import summary_line

from bertworks import cli
from bertworks.nn.layers import check_tiles
from bertworks.text.vocabulary import SPECIAL_TOKENS

WORDS = (
    "the quick brown fox jumps over lazy dog un aff able word token izer don well known "
    "##ing ##s ##ed ##able ##aff ##er ##ly ##izer ##ization The Quick Token 한국 ##어 ##은 가 나 ##다 ##라"
)
# Beyond the blocks of most writing: jamo extensions, compatibility forms, ideographs of each block, musical signs that
# combine, emoji, private and unassigned characters.
_MORE_BLOCKS = (
    (0x3400, 0x3410), (0x4DB0, 0x4E10), (0x9FF0, 0xA000), (0xA800, 0xA980), (0xAC00, 0xAC80), (0xD7B0, 0xD800),
    (0xE000, 0xE010), (0xF8F0, 0xFB20), (0xFE00, 0xFFFE), (0x16FF0, 0x16FF2), (0x1D150, 0x1D1F0), (0x1F1E6, 0x1F200),
    (0x1F300, 0x1F650), (0x20000, 0x20008), (0x2B730, 0x2B748), (0x2B810, 0x2B928), (0x2CEA8, 0x2CEB8),
    (0x2F7F8, 0x2F808), (0x2FA18, 0x2FA28), (0xE0100, 0xE0110), (0x10FFF8, 0x10FFFE),
)  # fmt: skip


gc.disable()  # collecting tests makes hundreds of thousands of objects, and no garbage


def pytest_collection_finish():
    """What is imported by now stays: no round of the garbage collector, of which tests ask for many, looks at it."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter, config):
    write_table(terminalreporter, config)
    if line := summary_line(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _no_sync():
    """Nothing here cuts the power: what a killed process has written is there, and thousands of syncs take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _tiles():
    """Before any test computes, so that one which takes a network by itself need not ask."""
    check_tiles(torch.device("cpu"), torch.bfloat16)


@pytest.fixture(scope="session")
def pieces():
    """A vocabulary with every character of many blocks, alone and inside a word: few mistakes end in [UNK] unseen."""
    points = [*range(0x3400), *(point for first, end in _MORE_BLOCKS for point in range(first, end))]
    chars = [chr(point) for point in points if unicodedata.category(chr(point)) not in ("Cc", "Cf", "Zs", "Zl", "Zp")]
    every = [*SPECIAL_TOKENS, *WORDS.split(), *chars, *("##" + char for char in chars)]
    return list(dict.fromkeys(every))


@pytest.fixture(scope="session")
def encode_compiled():
    """Gives a function that encodes a batch through the compiled code, however small the batch is."""

    def encode(tokenizer, texts, pairs=None, **options):
        tokenizer._load_bulk()
        more_pairs = None if pairs is None else [*pairs, ""]
        return tokenizer.encode_batch([*texts, " " * 4_000], more_pairs, **options)[:-1]

    return encode


@pytest.fixture
def bertworks(monkeypatch, capsys):
    """Gives a function that runs the command in this process: (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bertworks", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture
def alone_in_memory():
    """Keeps what other tests left out of the garbage collector's rounds, which would be timed with the test."""
    gc.collect()
    gc.freeze()
