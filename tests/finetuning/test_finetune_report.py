"""The report of a fine-tuning run: its figures, its classes and mistakes, every text as text, nothing loaded."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from small_models import write_small_model
from toy_tasks import QUICK, SIZES, write_rows, write_task

from bertworks.config import to_toml
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.report import is_finetuned, read_dev, write_dev, write_finetune_report
from bertworks.finetuning.settings import FinetuneSettings
from bertworks.tasks.evaluation import Evaluated
from bertworks.tasks.task import Task, TextExample

HOSTILE = "</script><script>alert(1)</script><!-- \"'> ${style} $title & &lt; 한국어 \u202e"
METRICS = {
    "classify": "Accuracy",
    "regress": "Pearson",
    "multilabel": "F1",
    "choose": "Accuracy",
    "tag": "F1",
    "answer": "F1",
}


class Page(HTMLParser):
    """What a browser would see: the elements, and the text."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.is_style = [], [], False
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.is_style = tag == "style"

    def handle_endtag(self, tag):
        self.is_style = False

    def handle_data(self, data):
        if not self.is_style:
            self.texts.append(data)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    for kind in METRICS:
        train, dev = write_task(folder / f"{kind}-files", kind)
        finetune(kind, model=model, train=train, dev=dev, out=folder / kind, device="cpu",
                 overrides=[*QUICK, "train.epochs=2", "task.doc_stride=4"])  # fmt: skip
    return folder


