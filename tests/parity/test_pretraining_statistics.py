"""T8: what the original create_pretraining_data.py makes of 3,000 articles, and what the loader makes of them.

The figures are in this repository. The articles are other people's; they are read from a folder beside it, if there is
one. Without them, a made-up text with sentences of the same lengths must come close to the figures.
Passes over the text are independent of each other, in the original as here, so their spread gives the standard error.
Random B is never of the same document here; in the original it may be after ten draws, which 3,000 documents rule out.
"""

import json
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from other_texts import other_text

from bertworks import Tokenizer
from bertworks.config import DataSettings
from bertworks.data.loader import Loader, shape_for
from bertworks.data.prepare import Options, prepare
from bertworks.data.shards import Dataset
from bertworks.text.corpus import Corpus
from bertworks.text.vocabulary import SPECIAL_TOKENS

GOLDEN = Path(__file__).parents[1] / "golden"

NUM_EPOCHS = 15
PASSES_A_RUN = 5  # the original's dupe_factor
MAX_LENGTH = 128
LENGTH_BINS = (0, 16, 32, 48, 64, 80, 96, 112, 127, 128, 129)
SEGMENT_BINS = (0, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 129)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    text = lzma.decompress(other_text("golden/pretrain_text.txt.xz", "articles of Wikipedia").read_bytes())
    with tarfile.open(other_text("data/vocab.tar.xz", "vocabularies of Google's models")) as archive:
        archive.extractall(folder, filter="data")
    tokenizer = Tokenizer.from_vocab(folder / "vocab" / "bert-base-uncased-vocab.txt")
    (folder / "text.txt").write_bytes(text)
    options = Options(lines_are_sentences=True)
    prepare(Corpus([folder / "text.txt"]), tokenizer, folder / "out", **options._asdict(), workers=1)
    return Dataset(folder / "out")


@pytest.fixture(scope="module")
def golden():
    names = ("plain", "wwm", "other_seeds")
    plain, wwm, runs = (json.loads((GOLDEN / f"pretrain_stats_{name}.json").read_text()) for name in names)
    return {"plain": plain["statistics"], "wwm": wwm["statistics"], "runs": runs}


