"""A run that starts from a model: with its weights, its sizes and its words, and what is told when they do not fit."""

import json
import shutil

import pytest
import tiny_runs
import torch
from tiny_runs import files_of, lines_of

import bertworks as bw
from bertworks.data.prepare import prepare
from bertworks.errors import UserError
from bertworks.models.kinds import read_model, write_model
from bertworks.models.weights import read_weights, write_weights
from bertworks.nn.bert import Bert
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.pretrain import pretrain
from bertworks.train.warm_start import splitter, widened

PIECES = [*SPECIAL_TOKENS, ".", *tiny_runs.WORDS]
NEW = ["word1word2", "##word3word4", "unheard"]


def recipe(**changes):
    """A recipe that says nothing of the model."""
    values = tiny_runs.recipe(**changes).model_dump(exclude_unset=True)
    values["model"] = {key: value for key, value in values["model"].items() if f"model__{key}" in changes}
    return tiny_runs.validate(tiny_runs.Recipe, values, "a test")


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """A model that was trained for 40 steps."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("model") / "run"
    pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu")
    return run


def more_data(folder, pieces, **rules):
    folder.mkdir()
    lines = [f"word{number} word{number + 1} unheard word1word2 word3." for number in range(30)]
    (folder / "text.txt").write_text("\n\n".join("\n".join([line, line]) for line in lines))
    prepare(Corpus([folder / "text.txt"]), Tokenizer(pieces, **rules), folder / "data", holdout=0.2, workers=1)
    return folder / "data"


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Data with three words more in its vocabulary."""
    return more_data(tmp_path_factory.mktemp("more") / "more", [*PIECES, "##word2", *NEW])


def weights_of(folder):
    return dict(read_model(folder).net.named_parameters())


# What a run begins with