def dev_of(run):
    return json.loads((run / "dev.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", METRICS)
def test_a_run_leaves_a_report_of_its_best_model(runs, model, kind):
    page, dev = Page(runs / kind / "report.html"), dev_of(runs / kind)
    about = json.loads((runs / kind / "model/bertworks.json").read_text())
    assert dev["step"] == about["provenance"]["steps"]
    assert {f"dev_{name}": value for name, value in dev["metrics"].items()} == about["metrics"]
    assert f"Fine-tuned for {kind}, after " in page.text
    assert str(model) in page.text
    assert f"{about['provenance']['examples']} {'windows' if kind in ('tag', 'answer') else 'examples'}" in page.text
    assert "40 examples" in page.text
    assert "(guessed)" in page.text
    assert about["provenance"]["device"] in page.text
    titles = [attributes["aria-label"].split(":")[0] for tag, attributes in page.elements if tag == "svg"]
    assert titles[0] == "Loss"
    assert METRICS[kind] in titles


def test_classes_and_mistakes_are_those_of_the_dev_set(runs):
    page, dev = Page(runs / "classify/report.html"), dev_of(runs / "classify")
    counts = dev["confusion"]["counts"]
    assert sum(map(sum, counts)) == dev["examples"] == 40
    assert sum(map(sum, counts)) - counts[0][0] - counts[1][1] == dev["num_wrong"]
    assert dev["metrics"]["accuracy"] == pytest.approx(1 - dev["num_wrong"] / 40)
    cells = [attributes for tag, attributes in page.elements if tag == "td" and "title" in attributes]
    assert len(cells) == 4
    assert cells[0]["class"] == f"right s{round(10 * counts[0][0] / sum(counts[0]))}"
    assert f"{dev['num_wrong']} of 40 examples are wrong" in page.text
    for one in dev["wrong"]:
        assert " ".join(one["texts"][0].split()) in page.text


def test_a_regression_shows_its_largest_errors(runs):
    page, dev = Page(runs / "regress/report.html"), dev_of(runs / "regress")
    assert "Largest errors" in page.text
    assert f"off by {dev['wrong'][0]['score']:.3g}" in page.text
    assert "On the dev set" not in page.text


def test_every_text_is_text_and_nothing_is_loaded(model, tmp_path):
    rows = [{"text": f"a {word} {HOSTILE}", "label": word + HOSTILE} for word in ("cat", "dog")] * 8
    train, run = write_rows(tmp_path / "train.jsonl", rows), tmp_path / "run"
    wrong = write_rows(
        tmp_path / "dev.jsonl", [{"text": f"a cat {HOSTILE}", "label": rows[i]["label"]} for i in (0, 1)]
    )
    finetune(
        "classify", model=model, train=train, dev=wrong, out=run, overrides=[*QUICK, "train.epochs=1"], device="cpu"
    )
    page = Page(run / "report.html")
    assert page.text.count("alert(1)") >= 4
    assert {tag for tag, _ in page.elements} & {"script", "img", "link", "iframe"} == set()
    assert not [name for _, attributes in page.elements for name in attributes if name in ("src", "href", "style")]
    style = re.search(r"<style>(.*?)</style>", page.source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"sha256-{digest}" in page.source


def test_endings_names_and_notes_are_text_too(tmp_path):
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    (run / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    about = {"task": {"name": HOSTILE, "kind": "choose"}, "provenance": {"notes": [HOSTILE], "device": HOSTILE}}
    (run / "model/bertworks.json").write_text(json.dumps(about))
    (run / "starts.jsonl").write_text('{"step": 1, "start": 1, "seconds": 60, "devices": 1}\n')
    mistake = {"id": HOSTILE, "texts": [HOSTILE, [HOSTILE, HOSTILE]], "gold": "0", "predicted": "1", "score": 0.5}
    dev = {"kind": "choose", "step": 3, "metrics": {HOSTILE: 0.9}, "examples": 4, "num_wrong": 1, "wrong": [mistake]}
    (run / "dev.json").write_text(json.dumps(dev))
    page = Page(write_finetune_report(run))
    assert page.text.count("alert(1)") == 9
    assert not {"script"} & {tag for tag, _ in page.elements}


def test_many_classes_are_told_by_their_commonest_mistakes(runs, tmp_path):
    run, labels = tmp_path / "run", [f"c{number}" for number in range(40)]
    run.mkdir()
    (run / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    counts = [[9 if row == column else int(column == row + 1) for column in range(40)] for row in range(40)]
    score = {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 10}
    dev = {"kind": "classify", "step": 3, "metrics": {"accuracy": 0.9}, "examples": 400, "num_wrong": 39, "wrong": [],
           "per_class": dict.fromkeys(labels, score), "confusion": {"labels": labels, "counts": counts}}  # fmt: skip
    (run / "dev.json").write_text(json.dumps(dev))
    page = Page(write_finetune_report(run))
    assert "The commonest mistakes" in page.text
    assert "How often each class" not in page.text


def test_a_run_that_has_measured_nothing_yet_has_a_report(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    assert "Fine-tuned for a task, after 0 of" in Page(write_finetune_report(run)).text


def test_the_command_tells_the_two_kinds_of_runs_apart(bertworks, runs, tmp_path):
    code, _, err = bertworks("report", runs / "classify", "--out", tmp_path / "page.html")
    assert (code, "page.html" in err) == (0, True)
    assert Page(tmp_path / "page.html").text == Page(runs / "classify/report.html").text
    assert is_finetuned(runs / "classify")
    assert not is_finetuned(tmp_path)
    assert bertworks("report", tmp_path)[0] == 2


def test_a_report_needs_no_torch(runs, tmp_path):
    code = (
        "import sys; from bertworks.finetuning.report import write_finetune_report as write; "
        "write(sys.argv[1], sys.argv[2]); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs / "classify"), str(tmp_path / "page.html")], check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"step": 3}'])
def test_a_broken_record_is_told_not_raised(bertworks, runs, tmp_path, content):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    (run / "dev.json").write_bytes(content)
    code, _, err = bertworks("report", run)
    assert code == 2
    assert "dev.json" in err.splitlines()[0]


@pytest.mark.parametrize("kind", ["classify", "multilabel"])
def test_thousands_of_labels_leave_a_record_and_a_page_of_ordinary_size(tmp_path, kind):
    labels = [f"label {number}" for number in range(9_000)]
    task = Task(name="many", title="many", kind=kind, splits={}, metrics=("accuracy",), labels=tuple(labels))
    gold = [labels[number % 4_000] for number in range(6_000)]
    said = [labels[(number * 7) % 9_000] for number in range(6_000)]
    if kind == "multilabel":
        gold, said = [(one,) for one in gold], [(one,) for one in said]
    examples = [TextExample(str(number), "a text", None, one) for number, one in enumerate(gold)]
    rows = [np.full(9_000, 0.5, np.float32)] * len(gold)
    write_dev(tmp_path, task, 3, {"accuracy": 0.1}, examples, Evaluated(said, {}, rows))
    assert (tmp_path / "dev.json").stat().st_size < 500_000
    (tmp_path / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    path = write_finetune_report(tmp_path)
    assert path.stat().st_size < 500_000
    assert "The 200 commonest of 9,000 classes" in Page(path).text
    assert ("The commonest mistakes" in Page(path).text) == (kind == "classify")
    assert len(read_dev(tmp_path).per_class) == 1_000
