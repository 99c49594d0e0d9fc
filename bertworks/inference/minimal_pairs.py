"""BLiMP: of two sentences that differ in a word, which does a pre-trained model find more likely?

- A model of masked words scores a sentence by its pseudo-log-likelihood (Salazar et al. 2020): every piece is masked by
  itself, and the logarithms of its probabilities are added up. So a sentence of ten pieces is read ten times.
- A model of one direction (LTR, RTL, GPT-1) scores it by the likelihood of each piece after the others. GPT-1 has no
  token for the start of a text; it reads a full stop first, as after another sentence, if its vocabulary has one.
- A pair is right if the grammatical sentence scores higher. A tie counts half: it happens where a vocabulary knows
  neither of the words that differ.

A folder has a file for each set, `NAME.jsonl`, with `sentence_good`, `sentence_bad` and the `linguistics_term` in each
line. The score is the mean of the sets, which are of equal size in BLiMP.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import UserError, counted, shown_names
from bertworks.files import parse_json, usable_path
from bertworks.inference.model import Model, load
from bertworks.nn.attention import Tokens, batches
from bertworks.nn.bert import Bert, next_tokens, previous_tokens
from bertworks.nn.gpt import Gpt
from bertworks.processes import ProgressCallback, silent
from bertworks.tasks.tables import numbered_lines
from bertworks.text.gpt import END_OF_WORD
from bertworks.text.vocabulary import MASK

BLIMP = "blimp"
_HOMES = ("", "blimp", "BLiMP", "blimp/data", "data")
_SAME = 1e-5  # nats: two computations of the same sum may differ by as much
_AT_ONCE = 4_096  # sentences, so that progress is seen and memory bounded
_ROWS_AT_ONCE = 4_096  # of scores, half a gigabyte of them for BERT's vocabulary
_log = logging.getLogger(__name__)


class Pair(NamedTuple):
    """A minimal pair."""

    good: str
    bad: str
    set: str  # its file
    term: str  # what it is about


def measure_pairs(
    model: str | os.PathLike[str] | Model,
    data: str | os.PathLike[str],
    *,
    max_pairs: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    progress: ProgressCallback = silent,
) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Measure a pre-trained model on minimal pairs.

    Args:
        model: a model folder, a run folder, a name, or what `bw.load` gives.
        data: the folder with the sets.
        max_pairs: take only the first ones of each set; 0: all.
        device: where to compute.
        dtype: in which numbers.
        progress: is called with how far it is.

    Returns:
        metrics: `accuracy` (the mean of the sets), that of each of `terms` and `sets`, and the number of `examples`.
        scores: for each pair, in the order of the sets' names, 1, 0, or 0.5 for a tie.
    """
    pairs = read_pairs(data, max_pairs)
    opened = model if isinstance(model, Model) else load(model, device=device, dtype=dtype)
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    ids = sentence_ids(opened, sentences)
    likelihoods = np.array(log_likelihoods(opened, ids, progress)).reshape(-1, 2)
    better = likelihoods[:, 0] - likelihoods[:, 1]
    is_tie = np.array([good == bad for good, bad in zip(ids[::2], ids[1::2], strict=True)]) | (np.abs(better) < _SAME)
    scores = np.where(is_tie, 0.5, better > 0).astype(np.float32)
    sets, terms = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for pair, score in zip(pairs, scores.tolist(), strict=True):
        sets[pair.set].append(score)
        terms[pair.term].append(score)
    means = {name: fmean(values) for name, values in sets.items()}
    metrics: dict[str, Any] = {"accuracy": fmean(means.values()), "ties": int(is_tie.sum())}
    metrics |= {"terms": {name: fmean(values) for name, values in sorted(terms.items())}, "sets": means}
    return metrics | {"examples": len(pairs)}, scores


def pair_files(data: str | os.PathLike[str]) -> list[Path]:
    """Return the sets below a folder, in the order of their names; other files may lie beside them."""
    root, others = usable_path(data), list[Path]()
    for home in _HOMES:
        files = sorted((root / home).glob("*.jsonl"))
        if sets := [path for path in files if _is_of_pairs(path)]:
            return sets
        others += files
    found = f"; {shown_names(path.relative_to(root) for path in others)} have no sentence_good" if others else ""
    raise UserError(
        f"{data} has no sets of minimal pairs: looked for *.jsonl there, and in blimp and blimp/data{found}"
    )


def _is_of_pairs(path: Path) -> bool:
    """Tell whether the first line of a file that is not blank looks like a minimal pair."""
    with open(path, "rb") as stream:
        while (line := stream.readline(1 << 16)) and not line.strip():
            pass
        return b'"sentence_good"' in line


