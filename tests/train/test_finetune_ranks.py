"""Fine-tuning on two ranks: what one does, whether each has the network whole or a part of it."""

import pytest
import torch
import torch._dynamo  # which FSDP2 needs too; here, or every forked rank would import them
import torch.distributed.fsdp
from forked_ranks import run_ranks
from small_models import write_small_model
from tiny_runs import lines_of
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.errors import CannotResume
from bertworks.finetuning.finetune import finetune

SETTINGS = (*QUICK, "task.dropout=0.1", "train.slices=2", "train.epochs=3")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    train, dev = write_task(folder, "classify")
    return {"model": write_small_model(folder / "model", **SIZES), "train": train, "dev": dev, "device": "cpu"}


def test_a_spread_run_goes_on_with_one_rank_but_not_as_a_whole_one(task, tmp_path):
    run, spread = tmp_path / "run", (*SETTINGS, "train.shard=true")

    def work(_):
        finetune("classify", out=run, overrides=(*spread, "train.epochs=1"), **task)

    for rank in run_ranks(2, work, tmp_path / "said"):
        assert rank.code == 0, rank.said
    with pytest.raises(CannotResume, match=r"\(train.shard was True, not False\)"):
        finetune("classify", out=run, overrides=SETTINGS, resume=True, **task)
    assert finetune("classify", out=run, overrides=spread, resume=True, **task).reason == "steps"
    assert len([line for line in lines_of(run) if "dev_loss" in line]) == 3


@pytest.mark.parametrize("more", [(), ("train.shard=true",), ("train.shard=true", "task.average=0.5")])
def test_two_ranks_measure_and_keep_what_one_does(task, tmp_path, more):
    alone = [setting for setting in more if "shard" not in setting]
    finetune("classify", out=tmp_path / "one", overrides=(*SETTINGS, *alone), **task)

    def work(_):
        finetune("classify", out=tmp_path / "two", overrides=(*SETTINGS, *more), **task)

    for rank in run_ranks(2, work, tmp_path / "said"):
        assert rank.code == 0, rank.said
    losses = [[line["dev_loss"] for line in lines_of(tmp_path / run) if "dev_loss" in line] for run in ("one", "two")]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    one, two = (bw.load(tmp_path / run).net.state_dict() for run in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-4, msg=name)
