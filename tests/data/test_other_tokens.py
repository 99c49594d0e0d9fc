"""P2, F9: data of GPT-1's and ELMo's tokens, from text to batches: exact, and the same from any state and rank."""

import itertools
import json
import random
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pytest
from numbered_corpus import epoch_of, instances_of, make_loader, ordinary_lengths, write_corpus, write_corpus_of

from bertworks.config import OBJECTIVES, DataSettings
from bertworks.data import inspect
from bertworks.data import prepare as units
from bertworks.data.loader import State
from bertworks.data.prepare import prepare
from bertworks.data.shards import MANIFEST, Dataset
from bertworks.errors import CorruptFile, UserError
from bertworks.files import sha256_of
from bertworks.text.corpus import Corpus
from bertworks.text.elmo_words import WordTokenizer, character_ids
from bertworks.text.gpt import GptTokenizer
from bertworks.text.sentences import split_sentences

KINDS = {"gpt-bpe": "ltr", "words": "bilm"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def numbered(kind, tmp_path_factory):
    return write_corpus_of(kind, tmp_path_factory.mktemp(kind), ordinary_lengths(48), num_shards=4)


@pytest.fixture(scope="module")
def loader(kind, numbered):
    def make(**options):
        return make_loader(numbered, **{"objective": KINDS[kind]} | options)

    return make


def take(loader, count, state=None):
    return list(itertools.islice(loader.batches(state), count))


def are_equal(some, others):
    return all(np.array_equal(a, b) for x, y in zip(some, others, strict=True) for a, b in zip(x, y, strict=True))


def spans(kind, slices):
    """The tokens of each instance, after seeing that what stands around them is what the kind has."""
    for instance in instances_of(slices):
        if kind == "words":
            assert (instance.ids[0], instance.ids[-1]) == (0, 1)  # <S>, </S>
        yield instance.ids[1:-1] if kind == "words" else instance.ids


# Instances


def test_an_epoch_has_every_token_once_in_spans_of_one_document(kind, numbered, loader):
    for epoch in range(2):
        found = [[id - numbered.num_special for id in span] for span in spans(kind, epoch_of(loader(), epoch))]
        assert sorted(itertools.chain(*found)) == list(range(numbered.document_ends[-1]))
        for span in found:
            assert span == list(range(span[0], span[-1] + 1))
            assert bisect_right(numbered.document_ends, span[0]) == bisect_right(numbered.document_ends, span[-1])


def test_spans_fill_all_of_max_length_but_at_the_ends_of_a_document(kind, numbered, loader):
    """GPT-1's have no special tokens in them, ELMo's have two."""
    most = 32 if kind == "gpt-bpe" else 30
    bounds = {0, *numbered.document_ends}
    lengths = []
    for span in spans(kind, epoch_of(loader())):
        first, last = span[0] - numbered.num_special, span[-1] - numbered.num_special
        lengths.append(len(span))
        assert len(span) == most or first in bounds or last + 1 in bounds
    assert max(lengths) == most


def test_cuts_differ_by_epoch_and_repeat_when_asked(kind, loader):
    epochs = [set(map(tuple, spans(kind, epoch_of(loader(), epoch)))) for epoch in range(2)]
    assert len(epochs[0] & epochs[1]) < 0.5 * len(epochs[0])
    repeated = [set(map(tuple, spans(kind, epoch_of(loader(dupe_factor=1), epoch)))) for epoch in range(2)]
    assert repeated[0] == repeated[1]


def test_nothing_is_masked_and_padding_lies_behind_the_tokens(loader):
    shapes = set()
    for packed in epoch_of(loader()):
        shapes.add(tuple(array.shape for array in packed))
        num_sequences = len(packed.next_labels)
        end = packed.cumulative_lengths[num_sequences]
        assert not packed.token_ids[end:].any()
        assert len(packed.masked_ids) == 0
        assert not packed.next_weights.any()
        assert not packed.segment_ids.any()
        for first, last in pairwise(packed.cumulative_lengths[: num_sequences + 1]):
            assert packed.position_ids[first:last].tolist() == list(range(last - first))
    assert len(shapes) == 1


# Order and state


def test_a_fresh_loader_goes_on_from_any_state_kept_as_json(loader):
    behind = take(loader(slices=2), 60)
    assert behind[-1][1].epoch >= 2
    for index in random.Random(3).sample(range(59), 8):
        state = State(*json.loads(json.dumps(behind[index][1])))
        (slices, state_behind), *_ = take(loader(slices=2), 1, state)
        assert are_equal(slices, behind[index + 1][0])
        assert state_behind == behind[index + 1][1]


def test_any_number_of_ranks_gives_the_same_global_batches(loader):
    alone = take(loader(slices=6, tokens=64), 20)
    for world_size in (2, 3, 6):
        ranks = [loader(slices=6, tokens=64, rank=rank, world_size=world_size) for rank in range(world_size)]
        for (slices, state), *shares in zip(alone, *(take(rank, 20) for rank in ranks), strict=True):
            together = [None] * 6
            for rank, (share, state_of_rank) in enumerate(shares):
                assert state_of_rank == state
                together[rank::world_size] = share
            assert are_equal(together, slices)


def test_seeds_differ_and_one_seed_repeats(loader):
    firsts = [take(loader(seed=seed), 1)[0][0] for seed in (0, 1, 0)]
    assert are_equal(firsts[0], firsts[2])
    assert not are_equal(firsts[0], firsts[1])


# Objectives


@pytest.mark.parametrize(
    ("given", "possible"), [("gpt-bpe", "objective=ltr,"), ("words", "objective=bilm"), ("wordpiece", "mlm")]
)
def test_an_objective_that_the_tokens_cannot_give_is_a_user_error(given, possible, tmp_path):
    make = write_corpus if given == "wordpiece" else lambda *rest: write_corpus_of(given, *rest)
    data = make(tmp_path, [[5, 9], [7]])
    for objective in ("mlm+nsp", "mlm", "ltr", "rtl", "bilm"):
        if objective in OBJECTIVES[given]:
            take(make_loader(data, objective=objective), 2)
        else:
            with pytest.raises(UserError, match=rf"objective={objective.replace('+', '.')} needs data of .*{possible}"):
                make_loader(data, objective=objective)


def test_inspect_shows_instances_of_the_usual_objective(kind, numbered):
    pieces = numbered.dataset.tokenizer.pieces
    for settings in (DataSettings(max_length=32), DataSettings(max_length=32, objective=KINDS[kind])):
        found = list(itertools.islice(inspect.instances(numbered.dataset, settings, seed=7), 5))
        for instance in found:
            assert set(instance["tokens"]) <= set(pieces)
            assert inspect.instance_text(instance) == " ".join(instance["tokens"])
            assert instance["masked_positions"] == []
    with pytest.raises(UserError, match="needs data of wordpiece"):
        next(inspect.instances(numbered.dataset, DataSettings(objective="mlm")))
    assert kind in inspect.summary_text(inspect.summary(numbered.dataset))


# Preparing


@pytest.fixture(scope="module")
def tokenizer(kind):
    if kind == "words":
        return WordTokenizer(["<S>", "</S>", "<UNK>", "river", "The", "the", ".", "mill"])
    joined = [("t", "h"), ("th", "e</w>"), ("r", "i"), ("l", "l</w>")]
    letters = [*LETTERS, *(letter + "</w>" for letter in LETTERS + ".,")]
    return GptTokenizer(["<unk>", *letters, *("".join(pair) for pair in joined)], joined)


@pytest.fixture
def corpus(tmp_path):
    rng = random.Random(5)
    words = ["the", "river", "mill", "ran", "past", "an", "old", "Café", "강물은", "東京", "nobody,", "x.", "y!", "z"]
    documents = [[" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(4)] for _ in range(60)]
    (tmp_path / "corpus.txt").write_text("".join("\n".join(lines) + "\n\n" for lines in documents), encoding="utf-8")
    return tmp_path / "corpus.txt", documents


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", 3_000)
    monkeypatch.setattr(units, "_TOKENIZED_AT_ONCE", 700)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.usefixtures("small_units")
def test_shards_hold_what_encode_makes_of_every_sentence(kind, corpus, tokenizer, tmp_path):
    manifest = prepare(Corpus([corpus[0]]), tokenizer, tmp_path / "data", workers=1)
    dataset = Dataset(tmp_path / "data")
    assert manifest["kind"] == dataset.tokenizer.kind == kind
    assert (dataset.tokenizer.pieces, dataset.tokenizer.rules) == (tokenizer.pieces, tokenizer.rules)
    tokens = np.concatenate([shard.tokens for shard in dataset.shards("train")]).tolist()
    inner = slice(1, -1) if kind == "words" else slice(None)
    sentences = [sentence for lines in corpus[1] for line in lines for sentence in split_sentences(line)]
    assert tokens == [id for sentence in sentences for id in tokenizer.encode(sentence).ids[inner]]
    for shard in dataset.shards("train"):
        dataset.check(shard)


@pytest.mark.usefixtures("small_units")
def test_any_number_of_processes_gives_the_same_bytes(corpus, tokenizer, tmp_path):
    for workers in (1, 3):
        out = tmp_path / f"data{workers}"
        prepare(Corpus([corpus[0]]), tokenizer, out, holdout=0.2, workers=workers)
    assert contents(tmp_path / "data1") == contents(tmp_path / "data3")


def test_a_corpus_without_text_leaves_nothing(tokenizer, tmp_path):
    (tmp_path / "corpus.txt").write_text("\u200b\n", encoding="utf-8")
    with pytest.raises(UserError, match="no text to train on"):
        prepare(Corpus([tmp_path / "corpus.txt"]), tokenizer, tmp_path / "data", workers=1)
    assert not (tmp_path / "data").exists()


# What the data knows of its vocabulary


@pytest.fixture
def prepared(corpus, tokenizer, tmp_path):
    prepare(Corpus([corpus[0]]), tokenizer, tmp_path / "data", workers=1)
    return tmp_path / "data"


def test_another_vocabulary_or_other_rules_are_refused(kind, prepared):
    path = prepared / ("vocab.txt" if kind == "words" else "vocab.json")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("mill", "milk") if kind == "words" else text.replace('"q"', '"Q"'), encoding="utf-8")
    with pytest.raises(CorruptFile, match="vocabulary is not the one"):
        Dataset(prepared)
    path.write_text(text, encoding="utf-8")
    config = prepared / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(settings | {"do_lower_case": not settings["do_lower_case"]}), encoding="utf-8")
    with pytest.raises(CorruptFile, match="disagree on the tokenizer settings"):
        Dataset(prepared)


@pytest.mark.parametrize("kind", ["gpt-bpe"], indirect=True)
def test_other_merges_are_refused(prepared):
    path = prepared / "merges.txt"
    path.write_text("\n".join(path.read_text(encoding="utf-8").split("\n")[:-2]) + "\n", encoding="utf-8")
    with pytest.raises(CorruptFile, match="vocabulary is not the one"):
        Dataset(prepared)


def test_a_kind_that_nobody_knows_is_refused(prepared):
    manifest = json.loads((prepared / MANIFEST).read_text(encoding="utf-8"))
    (prepared / MANIFEST).write_text(json.dumps(manifest | {"kind": "bytes"}), encoding="utf-8")
    with pytest.raises(CorruptFile, match="kind: 'bytes' is not allowed; choose 'wordpiece', 'gpt-bpe'"):
        Dataset(prepared)


# Characters


def test_the_table_of_characters_comes_with_words_only(kind, prepared, tokenizer):
    dataset = Dataset(prepared)
    if kind == "words":
        assert np.array_equal(dataset.characters(), character_ids(tokenizer.pieces))
        assert not dataset.characters().flags.writeable
        assert isinstance(dataset.characters().base, np.memmap)
    else:
        with pytest.raises(UserError, match="gpt-bpe tokens, which have no characters"):
            dataset.characters()


def write_table(folder, table):
    """Write another table and a manifest that lists it."""
    np.save(folder / "characters.npy", table)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    path = folder / "characters.npy"
    manifest["files"]["characters.npy"] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("kind", ["words"], indirect=True)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table: table[:-1], "has the shape"),
        (lambda table: table[:, :40], "has the shape"),
        (lambda table: table.astype(np.int64), "holds int64"),
        (lambda table: table + np.uint16(1), "character 262; the last one is 261"),
    ],
)
def test_a_table_that_does_not_fit_is_a_corrupt_file(prepared, tokenizer, change, reason):
    """F7: what compiled code would read without looking."""
    write_table(prepared, change(character_ids(tokenizer.pieces)))
    with pytest.raises(CorruptFile, match=reason):
        Dataset(prepared).characters()


@pytest.mark.parametrize("kind", ["words"], indirect=True)
def test_a_table_that_was_altered_cut_or_lost_is_a_corrupt_file(prepared):
    """F7."""
    path = prepared / "characters.npy"
    whole = path.read_bytes()
    for content, reason in ((whole[:-1] + b"\x00", "sha256"), (whole[:-7], "bytes where"), (b"", "bytes where")):
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=reason):
            Dataset(prepared).characters()
    path.unlink()
    with pytest.raises(CorruptFile, match="is missing"):
        Dataset(prepared).characters()
