"""A run's report: the figures of its logs, every text as text, nothing loaded, and a page for any run folder."""

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import tiny_runs
import torch

from bertworks.config import to_toml
from bertworks.errors import UserError
from bertworks.models.weights import write_weights
from bertworks.report.logs import training_seconds
from bertworks.report.page import Blank, Guess, Sample, Samples, Span, write_report, write_samples

HOSTILE = "</script><script>alert(1)</script><!-- \"'> ${style} $title & &lt; ]]> \u2028 한국어 \u202e"
COUNTS = {
    "train": {"documents": 48, "sentences": 300, "tokens": 2_500},
    "holdout": {"documents": 12, "sentences": 70, "tokens": 600},
}


class PageReader(HTMLParser):
    """Collects what a browser would see: the elements, and the text of each."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)


def read(path):
    reader = PageReader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader


def text_of(path):
    return " ".join(" ".join(read(path).texts).split())


def blank(piece, *guesses, seen="[MASK]"):
    return Blank(piece=piece, seen=seen, guesses=[Guess(piece=word, probability=share) for word, share in guesses])


def samples(name="wiki", word="cat"):
    spans = [Span(text="the "), Span(text=word, blank=0), Span(text=" sat "), Span(text="on", blank=1)]
    blanks = [blank(word, (word, 0.75), ("dog", 0.125)), blank("on", (word, 0.5), ("on", 0.0321), seen="off")]
    pair = Sample(texts=[spans, [Span(text=word)]], blanks=blanks, follows=True, follows_probability=0.875)
    return Samples(data=name, vocab_size=46, counts=COUNTS, next_majority=0.625, samples=[pair])


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder, *, steps=40, holdout=True, kind="mlm", with_samples=True, **changes):
    """A run folder made by hand, which logs every 4 steps."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(to_toml(tiny_runs.recipe(**changes)))
    metrics, timing = [], []
    for step in range(4, steps + 1, 4):
        scores = {"loss": 7 / step, f"{kind}_loss": 6 / step, f"{kind}_accuracy": step / 100}
        scores |= {"nsp_loss": 0.7, "nsp_accuracy": 0.75} if kind == "mlm" else {}
        metrics.append({"step": step, **scores, "grad_norm": 1.0, "lr": 1e-3, "tokens": 256 * step})
        timing.append({"step": step, "seconds": 2.0 * step, "tokens_per_second": 128.0, "memory_bytes": 5 * 10**8})
        if step % 20 == 0 and holdout:
            metrics.append({"step": step, **{f"holdout_{name}": 2 * score for name, score in scores.items()}})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "timing.jsonl", timing)
    if with_samples:
        write_samples(folder, samples())
    return folder


def write_model(folder, size):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": size, "num_hidden_layers": 3, "vocab_size": 12_345}))
    write_weights(folder / "model.safetensors", {"a": torch.zeros(size, 100), "b": torch.zeros(7)})


def test_the_figures_at_the_end_are_those_of_the_last_evaluation(tmp_path):
    text = text_of(write_report(write_run(tmp_path / "run")))
    assert "MLM accuracy, held out 80.0% in training 40.0%" in text
    assert f"MLM perplexity, held out {math.exp(0.3):.1f} loss 0.300" in text
    assert "NSP accuracy, held out 150.0% larger class 62.5%" in text
    assert "Tokens a second 128" in text


def test_what_was_trained_is_told(tmp_path):
    run = write_run(tmp_path / "run")
    write_model(run / "model", 64)
    text = text_of(write_report(run))
    assert "A BERT of size 1x32x2 with 6,407 parameters, after 40 steps and 10,240 tokens." in text
    for fact in (
        "layers 3", "width 64", "vocabulary 12,345", "parameters 6,407", "objective mlm+nsp", "folder wiki",
        "documents for training 48", "tokens held out 600", "tokens seen per token of data 4.10", "masked 15%",
        "optimizer adam", "learning rate 3e-3, linear", "warm-up 5 steps", "batch 256 tokens",
        "time in training 1 min 20 s", "most memory 0.50 GB",
    ):  # fmt: skip
        assert fact in text, fact


def test_the_newest_checkpoint_tells_the_sizes_of_a_run_without_a_model(tmp_path):
    run = write_run(tmp_path / "run", steps=20)
    for step, size in (("00000007", 8), ("00000014", 16), ("100000000", 32)):
        write_model(run / "checkpoints" / f"step-{step}", size)
    text = text_of(write_report(run))
    assert "with 3,207 parameters, after 20 of at most 40 steps" in text


def test_every_curve_is_drawn(tmp_path):
    reader = read(write_report(write_run(tmp_path / "run")))
    labels = [attributes["aria-label"] for tag, attributes in reader.elements if tag == "svg" and "role" in attributes]
    assert [label.partition(":")[0] for label in labels] == [
        "Loss", "MLM accuracy", "NSP accuracy", "Learning rate", "Tokens a second", "Norm of all gradients",
    ]  # fmt: skip
    assert labels[1] == "MLM accuracy: training 40.0%, held out 80.0% at step 40"


