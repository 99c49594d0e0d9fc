"""A fine-tuning report in a real browser: no class, label or mistake makes the page wider than the screen."""

import json

import pytest
from test_report_in_a_browser import OVERLAPS, SCREENS, browser  # noqa: F401 -- a fixture

from bertworks.config import to_toml
from bertworks.finetuning.report import write_finetune_report
from bertworks.finetuning.settings import FinetuneSettings

LABELS = [
    "긍정",
    "부정적인 글",
    "x" * 90,
    "<b>bold</b>",
    "العربية",
    *(f"intent number {number}" for number in range(12)),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = tmp_path_factory.mktemp("browser") / "run-감성"
    (run / "model").mkdir(parents=True)
    (run / "recipe.toml").write_text(to_toml(FinetuneSettings()))
    lines = [{"step": step, "loss": 1 / step, "classify_accuracy": 1 - 1 / step, "lr": 1e-5, "grad_norm": 2.0}
             for step in range(10, 5000, 10)]  # fmt: skip
    lines += [{"step": step, "dev_matthews": step / 4000 - 0.5, "dev_loss": 0.5} for step in range(500, 5000, 500)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"name": "classify", "kind": "classify", "labels": LABELS}
    provenance = {"start": {"model": "m" * 120}, "examples": 10**6, "notes": ["n" * 300, "문장 " * 80]}
    (run / "model/bertworks.json").write_text(json.dumps({"task": task, "provenance": provenance}))
    figures = {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 10**6}
    counts = [[10**6 if row == column else row for column in range(len(LABELS))] for row in range(len(LABELS))]
    mistake = {"id": "i" * 80, "texts": ["w" * 300, ["문장 " * 90, "<b>end</b>"]], "gold": LABELS[2],
               "predicted": LABELS[3], "score": 0.9}  # fmt: skip
    dev = {"kind": "classify", "step": 500, "metrics": {"matthews": 0.6, "loss": 0.5}, "examples": 10**7,
           "num_wrong": 10**6, "wrong": [mistake] * 3, "per_class": dict.fromkeys(LABELS, figures),
           "confusion": {"labels": LABELS, "counts": counts}}  # fmt: skip
    (run / "dev.json").write_text(json.dumps(dev))
    return write_finetune_report(run)


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def page(request, browser, report):  # noqa: F811 -- the fixture
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.goto(report.as_uri())
    yield page
    context.close()
    assert problems == []


def test_nothing_overflows_and_no_labels_of_a_chart_overlap(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVERLAPS) == []


def test_texts_are_shown_as_texts(page):
    assert "<b>end</b>" in page.locator(".endings li").nth(1).inner_text()
    assert page.locator("b").count() == 0


def test_a_right_cell_has_another_colour_than_a_wrong_one(page):
    colours = [page.evaluate(f"getComputedStyle(document.querySelector('.confusion td.{name}')).backgroundColor")
               for name in ("right.s10", "wrong.s0")]  # fmt: skip
    assert colours[0] != colours[1]
