"""Every file that a command reads, changed at random: a result or a UserError comes of it, soon, and no traceback.

A folder is made once for each group of files. Then one of its files is changed again and again, and what commands call
is called on the folder. `make nightly` does that 2,000 times for each file, `make test` up to 100 times.
"""

import csv
import json
import logging
import os
import shutil
import time
import traceback
from contextlib import suppress

import mutations
import pytest
import tiny_runs
import torch
from calm_models import write_calm_model
from conll_files import write_conll
from models import google_reference, test_compound_folder, test_elmo_task_folder, test_feature_folder
from models.test_sentence_folders import dense, old, write_sentence_folder
from small_glue import write_rte
from small_models import PIECES, write_small_elmo, write_small_gpt, write_small_model
from toy_tasks import QUICK, ROWS, SIZES, write_rows, write_task

import bertworks as bw
from bertworks.config import DataSettings, to_toml
from bertworks.data.inspect import instances, summary
from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.files import exclusive, write_manifest
from bertworks.finetuning import glue_suite as glue
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.report import is_finetuned, write_finetune_report
from bertworks.finetuning.search import GridPlan, search
from bertworks.inference.describe import model_report, report_text
from bertworks.inference.evaluate import training_cost
from bertworks.models.convert import convert
from bertworks.models.weights import put_divided, read_weights
from bertworks.recipe import load_recipe
from bertworks.report.page import write_report
from bertworks.tasks import find_task
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import open_dataset
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.pretrain import pretrain

SOON_S = 5.0
TEXTS = ["the cat sat on the mat", "a big dog ran"]
ABOUT = {
    "task": {"name": "classify", "kind": "classify", "labels": ["no", "yes"], "is_pair": False, "score_range": None,
             "max_length": 16, "doc_stride": 4},
    "metrics": {"dev_accuracy": 0.5}, "problem": "classify", "threshold": 0.5, "units": "word",
    "provenance": {"start": {"model": "x", "weights": {"model.safetensors": "00"}, "init": "model"}, "steps": 3,
                   "examples": 9, "notes": ["a note"], "minutes": 0.5, "device": "cpu"},
}  # fmt: skip


# What commands call


def use_model(folder):
    """fill, nsp, embed, classify, tag, answer, choose, evaluate, inspect and --json."""
    report = model_report(str(folder))
    json.dumps(report).encode()
    report_text(report).encode()
    model = bw.load(folder, device="cpu")
    training_cost([model])
    for call in (
        lambda: model.fill("the [MASK] sat"),
        lambda: model.embed(TEXTS),
        lambda: model.classify(TEXTS),
        lambda: model.classify(TEXTS, TEXTS),
        lambda: model.tag(TEXTS),
        lambda: model.answer("who", "the cat sat on the mat far away"),
        lambda: model.choose("the", ["cat", "dog"]),
    ):
        with suppress(UserError, AttributeError):
            json.dumps(call(), default=lambda array: array.tolist()).encode()


def use_and_save(folder):
    use_model(folder)
    with suppress(UserError):
        bw.load(folder, device="cpu").save(folder.parent / "saved")
    for to, options in (("out", {"dtype": "bfloat16"}), ("google.ckpt", {})):
        with suppress(UserError):
            convert(folder, folder.parent / "converted" / to, **options)
    for name in ("saved", "converted"):
        shutil.rmtree(folder.parent / name, ignore_errors=True)


def use_tokenizer(folder):
    tokenizer = Tokenizer.from_folder(folder)
    json.dumps([tokenizer.encode(text).tokens for text in TEXTS], ensure_ascii=False).encode()


def use_google(folder):
    convert(folder, folder.parent / "converted")
    shutil.rmtree(folder.parent / "converted")


def use_run(folder):
    """Resume a run that is through."""
    pretrain(tiny_runs.recipe(**SHORT), data=folder / "data", out=folder / "run", resume=True, device="cpu", quiet=True)


def use_report(folder):
    assert not is_finetuned(folder / "run")
    write_report(folder / "run")


def use_finetune_report(folder):
    is_finetuned(folder / "run")
    write_finetune_report(folder / "run")


def use_other_settings(folder):
    pretrain(
        tiny_runs.recipe(**SHORT, optim__lr=1.0), data=folder / "data", out=folder / "run", resume=True, quiet=True
    )


def use_checkpoint(folder):
    (checkpoint,) = (folder / "run/checkpoints").iterdir()
    write_manifest(checkpoint)
    one_more = SHORT | {"train__max_steps": 4}
    pretrain(
        tiny_runs.recipe(**one_more), data=folder / "data", out=folder / "run", resume=True, device="cpu", quiet=True
    )