@pytest.fixture(scope="module", params=["plain", "wwm"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def epochs(dataset, kind):
    return measured_epochs(dataset, whole_word=kind == "wwm")


def measured_epochs(dataset, *, whole_word, num_epochs=NUM_EPOCHS):
    """The figures of each epoch: sums over its slices."""
    settings = DataSettings(max_length=MAX_LENGTH, max_predictions=20, whole_word=whole_word)
    loader = Loader(dataset, settings, shape_for(settings, tokens=1 << 16), seed=20)
    tokenizer = Tokenizer.from_folder(dataset.folder)
    continues, mask_id = np.array([piece.startswith("##") for piece in tokenizer.pieces]), tokenizer.id_of("[MASK]")
    epochs = [[]]
    for (packed,), state in loader.batches():
        if state.epoch == num_epochs:
            break
        if state.epoch == len(epochs):
            epochs.append([])
        epochs[-1].append(figures_of(packed, continues, mask_id))
    return [{name: sum(figures[name] for figures in epoch) for name in epoch[0]} for epoch in epochs]


def figures_of(packed, continues, mask_id):
    """What is counted in a slice, by its arrays alone."""
    starts = packed.cumulative_lengths[: int(packed.next_weights.sum()) + 1]
    lengths, used = np.diff(starts), starts[-1]
    of_b = np.add.reduceat(packed.segment_ids[:used], starts[:-1]) - 1
    of_a = lengths - of_b - 3
    is_random = packed.next_labels[: len(lengths)] == 1
    num_masked = int(packed.masked_weights.sum())
    masked, masked_ids = packed.masked_positions[:num_masked], packed.masked_ids[:num_masked]
    sequences = np.searchsorted(starts, masked, side="right") - 1
    per_instance = np.bincount(sequences, minlength=len(lengths))
    wanted = num_wanted(lengths)
    is_special = np.zeros(used, bool)
    is_special[starts[:-1]] = is_special[starts[1:] - 1] = is_special[starts[:-1] + of_a + 1] = True
    return {
        "instances": len(lengths),
        "tokens": int(used),
        "random": int(is_random.sum()),
        "full": int((lengths == MAX_LENGTH).sum()),
        "A": of_a.sum(), "A of random": of_a[is_random].sum(),
        "B": of_b.sum(), "B of random": of_b[is_random].sum(),
        "masked": num_masked,
        "masked special": int(is_special[masked].sum()),
        "fewer than wanted": int((per_instance < wanted).sum()),
        "more than wanted": int((per_instance > wanted).sum()),
        "MASK": int((packed.token_ids[masked] == mask_id).sum()),
        "same": int((packed.token_ids[masked] == masked_ids).sum()),
        "lengths": np.bincount(lengths, minlength=MAX_LENGTH + 1),
        "lengths of A": np.bincount(of_a, minlength=MAX_LENGTH + 1),
        "lengths of B": np.bincount(of_b, minlength=MAX_LENGTH + 1),
        "masked of an instance": np.bincount(per_instance, minlength=MAX_LENGTH + 1),
    } | words_of(packed, is_special, masked, masked_ids, continues)  # fmt: skip


def num_wanted(lengths):
    """How many pieces of instances of these lengths are to be masked."""
    return np.minimum(20, np.maximum(1, np.rint(lengths * 0.15))).astype(int)


def words_of(packed, is_special, masked, masked_ids, continues):
    """How many words have a mask, how many of several pieces, and how many have all of these masked."""
    original = packed.token_ids[: len(is_special)].copy()
    original[masked] = masked_ids
    is_start = ~is_special & (~continues[original] | (packed.position_ids[: len(is_special)] == 1))
    words = np.cumsum(is_start) - 1
    sizes = np.bincount(words[~is_special])
    hidden = np.bincount(words[masked], minlength=len(sizes))
    is_long = sizes > 1
    return {
        "words": int((hidden > 0).sum()),
        "long words": int(((hidden > 0) & is_long).sum()),
        "long words in full": int(((hidden == sizes) & is_long).sum()),
    }


def ratios(epochs, name, of):
    return np.array([epoch[name] / (of if isinstance(of, int) else epoch[of]) for epoch in epochs])


def standard_errors_apart(ours, theirs, num_passes):
    """How far the means are apart, for a spread between passes as it is between ours."""
    error = ours.std(axis=0, ddof=1) * np.sqrt(1 / len(ours) + 1 / num_passes)
    return (ours.mean(axis=0) - theirs) / np.maximum(error, 1e-12)


def pairs_of(epochs, num_tokens):
    """The figures of pairs of each epoch, by the names of the golden ones."""
    return {
        "instances_per_document_token": ratios(epochs, "instances", num_tokens),
        "mean_sequence_length": ratios(epochs, "tokens", "instances"),
        "fraction_full_length_128": ratios(epochs, "full", "instances"),
        "fraction_is_random_next": ratios(epochs, "random", "instances"),
        "segment_a_mean all": ratios(epochs, "A", "instances"),
        "segment_a_mean random_next": ratios(epochs, "A of random", "random"),
        "segment_b_mean all": ratios(epochs, "B", "instances"),
        "segment_b_mean random_next": ratios(epochs, "B of random", "random"),
        "tokens_per_pass all": ratios(epochs, "tokens", 1),
    }


def golden_pairs(golden):
    """The same of the original: the mean of its runs."""
    found = {}
    for name in pairs_of([], 1):
        key, _, part = name.partition(" ")
        found[name] = np.mean([run[key][part] if part else run[key] for run in golden["runs"].values()])
    return found


def test_the_text_is_read_as_the_original_reads_it(dataset, golden):
    expected = golden["plain"]["input"]
    assert dataset.manifest["train"] == {name: expected[name] for name in ("documents", "sentences", "tokens")}


def test_pairs_are_as_many_as_long_and_as_random_as_the_originals(epochs, golden):
    ours, theirs = pairs_of(epochs, golden["plain"]["input"]["tokens"]), golden_pairs(golden)
    num_passes = PASSES_A_RUN * len(golden["runs"])
    apart = {name: standard_errors_apart(values, theirs[name], num_passes) for name, values in ours.items()}
    for name, values in ours.items():
        print(f"{name:32} {values.mean():14.6f} {theirs[name]:14.6f} {apart[name]:6.2f}")
    assert apart == pytest.approx(dict.fromkeys(ours, 0.0), abs=4)
    assert ours["fraction_is_random_next"].mean() == pytest.approx(0.546, abs=0.002)


@pytest.mark.parametrize(
    ("ours", "theirs", "bins"),
    [
        ("lengths", "sequence_length_histogram", LENGTH_BINS),
        ("lengths of A", "segment_a_length_histogram", SEGMENT_BINS),
        ("lengths of B", "segment_b_length_histogram", SEGMENT_BINS),
        ("masked of an instance", "masked_per_instance_histogram", tuple(range(1, 21))),
    ],
)
def test_histograms_are_the_originals(epochs, golden, kind, ours, theirs, bins):
    histogram = golden[kind][theirs]
    expected = np.array([histogram.get(str(length), 0) for length in range(MAX_LENGTH + 1)]) / PASSES_A_RUN
    counted = np.array([epoch[ours] for epoch in epochs])
    expected, counted = (np.add.reduceat(array[..., : bins[-1]], bins[:-1], axis=-1) for array in (expected, counted))
    apart = standard_errors_apart(counted, expected, PASSES_A_RUN)
    print(ours, np.round(apart, 1))
    assert np.abs(apart).max() < 5  # the largest of some ten to twenty, their spread known from fifteen passes
    assert np.sqrt(np.mean(apart**2)) < 2


def test_masked_pieces_are_as_many_as_the_originals_and_become_the_same(epochs, golden, kind):
    expected = golden[kind]
    ours = {
        "fraction_of_tokens_masked": ratios(epochs, "masked", "tokens"),
        "fraction_MASK": ratios(epochs, "MASK", "masked"),
        "fraction_same": ratios(epochs, "same", "masked"),
    }
    apart = {name: standard_errors_apart(values, expected[name], PASSES_A_RUN) for name, values in ours.items()}
    for name, values in ours.items():
        print(f"{kind:6}{name:28} {values.mean():10.6f} {expected[name]:10.6f} {apart[name]:6.2f}")
    assert apart == pytest.approx(dict.fromkeys(ours, 0.0), abs=4)
    assert sum(epoch["masked special"] + epoch["more than wanted"] for epoch in epochs) == 0
    fewer = sum(epoch["fewer than wanted"] for epoch in epochs) / NUM_EPOCHS
    assert fewer == 0 if kind == "plain" else fewer < 5  # the original: 2 in five passes


def test_words_are_covered_as_in_the_original(epochs, golden, kind):
    words = golden[kind]["whole_words"]
    num_words = words["masked_words_fully_covered"] + words["masked_words_partly_covered"]
    num_long = words["multi_piece_fully"] + words["multi_piece_partly"]
    in_full, long_share = ratios(epochs, "long words in full", "long words"), ratios(epochs, "long words", "words")
    expected = words["fraction_fully_covered_multi_piece"], num_long / num_words
    apart = [
        standard_errors_apart(values, value, PASSES_A_RUN)
        for values, value in zip((in_full, long_share), expected, strict=True)
    ]
    print(kind, "long words in full, share of long words", in_full.mean(), long_share.mean(), expected, apart)
    assert apart == pytest.approx([0, 0], abs=4)
    if kind == "wwm":
        assert np.all(in_full == 1)


# -- without the articles

NUM_DOCUMENTS = 1_000  # of the original's 3,000
NUM_MADE_UP_EPOCHS = 4


@pytest.fixture(scope="module")
def made_up(tmp_path_factory, golden):
    """Sentences as long as those of the articles, in any order, cut into as many documents a token as they have."""
    folder, random = tmp_path_factory.mktemp("made-up"), np.random.default_rng(5)
    counts = golden["plain"]["input"]["sentence_length_histogram"]
    lengths = random.permutation(np.repeat([int(length) for length in counts], list(counts.values())))
    num_tokens = golden["plain"]["input"]["tokens"] * NUM_DOCUMENTS // golden["plain"]["input"]["documents"]
    ends, cuts = lengths.cumsum(), np.linspace(0, num_tokens, NUM_DOCUMENTS + 1)
    words = [f"w{number:03}" for number in random.permutation(1_000)] * 2  # the longest sentence has 302
    with (folder / "text.txt").open("w") as stream:
        for first, last in zip(*np.searchsorted(ends, [cuts[:-1], cuts[1:]]), strict=True):
            for length, start in zip(lengths[first:last], random.integers(0, 1_000, last - first), strict=True):
                stream.write(" ".join(words[start : start + length]) + "\n")
            stream.write("\n")
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *words[:1_000]])
    prepare(Corpus([folder / "text.txt"]), tokenizer, folder / "out", lines_are_sentences=True, workers=1)
    return Dataset(folder / "out")