def test_right_and_wrong_guesses_are_marked_and_told(tmp_path):
    page = write_report(write_run(tmp_path / "run")).read_text()
    assert '<mark class="right" title="cat 75%, dog 12%">cat<sup>1</sup></mark>' in page
    assert '<mark class="wrong" title="cat 50%, on 3%">on<sup>2</sup></mark>' in page
    assert '<li class="right"><bdi lang="">on</bdi><span class="share">3.2%</span>' in page
    assert "shown as off" in page
    text = text_of(tmp_path / "run/report.html")
    assert "B follows A; the model's probability that it follows is 88% ✓" in text
    assert "The model saw [MASK] there" in text


def test_a_language_model_has_its_own_words(tmp_path):
    run = write_run(tmp_path / "run", kind="lm", data__objective="rtl")
    only = Sample(texts=[[Span(text="a", blank=0)]], blanks=[blank("a", ("a", 1.0), seen=None)])
    write_samples(run, samples().model_copy(update={"samples": [only], "next_majority": None}))
    text = text_of(write_report(run))
    assert "LM perplexity, held out" in text
    assert "next words, right to left" in text
    assert "MASK" not in text
    assert "MLM" not in text.replace("MLM +", "")
    assert "NSP" not in text


def test_no_text_from_outside_becomes_markup(tmp_path):
    plain = write_report(write_run(tmp_path / "plain"))
    folder = write_run(tmp_path / re.sub(r"[/\u2028]", "", HOSTILE))
    write_samples(folder, samples(HOSTILE, HOSTILE))
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text() + f"# {HOSTILE}\n".replace("\u2028", ""))
    hostile = write_report(folder)
    assert [tag for tag, _ in read(hostile).elements] == [tag for tag, _ in read(plain).elements]
    whole = "".join(read(hostile).texts)
    assert whole.count(HOSTILE) >= 4
    assert folder.name in whole


def test_the_page_loads_nothing_and_runs_nothing(tmp_path):
    page = write_report(write_run(tmp_path / "run"))
    reader = read(page)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, _ in reader.elements}
    for _, attributes in reader.elements:
        assert not {name for name in attributes if name in ("src", "href", "style") or name.startswith("on")}
    assert not re.search(r"https?:|url\(|@import", page.read_text())


def test_the_policy_allows_our_style_alone(tmp_path):
    page = write_report(write_run(tmp_path / "run")).read_text()
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-{digest}'" in page
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_without_documents_kept_aside_the_figures_are_those_of_training(tmp_path):
    text = text_of(write_report(write_run(tmp_path / "run", holdout=False)))
    assert "MLM accuracy, in training 40.0%" in text
    facts = text.partition("Predictions")[0]
    assert facts.count("held out") == facts.count("s held out ") == 3  # what the data has: documents, sentences, tokens


@pytest.mark.parametrize("missing", ["metrics.jsonl", "timing.jsonl", "samples.json"])
def test_what_is_not_there_yet_is_left_out(tmp_path, missing):
    run = write_run(tmp_path / "run")
    (run / missing).unlink()
    text = text_of(write_report(run))
    assert ("Predictions" in text) == (missing != "samples.json")
    assert ("time in training" in text) == (missing != "timing.jsonl")


def test_values_that_were_not_finite_leave_a_gap(tmp_path):
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_lines(run / "metrics.jsonl", [{**line, "loss": None} if line["step"] == 20 else line for line in lines])
    assert "Loss, held out 0.350" in text_of(write_report(run))
    write_lines(run / "metrics.jsonl", [{**line, "loss": None, "holdout_loss": None} for line in lines])
    text = text_of(write_report(run))
    assert "Loss" not in text
    assert "MLM accuracy, held out 80.0%" in text


def test_the_recipe_stands_in_a_fold_as_it_is(tmp_path):
    run = write_run(tmp_path / "run")
    page = write_report(run)
    assert (run / "recipe.toml").read_text() in "".join(read(page).texts)
    assert [tag for tag, _ in read(page).elements][-3:] == ["summary", "pre", "footer"]


def test_the_page_of_a_long_run_stays_small(tmp_path):
    run = write_run(tmp_path / "run", steps=80_000, train__max_steps=80_000)
    assert write_report(run).stat().st_size < 250_000


def test_it_can_be_written_elsewhere(tmp_path):
    run = write_run(tmp_path / "run")
    assert write_report(run, tmp_path / "other.html") == tmp_path / "other.html"
    assert not (run / "report.html").exists()


def test_the_same_folder_gives_the_same_page(tmp_path):
    run = write_run(tmp_path / "run")
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


@pytest.mark.parametrize("content", [None, "not toml ["])
def test_what_is_no_run_folder_is_a_user_error(tmp_path, content):
    (tmp_path / "folder").mkdir()
    if content:
        (tmp_path / "folder" / "recipe.toml").write_text(content)
    with pytest.raises(UserError, match=r"recipe\.toml"):
        write_report(tmp_path / "folder")


def test_seconds_of_training_are_those_of_all_starts():
    timing = [
        {"step": step, "seconds": seconds} for step, seconds in ((1, 5.0), (2, 9.0), (3, 4.0), (4, 6.5), (5, 2.0))
    ]
    assert training_seconds(timing) == 9.0 + 6.5 + 2.0
    assert training_seconds([]) == 0.0


def test_torch_is_not_needed(tmp_path):
    run = write_run(tmp_path / "run")
    program = (
        "import sys; from bertworks.report.page import write_report\n"
        "write_report(sys.argv[1]); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(run)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "False\n"
