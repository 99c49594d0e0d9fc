"""Fine-tuning on a GPU: what is replayed is what would be computed, a run goes on exactly, every kind learns."""

import pytest
import torch
from small_models import write_small_elmo, write_small_gpt, write_small_model
from tiny_runs import files_of, lines_of
from toy_tasks import QUICK, write_task

import bertworks as bw
from bertworks.finetuning.finetune import finetune, open_task_start
from bertworks.finetuning.session import prepare
from bertworks.finetuning.settings import settings_for
from bertworks.tasks.heads import KINDS, kind_of, to_batch
from bertworks.tasks.own_files import open_own
from bertworks.train.cuda_graph import Replayed
from bertworks.train.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
LEARN = (*QUICK, "train.epochs=25", "optim.lr=2e-3", "task.dropout=0.0", "task.doc_stride=4", "train.save_every=1000")
LEAST = {"classify": 0.95, "regress": 0.95, "multilabel": 0.85, "choose": 0.85, "tag": 0.9, "answer": 85}


def trainer_of(tmp_path, kind, dropout):
    train, dev = write_task(tmp_path / "files", kind)
    model = write_small_model(tmp_path / "model", **SIZES)
    dataset = open_own(kind, {"train": train, "dev": dev})
    settings = settings_for(dataset.task, (*QUICK, f"task.dropout={dropout}"))
    start = open_task_start(
        model, tmp_path / "run", dataset.task, kind_of(dataset.task), settings.task, seed=0, is_random=False
    )
    task = prepare(settings, dataset, start)
    return Trainer(task, task.settings, tmp_path / "run", torch.device("cuda"))


def gradient_of(trainer, compute, batch, counts):
    torch.cuda.manual_seed(5)
    trainer.optimizer.clear_gradients()
    sums = compute(batch, counts)
    return sums.clone(), torch.cat([grad.flatten() for grad in trainer.optimizer.gradients()]).clone()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_replay_gives_the_gradient_of_the_plain_step(tmp_path, kind, dropout):
    trainer = trainer_of(tmp_path, kind, dropout)
    assert trainer.replays
    replayed = Replayed(trainer.model, trainer.optimizer.weights())

    def plain(batch, counts):
        loss, sums = trainer.model(batch, counts)
        loss.backward()
        return sums

    layout = trainer.task.feed._layout
    for numbers in (range(16), range(16, 32), range(16)):
        batch = to_batch(trainer.task.items, numbers, layout)
        on_gpu = to_batch(trainer.task.items, numbers, layout._replace(device=torch.device("cuda")))
        counts = torch.tensor([float(batch.weights.sum())])
        sums, gradient = gradient_of(trainer, replayed, batch, counts)
        expected_sums, expected = gradient_of(trainer, plain, on_gpu, counts.cuda())
        torch.testing.assert_close(sums, expected_sums, rtol=1e-3, atol=1e-3)
        assert torch.cosine_similarity(gradient, expected, dim=0) > 0.999
    again = gradient_of(trainer, replayed, batch, counts)[1]
    torch.testing.assert_close(again, gradient, rtol=1e-3, atol=1e-5)


def test_parts_of_a_batch_are_added_up(tmp_path):
    trainer = trainer_of(tmp_path, "classify", 0.0)
    replayed = Replayed(trainer.model, trainer.optimizer.weights())
    counts = torch.tensor([16.0])
    batches = [to_batch(trainer.task.items, numbers, trainer.task.feed._layout) for numbers in (range(8), range(8, 16))]
    alone = [gradient_of(trainer, replayed, batch, counts)[1] for batch in batches]
    trainer.optimizer.clear_gradients()
    for batch in batches:
        replayed(batch, counts)
    together = torch.cat([grad.flatten() for grad in trainer.optimizer.gradients()])
    torch.testing.assert_close(together, alone[0] + alone[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_is_learnt(tmp_path, kind):
    train, dev = write_task(tmp_path / "files", kind)
    model = write_small_model(tmp_path / "model", **SIZES)
    outcome = finetune(kind, model=model, train=train, dev=dev, out=tmp_path / "run", device="cuda", overrides=LEARN)
    assert outcome.score >= LEAST[kind]


def test_a_stopped_run_goes_on_exactly(tmp_path):
    train, dev = write_task(tmp_path / "files", "classify")
    model = write_small_model(tmp_path / "model", **SIZES)
    options = {"model": model, "train": train, "dev": dev, "device": "cuda"}
    settings = (*QUICK, "train.epochs=3", "train.deterministic=true")
    finetune("classify", out=tmp_path / "whole", overrides=settings, **options)
    stopped = (*settings, "train.max_minutes=1e-9")
    assert finetune("classify", out=tmp_path / "parts", overrides=stopped, **options).reason == "minutes"
    finetune("classify", out=tmp_path / "parts", overrides=settings, resume=True, **options)
    for folder in ("model", "checkpoints"):
        assert files_of(tmp_path / "parts" / folder) == files_of(tmp_path / "whole" / folder)


BASELINES = {
    "left to right": {"model": "ltr"},
    "right to left": {"model": "rtl"},
    "under a BiLSTM": {"model": "ltr", "overrides": ["task.bilstm=true"]},
    "side by side": {"model": "ltr", "beside": "rtl"},
    "gpt": {"model": "gpt"},
    "elmo": {"model": "elmo", "overrides": ["task.cells=32", "optim.clip=5.0"]},
}


@pytest.mark.parametrize("kind", ["classify", "tag"])
@pytest.mark.parametrize("name", list(BASELINES))
def test_baselines_learn_and_are_loaded(tmp_path, name, kind):
    """In half precision, but for ELMo; a model that was written opens on the CPU too."""
    sizes = SIZES | {"max_position_embeddings": 48}
    for direction, folder in (("left_to_right", "ltr"), ("right_to_left", "rtl")):
        write_small_model(tmp_path / folder, {"mlm": 0}, direction=direction, **sizes)
    write_small_gpt(tmp_path / "gpt", n_positions=48, n_embd=32, n_layer=1)
    write_small_elmo(tmp_path / "elmo")
    options = BASELINES[name]
    train, dev = write_task(tmp_path / "files", kind)
    longer = ("task.max_length=48", "task.dropout=0.0", "train.epochs=15", "optim.lr=4e-3")
    overrides = (*QUICK, *longer, *options.get("overrides", ()))
    finetune(
        kind, model=tmp_path / options["model"], train=train, dev=dev, out=tmp_path / "run", device="cuda",
        beside=tmp_path / options["beside"] if "beside" in options else None, overrides=overrides,
    )  # fmt: skip
    assert is_learnt(tmp_path / "run", kind)
    for device in ("cpu", "cuda"):
        assert bw.load(tmp_path / "run", device=device).task.kind == kind


def is_learnt(run, kind):
    losses = [line[f"{kind}_loss"] for line in lines_of(run) if "lr" in line]
    return losses[-1] < 0.95 * losses[0]


def test_frozen_features_are_learnt_from(tmp_path):
    train, dev = write_task(tmp_path / "files", "tag")
    model = write_small_model(tmp_path / "model", **SIZES)
    settings = (*QUICK, "task.features=last", "task.cells=32", "optim.lr=1e-2")
    finetune("tag", model=model, train=train, dev=dev, out=tmp_path / "run", device="cuda", overrides=settings)
    assert is_learnt(tmp_path / "run", "tag")
