"""The paper's baselines through the one fine-tuning: learnt, resumed to the last bit, loaded and asked."""

import json
import shutil

import pytest
import torch
from small_models import write_small_elmo, write_small_gpt, write_small_model
from sweeps import some_of
from tiny_runs import files_of, lines_of
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune

LONGER = ("train.epochs=12", "optim.lr=4e-3", "task.dropout=0.0", "train.save_every=1000")
ONE_EPOCH = ("train.epochs=1", "train.log_every=1")
CONSTANT = ("optim.schedule=constant", "optim.warmup=2", "train.epochs=3")
# Chance: half of the classes and endings, no correlation and no entities, a third of the answers.
LEAST = {"classify": 0.85, "regress": 0.9, "multilabel": 0.8, "choose": 0.75, "tag": 0.8, "answer": 60}
BASELINES = {
    "ltr": {"model": "ltr"},
    "rtl": {"model": "rtl"},
    "ltr+bilstm": {"model": "ltr", "overrides": ["task.bilstm=true"]},
    "ltr and rtl": {"model": "ltr", "beside": "rtl"},
    "gpt": {"model": "gpt"},
}
NEW = ("ltr+bilstm", "ltr and rtl", "gpt")  # the others are BERTs with nothing on top


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, direction in (("ltr", "left_to_right"), ("rtl", "right_to_left")):
        write_small_model(folder / name, {"mlm": 0}, direction=direction, **(SIZES | {"max_position_embeddings": 48}))
    write_small_gpt(folder / "gpt", n_positions=48, n_embd=32, n_layer=1)
    write_small_elmo(folder / "elmo")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {kind: dict(zip(("train", "dev"), write_task(folder / kind, kind), strict=True)) for kind in LEAST}


