"""A CPU that announces matrix tiles it has not: bfloat16 is computed without them, and nothing dies."""

import os
import subprocess
import sys

import pytest
import torch

from bertworks.nn import layers as tiles

CPU = torch.device("cpu")
ISA = "ONEDNN_MAX_CPU_ISA"


@pytest.fixture
def broken(monkeypatch):
    """A machine that announces tiles; gives the answers of the tries of a product, to be filled in."""
    survives, enabled = [], torch.backends.mkldnn.enabled
    monkeypatch.setattr(tiles, "_announces_tiles", lambda: True)
    monkeypatch.setattr(tiles, "_survives_a_product", lambda: survives.pop(0))
    monkeypatch.setenv(ISA, "")
    monkeypatch.delenv(ISA)
    tiles._check_once.cache_clear()
    yield survives
    torch.backends.mkldnn.enabled = enabled
    tiles._check_once.cache_clear()


def test_tiles_that_work_are_used(broken):
    broken.append(True)
    tiles.check_tiles(CPU, torch.bfloat16)
    assert (broken, ISA in os.environ, torch.backends.mkldnn.enabled) == ([], False, True)


def test_tiles_that_kill_are_left_alone_and_tried_once(broken, caplog):
    broken += [False, True]
    tiles.check_tiles(CPU, torch.bfloat16)
    tiles.check_tiles(CPU, torch.bfloat16)
    assert (broken, os.environ[ISA], torch.backends.mkldnn.enabled) == ([], "AVX512_CORE_FP16", True)
    assert caplog.messages == []


def test_where_it_is_too_late_to_say_so_products_are_slow_and_safe(broken, caplog):
    broken += [False, False]
    tiles.check_tiles(CPU, torch.bfloat16)
    assert not torch.backends.mkldnn.enabled
    assert "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before" in caplog.text


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_nothing_is_tried_where_no_tiles_are_used(broken, device, dtype):
    tiles.check_tiles(torch.device(device), dtype)  # would find no answer


def test_a_process_that_dies_is_noticed(monkeypatch):
    monkeypatch.setattr(torch, "mm", lambda *_: os.kill(os.getpid(), 4))
    assert not tiles._survives_a_product()
    monkeypatch.setattr(torch, "mm", lambda *_: None)
    assert tiles._survives_a_product()


@pytest.mark.parametrize("first", ["", "bw.load('mini', device='cpu').embed(['as it is']); "], ids=["at once", "later"])
def test_a_model_computes_in_bfloat16_on_this_very_machine(first):
    code = f"import bertworks as bw; {first}print(bw.load('mini', device='cpu', dtype='bfloat16').embed(['a']).shape)"
    environment = {name: value for name, value in os.environ.items() if name != ISA}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "(1, 256)\n"), ended.stderr