def use_finetuned(folder):
    run_task(folder, resume=True)


def use_finetuned_checkpoint(folder):
    (checkpoint,) = (folder / "run/checkpoints").iterdir()
    write_manifest(checkpoint)
    run_task(folder, resume=True, more=["train.epochs=2", "train.max_steps=3"])


def run_task(folder, more=(), **options):
    finetune(
        "classify", model=folder / "model", train=folder / "train.jsonl", dev=folder / "dev.jsonl", out=folder / "run",
        device="cpu", overrides=[*QUICK, "train.epochs=1", "train.keep=1", *more], quiet=True, **options,
    )  # fmt: skip


def use_grid(folder, resume=True):
    search(
        "classify", model=folder / "model", train=folder / "train.jsonl", dev=folder / "dev.jsonl", out=folder / "grid",
        device="cpu", overrides=[*QUICK, "train.epochs=1", "optim.lr=1e-3"], plan=GridPlan(restarts=1), resume=resume,
        quiet=True,
    )  # fmt: skip


def use_glue(folder):
    glue.glue(
        model=folder / "model", data=folder / "glue", out=folder / "out", overrides=["train.epochs=1", *QUICK[1:3]],
        device="cpu", resume=True, quiet=True,
    )  # fmt: skip


def use_features(folder, resume=True):
    finetune(
        "conll2003", model=folder / "model", data=folder / "conll", out=folder / "run", resume=resume, device="cpu",
        overrides=("task.features=last", "task.cells=4", "task.max_length=18", "train.batch_size=8", "train.epochs=1"),
    )  # fmt: skip


def use_data(folder):
    dataset = Dataset(folder)
    json.dumps(summary(dataset)).encode()
    next(iter(instances(dataset, DataSettings(max_length=32))), None)


def use_interrupted(folder):
    prepare(Corpus([folder / "text.txt"]), tiny_runs.tokenizer_of("bert"), folder / "data", workers=1)
    shutil.rmtree(folder / "data")
    shutil.copytree(folder / "begun", folder / "data")


def use_corpus(path):
    list(Corpus([path]).blocks())


def use_lock(folder):
    with exclusive(folder):
        pass


def use_cache(folder):
    before = os.environ.get("HF_HUB_CACHE")
    os.environ["HF_HUB_CACHE"] = str(folder)
    try:
        bw.load("someone/small", device="cpu")
    finally:
        os.environ.pop("HF_HUB_CACHE") if before is None else os.environ.update(HF_HUB_CACHE=before)


def own_files(kind):
    def use(path):
        for task in (kind, "multilabel") if kind == "classify" else (kind,):
            dataset = open_own(task, {"train": path})
            for example in dataset.examples("train"):
                json.dumps(example).encode()

    return use


def benchmark(name, split="train"):
    def use(path):
        for example in open_dataset(find_task(name), path.parent).examples(split):
            json.dumps(example).encode()

    return use


def use_recipe(path):
    load_recipe(str(path))


# What is in the folders

SHORT = {"train__max_steps": 3, "train__log_every": 1, "train__eval_every": 2, "train__save_every": 3, "train__keep": 1}


def make_bert(folder):
    write_small_model(folder / "m", about={"provenance": {"steps": 3, "tokens": 9}, "metrics": {"loss": 0.5}})


def make_classifier(folder):
    write_small_model(folder / "m", {"classify": 2}, labels=["no", "yes"], about=ABOUT)


def make_tagger(folder):
    labels = ["O", "B-X", "I-X"]
    write_small_model(folder / "m", {"tag": 3}, labels=labels, about=ABOUT | {"task": ABOUT["task"] | {"kind": "tag"}})


def make_answerer(folder):
    write_small_model(folder / "m", {"span": 2}, about=ABOUT | {"task": ABOUT["task"] | {"kind": "answer"}})


def make_gpt(folder):
    write_small_gpt(folder / "m", about={"provenance": {}})


def make_elmo(folder):
    write_small_elmo(folder / "m", about={"provenance": {}})


def make_elmo_task(folder):
    test_elmo_task_folder.write(folder / "m", labels=["no", "yes"], about=ABOUT)


def make_compound(folder):
    test_compound_folder.write(folder / "m", {"classify": 2}, ["no", "yes"], ABOUT)


