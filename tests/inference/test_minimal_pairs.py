"""Minimal pairs: likelihoods beside plain ones, ties, the command, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from small_models import PIECES, write_small_elmo, write_small_gpt, write_small_model
from typer.testing import CliRunner

import bertworks as bw
from bertworks.cli import app
from bertworks.inference.minimal_pairs import log_likelihoods, measure_pairs, sentence_ids
from bertworks.text.vocabulary import MASK

SENTENCES = ["the cat sat on a mat.", "a dog ran", "cat"]


def write_sets(folder, **sets):
    (folder / "blimp").mkdir(parents=True)
    for name, pairs in sets.items():
        lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "linguistics_term": f"about {name}"})
                 for good, bad in pairs]  # fmt: skip
        (folder / f"blimp/{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_pseudo_log_likelihoods_mask_one_piece_after_the_other(tmp_path):
    model = bw.load(write_small_model(tmp_path))
    found = log_likelihoods(model, sentence_ids(model, SENTENCES))
    for text, score in zip(SENTENCES, found, strict=True):
        ids, expected = list(model.tokenizer.encode(text).ids), 0.0
        for place in range(1, len(ids) - 1):
            masked = [*ids[:place], PIECES.index(MASK), *ids[place + 1 :]]
            with torch.inference_mode():
                logits = model.mlm_logits(model.net(model.pack([masked])))[place, : len(PIECES)]
            expected += float(torch.log_softmax(logits, -1)[ids[place]])
        assert score == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_likelihoods_of_one_direction_are_those_of_the_perplexity(tmp_path, direction):
    model = bw.load(write_small_model(tmp_path, {"mlm": 0}, direction=direction))
    found = log_likelihoods(model, sentence_ids(model, SENTENCES))
    for text, score in zip(SENTENCES, found, strict=True):
        count = len(model.tokenizer.encode(text).ids) - 1
        assert -score / count == pytest.approx(math.log(model.perplexity(text)), rel=1e-4)


def test_gpt_reads_a_full_stop_first(tmp_path):
    model = bw.load(write_small_gpt(tmp_path))
    ids = sentence_ids(model, ["the cat"])[0]
    assert [model.tokenizer.pieces[number] for number in ids] == [".</w>", "the</w>", "cat</w>"]
    score = log_likelihoods(model, [ids])[0]
    assert -score / 2 == pytest.approx(math.log(model.perplexity(". the cat")), rel=1e-4)


def test_the_score_is_the_mean_of_the_sets_and_a_tie_counts_half(tmp_path):
    model = bw.load(write_small_model(tmp_path / "model"))
    good, bad = "the cat sat", "cat the sat the"
    if np.diff(log_likelihoods(model, sentence_ids(model, [good, bad])))[0] > 0:
        good, bad = bad, good
    data = write_sets(tmp_path, one=[(good, bad), (bad, good)], two=[("the CAT", "the cat"), (good, bad), (good, bad)])
    metrics, scores = measure_pairs(model, data)
    assert scores.tolist() == [1, 0, 0.5, 1, 1]
    assert metrics["sets"] == {"one": 0.5, "two": pytest.approx(2.5 / 3)}
    assert metrics["terms"] == {"about one": 0.5, "about two": pytest.approx(2.5 / 3)}
    assert metrics["accuracy"] == pytest.approx((0.5 + 2.5 / 3) / 2)
    assert (metrics["ties"], metrics["examples"]) == (1, 5)
    assert measure_pairs(model, data, max_pairs=1)[1].tolist() == [1, 0.5]


def test_the_command_prints_the_terms_and_json(tmp_path):
    write_small_model(tmp_path / "model")
    data = write_sets(tmp_path, one=[("the cat", "the the dog")])
    arguments = ["evaluate", str(tmp_path / "model"), "--task", "blimp", "--data", str(data)]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "about one" in printed.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    found.pop("seconds")
    assert found == bw.evaluate(tmp_path / "model", data, task="blimp")


def test_other_files_and_blank_lines_hide_no_set(tmp_path, caplog):
    data = write_sets(tmp_path, one=[("the cat", "the the dog")], two=[("the cat", "the the dog")])
    whole = measure_pairs(write_small_model(tmp_path / "model"), data)[0]
    assert not caplog.records
    (data / "blimp/one.jsonl").write_text("\n \n" + (data / "blimp/one.jsonl").read_text())
    (data / "blimp/a_first.jsonl").write_text('{"text": "the cat"}\n')
    assert measure_pairs(tmp_path / "model", data)[0] == whole
    assert caplog.messages == ["left out, because they have no minimal pairs: 'a_first.jsonl'"]


def test_what_cannot_be_measured_is_refused(tmp_path):
    data = write_sets(tmp_path, one=[("the cat", "the dog")])
    with pytest.raises(bw.UserError, match="pre-trained models that predict words"):
        measure_pairs(write_small_elmo(tmp_path / "elmo"), data)
    with pytest.raises(bw.UserError, match=r"no sets of minimal pairs: looked for \*\.jsonl"):
        measure_pairs(write_small_model(tmp_path / "bert"), tmp_path / "elmo")
    (tmp_path / "elmo/other.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(bw.UserError, match=r"no sets of minimal pairs.*; 'other\.jsonl' have no sentence_good"):
        measure_pairs(tmp_path / "bert", tmp_path / "elmo")
    (tmp_path / "blimp/one.jsonl").write_text('{"sentence_good": "a", "sentence_bad": ""}\n')
    with pytest.raises(bw.UserError, match=r"one\.jsonl:1: a minimal pair has the texts"):
        measure_pairs(tmp_path / "bert", data)