def tuned(models, files, run, baseline, kind="classify", overrides=(), **more):
    options = BASELINES[baseline]
    beside = models / options["beside"] if "beside" in options else None
    overrides = (*QUICK, "task.max_length=48", *overrides, *options.get("overrides", ()))
    return finetune(
        kind, model=models / options["model"], beside=beside, out=run, overrides=overrides, device="cpu",
        **(files[kind] | more),
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(models, files, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished")
    runs = {}
    for baseline in NEW:
        run = folder / baseline.replace(" ", "-")
        runs[baseline] = run, tuned(models, files, run, baseline, overrides=CONSTANT)
    return runs


@pytest.mark.parametrize(
    ("baseline", "kind"),
    some_of(
        [
            ("ltr", "classify"),
            ("rtl", "regress"),
            ("ltr+bilstm", "choose"),
            ("ltr and rtl", "multilabel"),
            ("gpt", "classify"),
            ("gpt", "choose"),
            ("ltr+bilstm", "answer"),
            ("ltr and rtl", "answer"),
            ("ltr", "tag"),
            ("gpt", "tag"),
        ]
    ),
)
def test_a_separable_task_is_learnt(models, files, tmp_path, baseline, kind):
    outcome = tuned(models, files, tmp_path / "run", baseline, kind, LONGER)
    assert outcome.score >= LEAST[kind]


@pytest.mark.parametrize("baseline", NEW)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(models, files, finished, tmp_path, baseline):
    """F1: the state of what is on top is in the checkpoint too."""
    run = tmp_path / "run"
    tuned(models, files, run, baseline, overrides=(*CONSTANT, "train.max_steps=11"))
    tuned(models, files, run, baseline, overrides=CONSTANT, resume=True)
    whole, parts = files_of(finished[baseline][0]), files_of(run)
    names = [name for name in whole if name.endswith(".safetensors")]
    assert len(names) == 3
    assert all(whole[name] == parts[name] for name in names)


@pytest.mark.parametrize("baseline", NEW)
def test_a_model_comes_back_from_its_folder_and_from_a_copy_of_it(finished, tmp_path, baseline):
    run, outcome = finished[baseline]
    model = bw.load(run, device="cpu")
    texts = ["the cat sat on a mat", "a dog", "", "far away the dog ran"]
    said = model.classify(texts)
    assert [len(one["scores"]) for one in said] == [2] * 4
    model.save(tmp_path / "copy")
    assert bw.load(tmp_path / "copy", device="cpu").classify(texts) == said
    alone = [model.classify([text])[0]["score"] for text in texts]
    assert alone == pytest.approx([one["score"] for one in said], abs=1e-5)
    assert model.about["metrics"]["dev_accuracy"] == outcome.score


@pytest.mark.parametrize("baseline", NEW)
def test_a_random_start_draws_everything(models, files, finished, tmp_path, baseline):
    run = tmp_path / "run"
    tuned(models, files, run, baseline, overrides=("train.epochs=1",), init="random")
    model = bw.load(run, device="cpu")
    drawn = model.about["provenance"]["start"]["drawn"]
    assert {name for name, _ in model.net.named_parameters()} <= set(drawn)
    started = bw.load(finished[baseline][0], device="cpu").about["provenance"]["start"]["drawn"]
    assert not any("blocks" in name or "embeddings" in name or "position" in name for name in started)
    if baseline == "ltr+bilstm":
        assert any(name.startswith("bilstm.") for name in started)


@pytest.mark.parametrize("baseline", NEW)
def test_frozen_encoders_stay_and_what_is_on_top_learns(models, files, tmp_path, baseline):
    run = tmp_path / "run"
    frozen = ("task.freeze=all", "train.epochs=2", "train.save_every=3", "train.keep=9")
    tuned(models, files, run, baseline, overrides=frozen, init="random")
    first, second = (bw.load(run / f"checkpoints/step-000000{step}", device="cpu").net for step in ("03", "12"))
    layers = tuple(name for stack in first.stacks() for names in stack for name in names)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, second.get_parameter(name)) == name.startswith(layers), name


def test_only_the_lowest_layers_of_every_encoder_are_frozen_and_rates_fall_in_each(models, files, tmp_path):
    from bertworks.finetuning.network import freeze_layers, num_layers, rate_scales, refused_sizes
    from bertworks.finetuning.settings import TaskSettings
    from bertworks.nn.bilstm import Compound
    from bertworks.nn.config import BertConfig, CompoundConfig

    small = BertConfig(vocab_size=5, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
    deep = small.model_copy(update={"num_hidden_layers": 3})
    net = Compound(CompoundConfig(encoders=(small, deep), num_lstm_layers=1, num_cells=4), {"classify": 2})
    scales = rate_scales(net, 0.5)
    assert scales["encoders.0.blocks.1.up.weight"] == scales["encoders.1.blocks.2.up.weight"] == 0.5
    assert scales["encoders.0.embeddings.token.weight"] == 0.125
    assert scales["encoders.1.embeddings.token.weight"] == 0.0625
    assert not [name for name in scales if name.startswith(("bilstm", "pooler", "heads"))]
    freeze_layers(net, 1)
    kept = {name for name, weight in net.named_parameters() if not weight.requires_grad}
    assert {name.split(".")[2] for name in kept} == {"embeddings", "blocks"}
    assert {name.split(".")[3] for name in kept if ".blocks." in name} == {"0"}
    (problem,) = refused_sizes(TaskSettings(freeze=4), 512, num_layers(net), tmp_path)
    assert "the model has 3 layers" in problem


def test_the_language_model_of_gpt_learns_beside_the_task_by_its_weight(models, files, finished, tmp_path):
    run, _ = finished["gpt"]
    lines = [line for line in lines_of(run) if "lr" in line]
    assert all(line["loss"] == pytest.approx(line["classify_loss"] + line["lm_loss"]) for line in lines)
    assert lines[-1]["lm_loss"] < lines[0]["lm_loss"]
    tuned(models, files, tmp_path / "off", "gpt", overrides=("task.lm_weight=0", "train.epochs=1"))
    assert not any("lm_loss" in line for line in lines_of(tmp_path / "off"))
    first = [
        lines_of(tmp_path / name)[0]["lm_loss"]
        for name, weight in (("half", 0.5), ("tenth", 0.1))
        if tuned(models, files, tmp_path / name, "gpt", overrides=(f"task.lm_weight={weight}", *ONE_EPOCH))
    ]
    assert first[0] == pytest.approx(5 * first[1], rel=1e-4)


def test_new_pieces_of_gpt_have_rows_drawn_from_the_seed_and_all_others_are_its_own(models, files, tmp_path):
    from bertworks.finetuning.finetune import open_task_start
    from bertworks.finetuning.settings import settings_for
    from bertworks.tasks.heads import kind_of
    from bertworks.tasks.own_files import open_own

    task = open_own("classify", files["classify"]).task
    settings = settings_for(task, ["task.max_length=48"]).task
    opened = [
        open_task_start(models / "gpt", tmp_path, task, kind_of(task), settings, seed=seed, is_random=False)
        for seed in (1, 1, 2)
    ]
    old = bw.load(models / "gpt", device="cpu").net.token.weight
    tables = [start.net.token.weight.detach() for start in opened]
    assert all(torch.equal(table[: len(old)], old) for table in tables)
    assert len(tables[0]) == len(old) + 3
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0][len(old) :], tables[2][len(old) :])
    assert tables[0][len(old) :].std() < 0.05  # of its initialisation, not of what the small model was filled with


