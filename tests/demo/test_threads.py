"""The demo computes with one thread, and gives the others back."""

import pytest
import torch

from bertworks.demo.run import one_thread


@pytest.fixture
def two_threads():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


def test_there_is_one_thread_inside_and_as_many_as_before_after_it(two_threads):
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error(two_threads):
    with pytest.raises(KeyboardInterrupt), one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


def test_both_trainings_are_done_so(two_threads, monkeypatch, tmp_path):
    from bertworks.demo import stages as pretraining
    from bertworks.demo import stages as tuning
    from bertworks.demo.run import Show
    from bertworks.recipe import Recipe

    class SeenError(Exception):
        pass

    def look(*_, **__):
        raise SeenError(torch.get_num_threads())

    monkeypatch.setattr("bertworks.train.pretrain.pretrain", look)
    monkeypatch.setattr("bertworks.finetuning.finetune.finetune", look)
    show = Show(Recipe(), [], tmp_path, quiet=True)
    for train in (lambda: pretraining.pretrained(show), lambda: tuning.finetuned(show, tmp_path)):
        with pytest.raises(SeenError, match=r"^1$"):
            train()