def test_a_run_begins_where_the_model_is(model, data, tmp_path):
    """Its weights to the last bit, and its accuracy on held-out documents."""
    run = tmp_path / "run"
    pretrain(recipe(train__max_steps=3), data=data, out=run, start_from=model, device="cpu")
    before, first = lines_of(model)[-1], lines_of(run)[0]
    assert first["step"] == 0
    assert {**first, "step": 40} == before
    found, expected = (weights_of(folder) for folder in (run / "checkpoints/step-00000000", model / "model"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    after = weights_of(run / "model")
    assert not torch.equal(after["blocks.0.qkv.weight"], expected["blocks.0.qkv.weight"])


def test_the_model_says_what_it_started_from(model, data, tmp_path):
    notes = []
    pretrain(
        recipe(train__max_steps=2), data=data, out=tmp_path / "run", start_from=model, device="cpu", note=notes.append
    )
    assert notes[:1] == [f"starting from {model}: 0 new words"]
    start = bw.load(tmp_path / "run").about["provenance"]["start"]
    assert start["model"] == str(model)
    manifest = json.loads((model / "model/manifest.json").read_text())
    assert start["weights"] == {"model.safetensors": manifest["files"]["model.safetensors"]["sha256"]}
    assert (start["new_words"], start["drawn"], start["left_out"]) == (0, [], [])


def test_the_rates_to_fine_tune_at_stay_unless_the_model_is_made_wider(model, data, tmp_path):
    rated, rates = shutil.copytree(model / "model", tmp_path / "rated"), {"lr": 2e-4, "lr_grid": [2e-4, 1e-4]}
    about = json.loads((rated / "bertworks.json").read_text())
    (rated / "bertworks.json").write_text(json.dumps(about | {"finetune": rates}))
    few = recipe(train__max_steps=2)
    pretrain(few, data=data, out=tmp_path / "run", start_from=rated, device="cpu")
    assert bw.load(tmp_path / "run").about["finetune"] == rates
    pretrain(recipe(train__max_steps=3), data=data, out=tmp_path / "more", start_from=tmp_path / "run", device="cpu")
    assert bw.load(tmp_path / "more").about["finetune"] == rates
    wider = recipe(train__max_steps=2, model__preset="1x64x4")
    pretrain(wider, data=data, out=tmp_path / "wider", start_from=rated, device="cpu")
    assert "finetune" not in bw.load(tmp_path / "wider").about


def as_half(model, folder, dtype):
    folder = shutil.copytree(model / "model", folder)
    tensors = read_weights(folder / "model.safetensors")
    write_weights(folder / "model.safetensors", {name: tensor.to(dtype) for name, tensor in tensors.items()})
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_trained_in_full(model, data, tmp_path, dtype):
    half = as_half(model, tmp_path / "half", dtype)
    pretrain(recipe(train__max_steps=2), data=data, out=tmp_path / "run", start_from=half, device="cpu")
    found, expected = weights_of(tmp_path / "run/checkpoints/step-00000000"), weights_of(half)
    for name, weight in expected.items():
        assert weight.dtype == dtype
        assert torch.equal(found[name], weight.float())


def stripped(model, folder, heads, *, pooler):
    """The model with some heads only, as other people's folders are."""
    opened = read_model(model / "model").net
    net = Bert(opened.config, heads, pooler=pooler)
    for name, parameter in net.named_parameters():
        parameter.data.copy_(opened.get_parameter(name) if name in dict(opened.named_parameters()) else 0.5)
    folder.mkdir()
    write_model(folder, net)
    Tokenizer(PIECES).save(folder)
    return folder


@pytest.mark.parametrize(
    ("heads", "pooler", "said"),
    [
        ({"mlm": 0}, False, "; nsp head, pooler drawn from the seed"),
        ({}, True, "; mlm head, nsp head drawn from the seed"),
        ({"classify": 3}, True, "; mlm head, nsp head drawn from the seed; classify head left out"),
    ],
)
def test_what_the_model_lacks_is_drawn_from_the_seed_and_said(model, data, tmp_path, heads, pooler, said):
    folder = stripped(model, tmp_path / "model", heads, pooler=pooler)
    notes, found = [], []
    for name in ("one", "two"):
        options = {"data": data, "out": tmp_path / name, "start_from": folder, "device": "cpu", "note": notes.append}
        pretrain(recipe(train__max_steps=1), **options)
        found.append(weights_of(tmp_path / name / "checkpoints/step-00000000"))
    assert [note for note in notes if "starting" in note] == [f"starting from {folder}: 0 new words{said}"] * 2
    expected = weights_of(folder)
    assert all(torch.equal(found[0][name], expected[name]) for name in found[0].keys() & expected.keys())
    drawn = found[0]["heads.nsp.out.weight"]
    assert 0 < drawn.abs().max() <= 0.04
    assert torch.equal(drawn, found[1]["heads.nsp.out.weight"])
    assert found[0].keys() > {"heads.mlm.bias", "pooler.weight"}


def test_masked_words_alone_leave_the_other_head_out(model, data, tmp_path):
    settings = recipe(train__max_steps=1, data__objective="mlm")
    pretrain(settings, data=data, out=tmp_path / "run", start_from=model, device="cpu")
    opened = bw.load(tmp_path / "run")
    assert list(opened.net.heads) == ["mlm"]
    assert opened.about["provenance"]["start"]["left_out"] == ["nsp head", "pooler"]


# New words


def test_new_words_begin_as_the_mean_of_their_old_pieces(model, tmp_path):
    old = Tokenizer([*PIECES, "##word2", "##word3", "##word4"])
    split = splitter(old)
    ids = {piece: id for id, piece in enumerate(old.pieces)}
    assert split("word1word2") == [ids["word1"], ids["##word2"]]
    assert split("##word3word4") == [ids["##word3"], ids["##word4"]]
    assert split("word1") == [ids["word1"]]
    for unknown in ("unheard", "##unheard", "", "##"):
        assert split(unknown) == [ids["[UNK]"]]


def test_rows_and_biases_of_new_words_are_means_and_the_rest_is_as_it_was(model, extended, tmp_path):
    notes = []
    options = {"data": extended, "out": tmp_path / "run", "start_from": model, "device": "cpu", "note": notes.append}
    pretrain(recipe(train__max_steps=2), **options)
    assert notes[:1] == [f"starting from {model}: 4 new words"]
    found, old = weights_of(tmp_path / "run/checkpoints/step-00000000"), weights_of(model / "model")
    ids = {piece: id for id, piece in enumerate(PIECES)}
    for name in ("embeddings.token.weight", "heads.mlm.bias"):
        rows, known = found[name], old[name]
        assert len(rows) == len(PIECES) + 4
        assert torch.equal(rows[: len(PIECES)], known)
        # ##word2 and ##word3word4 have no old pieces, word1word2 is not split by the old vocabulary either
        for row in rows[len(PIECES) :]:
            assert torch.equal(row, known[ids["[UNK]"]])
    assert found["heads.mlm.bias"].shape == (len(PIECES) + 4,)


def spaced(model, folder, dtype=torch.float32):
    """The model with pieces inside words, so that a new word has several; and with rows that no piece uses."""
    opened = read_model(model / "model").net
    pieces = [piece if not piece.startswith("word") or int(piece[4:]) < 20 else f"##{piece}" for piece in PIECES]
    config = opened.config.model_copy(update={"vocab_size": len(pieces) + 2})
    net = Bert(config, {"mlm": 0, "nsp": 2})
    for name, parameter in net.named_parameters():
        parameter.data.zero_()
        weight = opened.get_parameter(name)
        parameter.data[: len(weight)].copy_(weight)
    folder.mkdir()
    write_model(folder, net.to(dtype))
    Tokenizer(pieces).save(folder)
    return folder, pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mean_is_over_all_pieces_and_rows_that_filled_up_the_matrix_are_used_first(model, tmp_path, dtype):
    folder, pieces = spaced(model, tmp_path / "model", dtype)
    data = more_data(tmp_path / "more", [*pieces, "word1word20word21", "##word22word23", "word2word25"])
    pretrain(recipe(train__max_steps=1), data=data, out=tmp_path / "run", start_from=folder, device="cpu")
    found, old = weights_of(tmp_path / "run/checkpoints/step-00000000"), weights_of(folder)
    ids = {piece: id for id, piece in enumerate(pieces)}
    wanted = [["word1", "##word20", "##word21"], ["##word22", "##word23"], ["word2", "##word25"]]
    for name in ("embeddings.token.weight", "heads.mlm.bias"):
        assert len(old[name]) == len(pieces) + 2
        assert len(found[name]) == len(pieces) + 3
        for place, parts in enumerate(wanted):
            mean = torch.stack([old[name][ids[part]] for part in parts]).double().mean(0)
            torch.testing.assert_close(found[name][len(pieces) + place].double(), mean, rtol=1e-6, atol=1e-8)


def test_rows_without_a_piece_stay_where_no_word_needs_them(model, tmp_path):
    folder, pieces = spaced(model, tmp_path / "model")
    data = more_data(tmp_path / "more", pieces)
    pretrain(recipe(train__max_steps=1), data=data, out=tmp_path / "run", start_from=folder, device="cpu")
    assert bw.load(tmp_path / "run").net.config.vocab_size == len(pieces) + 2


def test_transformers_opens_the_result_and_splits_as_we_do(model, extended, tmp_path):
    transformers = pytest.importorskip("transformers")
    pretrain(recipe(train__max_steps=2), data=extended, out=tmp_path / "run", start_from=model, device="cpu")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model"), bw.load(tmp_path / "run")
    text = "word1 word1word2 unheard."
    assert theirs(text)["input_ids"] == ours.tokenizer.encode(text).ids
    assert ours.tokenizer.tokenize(text) == ["word1", "word1word2", "unheard", "."]
    net = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "run/model").eval()
    with torch.no_grad():
        logits = net(torch.tensor([theirs("unheard [MASK]")["input_ids"]])).prediction_logits[0, 2]
    best = ours.fill("unheard [MASK]", top_k=1)[0][0]
    assert int(logits.argmax()) == best["id"]
    assert float(logits.softmax(0).max()) == pytest.approx(best["score"], abs=1e-5)


# A wider model


def test_a_recipe_may_want_the_model_several_times_as_wide(model, data, tmp_path):
    """It guesses nearly what the narrow one guesses, says so, learns, and goes on by itself."""
    notes, run, wide = [], tmp_path / "run", recipe(train__max_steps=3, model__preset="1x64x4")
    pretrain(wide, data=data, out=run, start_from=model, device="cpu", note=notes.append)
    assert notes[:1] == [f"starting from {model}: widened from 1x32x2 to 1x64x4; 0 new words"]
    before, first = lines_of(model)[-1], lines_of(run)[0]
    assert first["step"] == 0
    for loss in ("holdout_mlm_loss", "holdout_nsp_loss"):
        assert first[loss] == pytest.approx(before[loss], rel=1e-3)
    found, expected = weights_of(run / "checkpoints/step-00000000"), widened(weights_of(model / "model"), 2, 0)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    opened = bw.load(run)
    assert (opened.net.config.hidden_size, opened.net.config.num_attention_heads) == (64, 4)
    assert opened.about["provenance"]["start"]["widened_from"] == "1x32x2"
    assert 'preset = "1x64x4"' in (run / "recipe.toml").read_text()
    longer = wide.model_copy(update={"train": wide.train.model_copy(update={"max_steps": 5})})
    for source in (None, model):
        pretrain(longer, data=data, out=run, start_from=source, device="cpu", resume=True)
    assert lines_of(run)[-1]["step"] == 5
    wider_still = recipe(train__max_steps=9, model__preset="1x128x8")
    with pytest.raises(
        UserError, match=r"1x128x8 is not the model's 1x64x4; leave it out, or set model.preset=1x64x4$"
    ):
        pretrain(wider_still, data=data, out=run, device="cpu", resume=True)


def test_a_wider_model_may_have_new_words_and_come_from_half_precision(model, extended, tmp_path):
    half = as_half(model, tmp_path / "half", torch.bfloat16)
    settings = recipe(train__max_steps=1, model__preset="1x96x6")
    pretrain(settings, data=extended, out=tmp_path / "run", start_from=half, device="cpu")
    found, old = weights_of(tmp_path / "run/checkpoints/step-00000000"), weights_of(half)
    rows = found["embeddings.token.weight"]
    assert rows.shape == (len(PIECES) + 4, 96)
    copies, known = rows.view(len(rows), 3, 32), old["embeddings.token.weight"].float()
    torch.testing.assert_close(copies[: len(PIECES)].mean(1), known)
    torch.testing.assert_close(copies[-1].mean(0), known[PIECES.index("[UNK]")])
    assert not torch.equal(copies[:, 0], copies[:, 2])


@pytest.mark.parametrize("preset", ["2x64x4", "1x64x2", "1x48x3", "1x16x1"])
def test_other_sizes_than_a_multiple_of_the_width_are_refused(model, data, tmp_path, preset):
    """More layers, wider heads, half as much again, or less: none of them computes nearly the same."""
    settings = recipe(train__max_steps=1, model__preset=preset)
    with pytest.raises(UserError, match=f"{preset} is not the model's 1x32x2; .* to widen it, 1x64x4, 1x96x6, "):
        pretrain(settings, data=data, out=tmp_path / "run", start_from=model, device="cpu")


# Going on


def test_a_run_that_was_stopped_goes_on_without_the_model(model, data, tmp_path):
    """P1: the checkpoint has all; also sizes, which the recipe does not say."""
    gone = shutil.copytree(model / "model", tmp_path / "gone")
    whole = recipe(optim__schedule="constant", train__max_steps=16)
    for name, limits in (("one", [16]), ("two", [1, 9, 16])):
        for number, limit in enumerate(limits):
            settings = whole.model_copy(update={"train": whole.train.model_copy(update={"max_steps": limit})})
            options = {"resume": True, "device": "cpu", "start_from": gone if not number else None}
            if name == "two" and number:
                shutil.rmtree(gone, ignore_errors=True)
            pretrain(settings, data=data, out=tmp_path / name, **options)
    one, two = (files_of(tmp_path / name) for name in ("one", "two"))
    for name in ("model/model.safetensors", "model/bertworks.json", "checkpoints/step-00000016/state.json"):
        assert one[name] == two[name]
    pretrain(whole, data=data, out=tmp_path / "two", device="cpu", resume=True, start_from=gone)


def test_the_resolved_recipe_has_the_models_sizes_and_goes_on(model, data, tmp_path):
    run = tmp_path / "run"
    pretrain(recipe(train__max_steps=5, model__dropout=0.2), data=data, out=run, start_from=model, device="cpu")
    text = (run / "recipe.toml").read_text()
    assert 'preset = "1x32x2"' in text
    assert "max_positions = 64" in text
    assert bw.load(run).net.config.attention_probs_dropout_prob == 0.2
    outcome = pretrain(run / "recipe.toml", data=data, out=run, resume=True, device="cpu")
    assert outcome.progress.step == 5


def test_another_model_or_a_run_without_one_is_refused_when_a_run_goes_on(model, data, tmp_path):
    run = tmp_path / "run"
    pretrain(recipe(train__max_steps=2), data=data, out=run, start_from=model, device="cpu")
    other = as_half(model, tmp_path / "other", torch.bfloat16)
    with pytest.raises(UserError, match=r"was started from .*, whose weights are not those of .*other"):
        pretrain(recipe(train__max_steps=4), data=data, out=run, start_from=other, device="cpu", resume=True)
    with pytest.raises(UserError, match="was not started from a model"):
        pretrain(tiny_runs.recipe(), data=data, out=model, start_from=other, device="cpu", resume=True)


def test_a_checkpoint_whose_provenance_is_nonsense_is_of_a_run_without_a_model(data, tmp_path):
    run = tmp_path / "run"
    pretrain(tiny_runs.recipe(train__max_steps=2), data=data, out=run, device="cpu")
    for content in ("[]", '{"provenance": 3}', '{"provenance": {"start": []}}', "{"):
        (run / "checkpoints/step-00000002/bertworks.json").write_text(content)
        with pytest.raises(UserError, match="is intact"):
            pretrain(tiny_runs.recipe(train__max_steps=4), data=data, out=run, device="cpu", resume=True)


# What does not fit


@pytest.mark.parametrize(
    ("pieces", "rules", "said"),
    [
        (PIECES[:-1], {}, r"id 45 is missing, and should be 'word39'"),
        ([*PIECES[:6], "other", *PIECES[7:]], {}, r"id 6 is 'other', and should be 'word0'"),
        ([*PIECES[:-2], PIECES[-1], PIECES[-2]], {}, r"id 44 is 'word39', and should be 'word38'"),
        (PIECES, {"lowercase": False}, "lowercase=false, strip_accents=false.*reads lowercase=true"),
    ],
)
def test_data_of_another_vocabulary_is_refused_and_told_the_way(model, tmp_path, pieces, rules, said):
    data = more_data(tmp_path / "more", pieces, **rules)
    with pytest.raises(UserError, match=rf"{said}.*; prepare it with `bertworks prepare CORPUS --vocab .*--extend"):
        pretrain(recipe(), data=data, out=tmp_path / "run", start_from=model, device="cpu")
    assert not (tmp_path / "run").exists()


def test_all_that_the_recipe_says_against_the_model_is_told_at_once(model, data, tmp_path):
    changes = {
        "model__preset": "2x64", "model__hidden_act": "relu", "model__max_positions": 32, "data__max_length": 65,
        "data__objective": "ltr",
    }  # fmt: skip
    with pytest.raises(UserError) as caught:
        pretrain(recipe(**changes), data=data, out=tmp_path / "run", start_from=model, device="cpu")
    said = str(caught.value)
    assert said.startswith("the recipe and the model that it starts from: 5 problems")
    for line in ("model.preset: 2x64 is not the model's 1x32x2; leave it out, or set model.preset=1x32x2; to widen it, "
                 "1x64x4, 1x96x6, ...",
                 "model.hidden_act: relu is not",
                 "model.max_positions: 32 is not the model's 64", "data.max_length: 65 is more than the model's 64",
                 "data.objective: ltr is not for a model whose direction is both"):  # fmt: skip
        assert line in said


@pytest.mark.parametrize("name", ["gpt", "elmo"])
def test_another_kind_of_model_is_told_to_be_that(model, data, tmp_path, name):
    """Before its sizes are read, which may have names that a BERT's have not."""
    with pytest.raises(UserError, match=f"model.kind: {name} is not the model's bert; choose another recipe"):
        pretrain(name, data=data, out=tmp_path / "run", start_from=model, device="cpu")


def test_a_recipe_that_says_the_models_sizes_in_other_words_agrees(model, data, tmp_path):
    settings = recipe(train__max_steps=1, model__preset="1x32x2", model__max_positions=64)
    assert pretrain(settings, data=data, out=tmp_path / "run", start_from=model, device="cpu").progress.step == 1


def test_pairs_need_a_model_with_two_segments(model, data, tmp_path):
    folder = shutil.copytree(model / "model", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"type_vocab_size": 1}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(read_weights(folder / "model.safetensors"))
    name = "bert.embeddings.token_type_embeddings.weight"
    write_weights(folder / "model.safetensors", tensors | {name: tensors[name][:1]})
    with pytest.raises(UserError, match="needs two segments"):
        pretrain(recipe(), data=data, out=tmp_path / "run", start_from=folder, device="cpu")
    settings = recipe(data__objective="mlm", train__max_steps=1)
    assert pretrain(settings, data=data, out=tmp_path / "run", start_from=folder, device="cpu").progress.step == 1


# In Python and on the command line


def test_a_recipe_may_be_given_by_name_with_overrides(data, tmp_path):
    overrides = ["model.preset=1x32x2", "train.max_steps=2", "data.max_length=32", "train.batch_size=4"]
    outcome = bw.pretrain("tiny-cpu", data=data, out=tmp_path / "run", overrides=overrides, device="cpu")
    assert outcome.progress.step == 2
    with pytest.raises(UserError, match="overrides are for a recipe"):
        bw.pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "other", overrides=overrides)