def test_a_batch_in_slices_has_the_loss_of_the_whole(models, files, tmp_path):
    """Also where the last batch is too short for as many slices: what fills it up teaches no language either."""
    scores = []
    for slices in (1, 5):
        run = tmp_path / str(slices)
        overrides = (f"train.slices={slices}", "train.batch_size=93", "task.dropout=0.0", "train.log_every=1")
        tuned(models, files, run, "gpt", overrides=(*overrides, "train.epochs=3"))
        scores.append([line["loss"] for line in lines_of(run) if "lr" in line])
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


def write_mrpc(folder, count=24):
    folder.mkdir()
    rows = ["\t".join(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"))]
    rows += [f"{n % 2}\t{n}\t{n}\tthe cat sat\t{'a cat' if n % 2 else 'a dog ran far away'}" for n in range(count)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def test_gpt_says_the_same_of_a_paraphrase_in_either_order_and_not_of_what_has_an_order(models, tmp_path):
    write_mrpc(tmp_path / "MRPC")
    run = tmp_path / "run"
    finetune(
        "mrpc", model=models / "gpt", data=tmp_path, out=run, device="cpu",
        overrides=(*QUICK, "task.max_length=21", "train.epochs=2"),
    )  # fmt: skip
    model = bw.load(run, device="cpu")
    pairs = [("the cat sat on the mat", "a dog ran"), ("dog", "the big cat sat far away"), ("a b c d e", "f g h i j k")]
    for first, second in pairs:
        assert model.classify([first], [second]) == model.classify([second], [first])
    assert json.loads((run / "model/config.json").read_text())["both_orders"] is True
    model.save(tmp_path / "copy")
    copy = bw.load(tmp_path / "copy", device="cpu")
    assert copy.classify(*[[text] for text in pairs[0]]) == model.classify(*[[text] for text in pairs[0]])
    copy.net.both_orders = False
    assert copy.classify([pairs[0][0]], [pairs[0][1]]) != copy.classify([pairs[0][1]], [pairs[0][0]])


def test_a_baseline_is_a_start_for_another_task(models, files, finished, tmp_path):
    """As RTE starts from MNLI: encoders and BiLSTM come along, and the head where labels are the same."""
    for name in ("ltr+bilstm", "gpt"):
        run = tmp_path / name
        finetune(
            "classify", model=finished[name][0], out=run, overrides=[*QUICK, "task.max_length=48", "train.epochs=1"],
            device="cpu", **files["classify"],
        )  # fmt: skip
        assert bw.load(run, device="cpu").about["provenance"]["start"]["drawn"] == []
    other = {}
    for split, path in files["classify"].items():
        other[split] = tmp_path / path.name
        other[split].write_text(path.read_text().replace("about ", "of "))
    finetune(
        "classify", model=finished["gpt"][0], out=tmp_path / "other", device="cpu",
        overrides=[*QUICK, "task.max_length=48", "train.epochs=1"], **other,
    )  # fmt: skip
    assert bw.load(tmp_path / "other").about["provenance"]["start"]["drawn"] == ["heads.classify.weight"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "gpt", "overrides": ["task.bilstm=true"]}, "is a GPT-1, and task.bilstm is for BERTs"),
        ({"model": "gpt", "beside": "rtl"}, "is a GPT-1, and --with is for BERTs"),
        ({"model": "ltr", "beside": "gpt"}, "is not a BERT; --with takes one of the other direction"),
        ({"model": "ltr", "overrides": ["task.lm_weight=0.5"]}, "task.lm_weight is for a GPT-1"),
        ({"model": "ltr", "overrides": ["task.freeze=2"]}, "the model has 1 layer"),
        ({"model": "gpt", "overrides": ["task.max_length=49"]}, "task.max_length 49 is more than the 48 positions"),
        ({"model": "ltr", "beside": "nowhere"}, "no model"),
        ({"model": "ltr", "overrides": ["task.lm_weight=-1"]}, "task.lm_weight: -1 is too small"),
    ],
)
def test_what_does_not_go_together_is_told_in_a_line(models, files, tmp_path, options, said):
    beside = models / options["beside"] if "beside" in options else None
    overrides = [*QUICK, "task.max_length=48", *options.get("overrides", ())]
    with pytest.raises(UserError, match=said):
        finetune(
            "classify", model=models / options["model"], beside=beside, out=tmp_path / "run", overrides=overrides,
            device="cpu", **files["classify"],
        )  # fmt: skip