def read_pairs(data: str | os.PathLike[str], max_pairs: int = 0) -> list[Pair]:
    """Read all sets below a folder, in the order of their names."""
    sets = pair_files(data)
    if others := sorted(set(sets[0].parent.glob("*.jsonl")) - set(sets)):
        _log.warning("left out, because they have no minimal pairs: %s", shown_names(path.name for path in others))
    return [pair for file in sets for pair in _read_set(file, max_pairs)]


def _read_set(path: Path, max_pairs: int) -> list[Pair]:
    pairs = list[Pair]()
    for number, line in numbered_lines(path):
        if max_pairs and len(pairs) == max_pairs:
            break
        if not line.strip():
            continue
        row = parse_json(line, str(path), line=number)
        good, bad = (row.get(name) if isinstance(row, dict) else "" for name in ("sentence_good", "sentence_bad"))
        if not isinstance(good, str) or not isinstance(bad, str) or not good.strip() or not bad.strip():
            raise UserError(f"{path}:{number}: a minimal pair has the texts sentence_good and sentence_bad")
        pairs.append(Pair(good, bad, path.stem, str(row.get("linguistics_term", path.stem))))
    if not pairs:
        raise UserError(f"{path} has no minimal pairs")
    return pairs


def sentence_ids(model: Model, sentences: Sequence[str]) -> list[list[int]]:
    """Return the ids that the model reads of each sentence."""
    if isinstance(model.net, Gpt) and not model.is_task_only:
        pieces = {piece: number for number, piece in enumerate(model.tokenizer.pieces)}
        stop = pieces.get("." + END_OF_WORD)
        return [[*([] if stop is None else [stop]), *one.ids] for one in model.encode(list(sentences))]
    if not isinstance(model.net, Bert) or "mlm" not in model.heads:
        raise UserError(
            f"minimal pairs are for pre-trained models that predict words (BERT, LTR, RTL, GPT-1); this {model.title} "
            "does not"
        )
    return [list(one.ids) for one in model.encode(list(sentences))]


def log_likelihoods(model: Model, ids: Sequence[Sequence[int]], progress: ProgressCallback = silent) -> list[float]:
    """Return the logarithm of each sentence's likelihood, or of a model of both directions its pseudo-likelihood."""
    found: list[float] = []
    is_masked = isinstance(model.net, Bert) and model.net.config.direction == "both"
    score = _pseudo if is_masked else _one_way
    for start in range(0, len(ids), _AT_ONCE):
        found += score(model, ids[start : start + _AT_ONCE]).tolist()
        progress("measuring", len(found), len(ids), counted(len(found), "sentence"))
    return found


def _pseudo(model: Model, ids: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Mask every piece of every sentence by itself."""
    mask_id = model.tokenizer.id_of(MASK)
    units = [(number, place) for number, one in enumerate(ids) for place in range(1, len(one) - 1)]
    sums = np.zeros(len(ids))
    for numbers in batches([len(ids[number]) for number, _ in units], model.device):
        masked, golds, rows, start = [], [], [], 0
        for number, place in (units[unit] for unit in numbers):
            one = list(ids[number])
            golds.append(one[place])
            one[place] = mask_id
            rows.append(start + place)
            start += len(one)
            masked.append(one)
        with torch.inference_mode():
            hidden_MD = model.net(model.pack(masked))[rows]
            logs = _log_probabilities(model, hidden_MD, torch.tensor(golds, device=model.device))
        np.add.at(sums, [units[unit][0] for unit in numbers], logs)
    return sums


def _one_way(model: Model, ids: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Add up the logarithm of each token's probability after those before it, or of one from the right before it."""
    sums = np.zeros(len(ids))
    is_rtl = isinstance(model.net, Bert) and model.net.config.direction == "right_to_left"
    for numbers in batches([len(one) for one in ids], model.device):
        with torch.inference_mode():
            tokens: Tokens = model.pack([ids[number] for number in numbers])
            golds_T, counted_T = (previous_tokens if is_rtl else next_tokens)(tokens)
            logs = _log_probabilities(model, model.net(tokens), golds_T) * counted_T.cpu().numpy()
        owners = np.repeat(numbers, [len(ids[number]) for number in numbers])
        np.add.at(sums, owners, logs)
    return sums


def _log_probabilities(model: Model, hidden_MD: torch.Tensor, golds_M: torch.Tensor) -> NDArray[np.float64]:
    """Return the logarithm of the probability of a piece at each row."""
    found = []
    for rows_MD, golds in zip(torch.split(hidden_MD, _ROWS_AT_ONCE), torch.split(golds_M, _ROWS_AT_ONCE), strict=True):
        logits_MV = model.net.lm_logits(rows_MD) if isinstance(model.net, Gpt) else model.mlm_logits(rows_MD)
        logs_MV = logits_MV.float()[:, : len(model.tokenizer)].log_softmax(-1)
        found.append(logs_MV.gather(1, golds[:, None])[:, 0].double().cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0)