def test_the_command_starts_from_a_model_and_says_so(bertworks, model, data, tmp_path):
    arguments = ("pretrain", "continue", "train.max_steps=2", "data.max_length=32", "train.batch_size=4", "--from",
                 model, "--data", data, "--device", "cpu")  # fmt: skip
    code, out, err = bertworks(*arguments, "--out", tmp_path / "run")
    assert (code, "2 steps" in out) == (0, True)
    assert f"starting from {model}: 0 new words\n" in err
    code, out, err = bertworks(*arguments, "--dry-run", "--quiet")
    assert (code, out, err) == (0, "", "")
    alone = tuple(argument for argument in arguments if argument not in ("--from", model))
    for more in (("--out", tmp_path / "other"), ("--out", tmp_path / "other", "--resume"), ("--dry-run",)):
        code, _, err = bertworks(*alone, *more)
        assert (code, "the recipe continue trains a model further; give the model with --from MODEL" in err) == (
            2,
            True,
        )
    (tmp_path / "mine.toml").write_text('like = "continue"\n[train]\nmax_steps = 1\n')
    own = tuple(tmp_path / "mine.toml" if argument == "continue" else argument for argument in alone)
    for more in (("--out", tmp_path / "other"), ("--dry-run",)):
        code, _, err = bertworks(*own, *more)
        assert (code, "mine.toml, which is like continue, trains a model further" in err) == (2, True)
    code, _, err = bertworks(*arguments, "--dry-run", "--resume")
    assert (code, "leave out --resume" in err) == (2, True)
    code, _, err = bertworks(*arguments, "model.preset=base", "--out", tmp_path / "other")
    assert code == 2
    assert "model.preset: base is not the model's 1x32x2; leave it out" in err
    assert not (tmp_path / "other").exists()