def make_features(folder):
    (folder / "m").mkdir()
    about = ABOUT | {"task": ABOUT["task"] | {"kind": "tag"}}
    test_feature_folder.write_model(
        folder / "m", test_feature_folder.network(), labels=test_feature_folder.LABELS, about=about
    )
    Tokenizer(PIECES).save(folder / "m")


def make_tokenizer_json(folder):
    """As transformers 5 writes it, with words that were added."""
    write_small_model(folder / "m", vocab_size=26)
    (folder / "m/vocab.txt").unlink()
    path = folder / "m/tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({"id": 22, "content": "zebra", "special": False})
    content["model"]["vocab"] |= {"gnu": 23}
    path.write_text(json.dumps(content))
    config = json.loads((folder / "m/tokenizer_config.json").read_text())
    config |= {"added_tokens_decoder": {"24": {"content": "emu"}}, "word_tokenizer_type": "basic"}
    (folder / "m/tokenizer_config.json").write_text(json.dumps(config))
    (folder / "m/added_tokens.json").write_text('{"yak": 25}')
    (folder / "m/special_tokens_map.json").write_text('{"cls_token": "[CLS]"}')


def make_gpt_json(folder):
    make_gpt(folder)
    (folder / "m/vocab.json").unlink()
    (folder / "m/merges.txt").unlink()


def make_sentences(folder):
    own = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": "cosine",
           "truncate_dim": 4, "__version__": {"sentence_transformers": "5.1.0"}}  # fmt: skip
    write_sentence_folder(
        folder / "m", old("mean_tokens"), ("Dense", dense), ("Normalize", None), own=own, limit=12, encoder="0_BERT",
        sentence={"max_seq_length": 8, "do_lower_case": False},
    )  # fmt: skip


def make_divided(folder):
    make_bert(folder)
    tensors = read_weights(folder / "m/model.safetensors")
    (folder / "m/model.safetensors").unlink()
    put_divided(folder / "m", tensors, lambda name: "layer.0" in name, None)


def make_google(folder):
    google_reference.write_folder(folder / "m", google_reference.random_variables())


def make_run(folder):
    tiny_runs.write_data(folder / "made")
    (folder / "made/data").rename(folder / "data")
    pretrain(tiny_runs.recipe(**SHORT), data=folder / "data", out=folder / "run", device="cpu", quiet=True)


def make_finetuned(folder):
    write_small_model(folder / "model", **SIZES)
    write_task(folder, "classify", num_train=32, num_dev=12)
    run_task(folder)


def make_grid(folder):
    write_small_model(folder / "model", **SIZES)
    write_task(folder, "classify", num_train=32, num_dev=12)
    use_grid(folder, resume=False)


def make_glue(folder):
    write_small_model(folder / "model", **SIZES)
    write_rte(folder / "glue")
    use_glue(folder)


def make_feature_cache(folder):
    write_calm_model(folder / "model")
    (folder / "conll").mkdir()
    write_conll(folder / "conll", 12, 4)
    use_features(folder, resume=False)
    for part in (folder / "run/features").glob("*"):
        part.rename(folder / "run/features" / part.name)


def make_data(folder):
    tiny_runs.write_data(folder / "made")
    shutil.move(folder / "made/data", folder / "m")


def make_interrupted(folder):
    tiny_runs.write_data(folder / "made")
    shutil.move(folder / "made/text.txt", folder / "text.txt")
    tokenizer = tiny_runs.tokenizer_of("bert")

    def stop(*_):
        raise KeyboardInterrupt

    import bertworks.data.prepare as module

    manifest, module._manifest = module._manifest, stop
    try:
        with suppress(KeyboardInterrupt):
            prepare(Corpus([folder / "text.txt"]), tokenizer, folder / "data", workers=1)
    finally:
        module._manifest = manifest
    shutil.copytree(folder / "data", folder / "begun")


def make_cache(folder):
    write_small_model(folder / "models--someone--small/snapshots/abc")
    (folder / "models--someone--small/refs").mkdir()
    (folder / "models--someone--small/refs/main").write_text("abc")


def make_lock(folder):
    (folder / "m").mkdir()
    (folder / "m/.lock").write_text(json.dumps({"pid": 1, "host": "x"}))