@pytest.fixture(scope="module")
def made_up_epochs(made_up, kind):
    return measured_epochs(made_up, whole_word=kind == "wwm", num_epochs=NUM_MADE_UP_EPOCHS)


def test_a_made_up_text_with_sentences_as_long_gives_nearly_the_originals_pairs(made_up, made_up_epochs, golden):
    """Not within the sampling error: sentences follow each other in another order."""
    ours, theirs = pairs_of(made_up_epochs, made_up.manifest["train"]["tokens"]), golden_pairs(golden)
    theirs["tokens_per_pass all"] *= made_up.manifest["train"]["tokens"] / golden["plain"]["input"]["tokens"]
    apart = {name: values.mean() / theirs[name] - 1 for name, values in ours.items()}
    print({name: f"{value:+.2%}" for name, value in apart.items()})
    assert apart == pytest.approx(dict.fromkeys(apart, 0.0), abs=0.015)


def test_masks_of_a_made_up_text_follow_the_originals_rules(made_up_epochs, golden, kind):
    """The original's number of masked pieces is the rule's for its lengths, in every instance; so is ours."""
    lengths, masked = (
        np.bincount([int(key) for key in golden[kind][name]], [*golden[kind][name].values()], MAX_LENGTH + 1)
        for name in ("sequence_length_histogram", "masked_per_instance_histogram")
    )
    by_rule = np.bincount(num_wanted(np.arange(MAX_LENGTH + 1)), lengths, MAX_LENGTH + 1)
    assert np.abs(by_rule - masked).sum() <= 2 * golden[kind]["instances_with_fewer_masked_than_target"]
    for epoch in made_up_epochs:
        assert epoch["masked special"] == epoch["more than wanted"] == epoch["fewer than wanted"] == 0
    for name, key in (("MASK", "fraction_MASK"), ("same", "fraction_same")):
        share, num_masked = golden[kind][key], sum(epoch["masked"] for epoch in made_up_epochs)
        error = np.sqrt(share * (1 - share) * (1 / num_masked + 1 / golden[kind]["masked_tokens"]))
        assert abs(sum(epoch[name] for epoch in made_up_epochs) / num_masked - share) < 4 * error, name