def test_two_models_must_have_one_vocabulary(models, files, tmp_path):
    other = write_small_model(tmp_path / "other", direction="right_to_left", **SIZES)
    vocabulary = other / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("cat", "cow"))
    options = {"model": models / "ltr", "out": tmp_path / "run", "device": "cpu", "overrides": QUICK}
    with pytest.raises(UserError, match="must have the same vocabulary"):
        finetune("classify", beside=other, **options, **files["classify"])


def test_a_run_of_two_models_goes_on_without_them_but_not_with_others(models, files, finished, tmp_path):
    run = shutil.copytree(finished["ltr and rtl"][0], tmp_path / "run")
    options = {"out": run, "device": "cpu", "overrides": [*QUICK, "task.max_length=48", *CONSTANT], "resume": True}
    gone = tmp_path / "gone"
    assert finetune("classify", model=gone, beside=gone, **options, **files["classify"]).reason == "steps"
    other = write_small_model(tmp_path / "other", hidden_size=8)
    with pytest.raises(UserError, match="whose weights are not those of"):
        finetune("classify", model=models / "ltr", beside=other, **options, **files["classify"])
    # Without a second one it is the recorded one. Where none is recorded there is only one, and that is another run.
    assert finetune("classify", model=models / "ltr", **options, **files["classify"]).reason == "steps"
    (run / "inputs.json").unlink()
    with pytest.raises(UserError, match="whose weights are not those of"):
        finetune("classify", model=models / "ltr", **options, **files["classify"])


@pytest.mark.parametrize("baseline", NEW)
def test_half_precision_comes_to_about_the_same(models, files, tmp_path, baseline):
    """The LSTMs and the embeddings stay in full; what is measured is a copy in half precision."""
    losses = []
    for dtype in ("float32", "bfloat16"):
        run = tmp_path / dtype
        tuned(models, files, run, baseline, overrides=(*ONE_EPOCH, "task.dropout=0.0", f"train.dtype={dtype}"))
        losses.append([line["loss"] for line in lines_of(run) if "lr" in line])
        weights = dict(bw.load(run, device="cpu").net.named_parameters())
        assert all(weight.dtype == torch.float32 for weight in weights.values())
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    assert len(bw.load(tmp_path / "bfloat16", device="cpu", dtype="bfloat16").classify(["a cat", "the dog"])) == 2