def make_rows(folder):
    for kind, rows in ROWS.items():
        some = rows(12)
        write_rows(folder / f"{kind}.jsonl", some)
        (folder / f"{kind}.json").write_text(json.dumps(some, indent=1))
        with open(folder / f"{kind}.csv", "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(some[0]))
            writer.writeheader()
            for row in some:
                writer.writerow({name: "|".join(v) if isinstance(v, list) else v for name, v in row.items()})
    texts = [{"text": "the cat sat.\nIt ran.", "id": number} for number in range(6)]
    write_rows(folder / "corpus.jsonl", texts)
    (folder / "sentences.conll").write_text("".join(f"{w} {t}\n" for w, t in (("the", "O"), ("cat", "B-X"))) * 3 + "\n")
    for name in ("korquad/KorQuAD_v1.0_train.json", "squad/train-v1.1.json"):
        answers = [{"text": "cat", "answer_start": 4}]
        question = {"id": "a", "question": "who", "answers": answers, "is_impossible": False}
        paragraph = {"context": "the cat sat", "qas": [question, question | {"id": "b", "answers": []}]}
        content = {"version": "1.1", "data": [{"title": "x", "paragraphs": [paragraph]}]}
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    (folder / "own-squad.json").write_text(json.dumps(content))
    (folder / "recipe.toml").write_text(to_toml(tiny_runs.recipe()))


# To each group what makes the folder; and of each file what uses it, and how many changes are made in `make test`,
# less than a hundred where they take long. A use is given the folder `m` where there is one, else all; or the file.
MODEL_FILES = [("m/config.json", use_model, 25), ("m/bertworks.json", use_model, 25)]
GROUPS = {
    "BERT": (make_bert, [
        ("m/config.json", use_and_save, 25), ("m/bertworks.json", use_and_save, 25),
        ("m/vocab.txt", use_tokenizer, 100),
        ("m/tokenizer_config.json", use_tokenizer, 100), ("m/tokenizer.json", use_tokenizer, 100),
        ("m/model.safetensors", use_model, 50),
    ]),
    "classifier": (make_classifier, MODEL_FILES),
    "tagger": (make_tagger, MODEL_FILES),
    "answerer": (make_answerer, MODEL_FILES),
    "GPT-1": (make_gpt, [
        *MODEL_FILES, ("m/vocab.json", use_model, 50), ("m/merges.txt", use_model, 50),
        ("m/tokenizer_config.json", use_model, 25),
    ]),
    "ELMo": (make_elmo, [*MODEL_FILES, ("m/vocab.txt", use_model, 25), ("m/tokenizer_config.json", use_model, 25)]),
    "ELMo of a task": (make_elmo_task, MODEL_FILES),
    "compound": (make_compound, MODEL_FILES),
    "frozen features": (make_features, MODEL_FILES),
    "BERT of transformers 5": (make_tokenizer_json, [
        ("m/tokenizer.json", use_tokenizer, 100), ("m/tokenizer_config.json", use_tokenizer, 50),
        ("m/added_tokens.json", use_tokenizer, 50), ("m/special_tokens_map.json", use_and_save, 10),
    ]),
    "GPT-1 of transformers 5": (make_gpt_json, [("m/tokenizer.json", use_model, 50)]),
    "sentence-transformers": (make_sentences, [
        ("m/modules.json", use_and_save, 50), ("m/1_Pooling/config.json", use_model, 50),
        ("m/2_Dense/config.json", use_model, 50), ("m/config_sentence_transformers.json", use_model, 50),
        ("m/0_BERT/sentence_bert_config.json", use_model, 50), ("m/0_BERT/tokenizer_config.json", use_model, 25),
        ("m/2_Dense/model.safetensors", use_model, 25),
    ]),
    "divided weights": (make_divided, [("m/model.safetensors.index.json", use_model, 100)]),
    "the original's": (make_google, [
        ("m/bert_config.json", use_google, 50), ("m/vocab.txt", use_google, 25),
        ("m/bert_model.ckpt.index", use_google, 25),
    ]),
    "a run": (make_run, [
        ("run/recipe.toml", use_report, 50), ("run/recipe.toml", use_other_settings, 10),
        ("run/metrics.jsonl", use_report, 100), ("run/metrics.jsonl", use_run, 5),
        ("run/timing.jsonl", use_report, 100), ("run/timing.jsonl", use_run, 5),
        ("run/samples.json", use_report, 100), ("run/model/config.json", use_report, 20),
        ("run/checkpoints/step-00000003/state.json", use_checkpoint, 20),
        ("run/checkpoints/step-00000003/bertworks.json", use_checkpoint, 5),
        ("run/checkpoints/step-00000003/config.json", use_checkpoint, 5),
        ("run/checkpoints/step-00000003/manifest.json", use_run, 10),
        ("run/checkpoints/step-00000003/optimizer.safetensors", use_checkpoint, 5),
    ]),
    "a fine-tuning run": (make_finetuned, [
        ("run/recipe.toml", use_finetune_report, 50), ("run/metrics.jsonl", use_finetune_report, 100),
        ("run/timing.jsonl", use_finetune_report, 100), ("run/starts.jsonl", use_finetune_report, 100),
        ("run/starts.jsonl", use_finetuned, 5), ("run/dev.json", use_finetune_report, 100),
        ("run/model/bertworks.json", use_finetune_report, 100), ("run/model/bertworks.json", use_finetuned, 5),
        ("run/checkpoints/step-00000002/state.json", use_finetuned_checkpoint, 20),
        ("run/checkpoints/step-00000002/bertworks.json", use_finetuned_checkpoint, 5),
    ]),
    "a grid": (make_grid, [("grid/grid.json", use_grid, 15)]),
    "GLUE": (make_glue, [("out/glue.json", use_glue, 10), ("out/rte/grid.json", use_glue, 5)]),
    "a feature cache": (make_feature_cache, []),
    "prepared data": (make_data, [("m/manifest.json", use_data, 50), ("m/tokenizer_config.json", use_data, 25)]),
    "interrupted preparation": (make_interrupted, [
        ("data/prepare.json", use_interrupted, 10), ("data/unit-00000.json", use_interrupted, 10),
    ]),
    "Hugging Face's cache": (make_cache, [("models--someone--small/refs/main", use_cache, 25)]),
    "a lock": (make_lock, [("m/.lock", use_lock, 100)]),
    "files of rows": (make_rows, [
        *((f"{kind}.{form}", own_files(kind), 50) for kind in ROWS for form in ("jsonl", "json", "csv")
          if form != "csv" or kind not in ("tag", "choose")),
        ("corpus.jsonl", use_corpus, 100), ("own-squad.json", own_files("answer"), 50),
        ("sentences.conll", own_files("tag"), 50), ("squad/train-v1.1.json", benchmark("squad1"), 50),
        ("korquad/KorQuAD_v1.0_train.json", benchmark("korquad"), 50), ("recipe.toml", use_recipe, 100),
    ]),
}  # fmt: skip
# Those that write into the folder.
WRITING = (
    use_run,
    use_other_settings,
    use_checkpoint,
    use_finetuned,
    use_finetuned_checkpoint,
    use_grid,
    use_glue,
)
CASES = [(group, name, use, count) for group, (_, uses) in GROUPS.items() for name, use, count in uses]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Gives a function that returns a group's folder, made when it is first asked for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folders = {}

    def folder_of(group):
        if group not in folders:
            folders[group] = tmp_path_factory.mktemp("made") / "folder"
            folders[group].mkdir()
            GROUPS[group][0](folders[group])
        return folders[group]

    yield folder_of
    torch.set_num_threads(before)


def _given(use, place, name):
    """The folder `m` where there is one, else all of it; to what reads one file that file."""
    if use in (use_corpus, use_recipe) or use.__qualname__.startswith(("own_files", "benchmark")):
        return place / name
    return place / "m" if name.startswith("m/") else place


def change_again_and_again(folder, name, use, numbers, scratch):
    """Return the tracebacks that come of changes of a file, each with the number of one that it comes of."""
    found = {}
    original, place = (folder / name).read_bytes(), scratch / "place"
    for number in numbers:
        if not place.exists():
            shutil.copytree(folder, place)
        changed = mutations.mutate(name, original, mutations.seeded(name, use.__qualname__, number))
        (place / name).write_bytes(changed)
        started = time.perf_counter()
        try:
            use(_given(use, place, name))
        except UserError as error:
            str(error).encode()
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in last if "/bertworks/" in frame.filename] or last
            key = f"{ours[-1].filename}:{ours[-1].lineno} {type(error).__name__}"
            found.setdefault(key, (number, "".join(traceback.format_exception(error)[-12:])))
        took = time.perf_counter() - started
        if took > SOON_S:
            found.setdefault("slow", (number, f"{took:.1f} s"))
        if use in WRITING:
            shutil.rmtree(place)
    shutil.rmtree(place, ignore_errors=True)
    return found


@pytest.fixture
def unsynced(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nothing here cuts the power
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize(("group", "name", "use", "count"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_changed_file_is_used_or_refused(made, tmp_path, group, name, use, count):
    assert change_again_and_again(made(group), name, use, range(count), tmp_path) == {}


@pytest.mark.nightly
@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize(("group", "name", "use", "count"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_file_changed_two_thousand_times_is_used_or_refused(made, tmp_path, group, name, use, count):
    assert change_again_and_again(made(group), name, use, range(2_000), tmp_path) == {}
