"""T8: every instance of a small corpus is one that the paper's algorithm can make, and makes as often."""

import random
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from instance_reference import Pair, Rules, explains, make_instances, num_to_predict, word_groups
from numbered_corpus import NUM_SPECIAL, epoch_of, instances_of, make_loader, ordinary_lengths, unpacked, write_corpus

from bertworks.data import kernel, loader

MAX_LENGTH = 32
NUM_PASSES = 100


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), ordinary_lengths(48), num_shards=4)


@pytest.fixture(scope="module")
def rules(numbered):
    ids = [numbered.tokenizer.id_of(token) for token in ("[CLS]", "[SEP]", "[MASK]")]
    return Rules(MAX_LENGTH, 0.1, 0.15, MAX_LENGTH, False, len(numbered.tokenizer), *ids, frozenset(numbered.continues))


@pytest.fixture(scope="module")
def instances(numbered):
    return instances_of(epoch_of(make_loader(numbered)))


def as_range(ids):
    """The range of corpus tokens that pieces are; fails where they are not consecutive."""
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    return range(ids[0] - NUM_SPECIAL, ids[0] - NUM_SPECIAL + len(ids))


def pairs_by_document(numbered, instances):
    pairs = defaultdict(list)
    for instance in instances:
        a, b = map(as_range, instance.parts())
        pairs[numbered.document_of(a.start)].append(Pair(a, b, bool(instance.label)))
    return {document: sorted(found, key=lambda pair: pair.a.start) for document, found in pairs.items()}


def test_an_instance_is_cls_a_sep_b_sep_with_segments_and_positions(instances, rules):
    for instance in instances:
        a, b = instance.parts()
        assert len(a) >= 1
        assert len(b) >= 1
        assert instance.original == [rules.cls, *a, rules.sep, *b, rules.sep]
        assert instance.segments == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert instance.positions == list(range(len(instance.ids)))
        assert len(instance.ids) <= MAX_LENGTH
    assert any(len(instance.ids) == MAX_LENGTH for instance in instances)


def test_b_follows_a_in_its_document_or_is_of_another_document(numbered, instances):
    for instance in instances:
        a, b = map(as_range, instance.parts())
        document = numbered.document_of(a.start)
        assert numbered.document_of(a.stop - 1) == document
        assert numbered.document_of(b.stop - 1) == numbered.document_of(b.start)
        assert (numbered.document_of(b.start) != document) == bool(instance.label)
        if not instance.label and len(instance.ids) < MAX_LENGTH:  # nothing was taken off
            assert b.start == a.stop
    assert {instance.label for instance in instances} == {0, 1}


def test_random_b_comes_from_every_shard(numbered, instances):
    moves = {tuple(numbered.shard_of(as_range(part).start) for part in instance.parts()) for instance in instances}
    assert moves == {(a, b) for a in range(4) for b in range(4)}


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_length": 8}, {"max_length": 13, "short_seq_prob": 1.0}, {"max_length": 64, "short_seq_prob": 0.0}],
)
def test_the_choices_of_the_original_algorithm_lead_to_the_pairs_of_every_document(numbered, settings):
    pairs = pairs_by_document(numbered, instances_of(epoch_of(make_loader(numbered, **settings))))
    most = settings.get("max_length", MAX_LENGTH) - 3

    def could_be_random_b(b, wanted):
        starts = numbered.documents[numbered.document_of(b.start)]
        for first in range(len(starts) - 1):
            end = first + 1
            while starts[end] - starts[first] < wanted and end < len(starts) - 1:
                end += 1
            yield range(starts[first], starts[end])

    assert pairs.keys() == set(range(len(numbered.documents)))
    for document, found in pairs.items():
        assert explains(numbered.documents[document], found, most, could_be_random_b), (document, found)


def test_tokens_are_taken_off_the_front_as_often_as_off_the_back(tmp_path):
    # Two sentences of 100 tokens for 29 places: in expectation, half of what is taken off each stood in front.
    numbered = write_corpus(tmp_path, [[100]] * 200)
    fronts = []
    for instance in instances_of(epoch_of(make_loader(numbered))):
        for part in map(as_range, instance.parts()):
            fronts.append((part.start % 100) / (100 - len(part)))
    assert len(fronts) == 400
    error = 0.5 / np.sqrt(85 * len(fronts))
    assert abs(np.mean(fronts) - 0.5) < 4 * error
    assert np.std(fronts) == pytest.approx(0.5 / np.sqrt(85), rel=0.15)  # each token by a coin of its own


def test_a_share_of_documents_has_a_shorter_target(tmp_path):
    numbered = write_corpus(tmp_path, [[1] * 100] * 300)
    pairs = pairs_by_document(numbered, instances_of(epoch_of(make_loader(numbered))))
    # In chunks of one-token sentences the target is the length of the longest pair that is not random.
    targets = [max((len(p.a) + len(p.b) for p in found if not p.is_random), default=29) for found in pairs.values()]
    shorter = [target for target in targets if target < 29]
    assert abs(len(shorter) / 300 - 0.1 * 27 / 28) < 4 * np.sqrt(0.09 / 300)
    assert min(shorter) < 9
    assert max(shorter) > 20


@pytest.mark.parametrize("limit", [None, 3])
def test_as_many_pieces_are_masked_as_the_rate_and_the_limit_say(numbered, rules, limit):
    rules = rules._replace(max_predictions=limit or MAX_LENGTH)
    for instance in instances_of(epoch_of(make_loader(numbered, max_predictions=limit))):
        assert len(instance.masked) == num_to_predict(len(instance.ids), rules)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm"])
@pytest.mark.parametrize("whole_word", [False, True])
def test_masks_fall_on_text_only_and_everything_else_is_left_as_it_was(numbered, rules, objective, whole_word):
    for instance in instances_of(epoch_of(make_loader(numbered, objective=objective, whole_word=whole_word))):
        assert instance.masked == sorted(set(instance.masked))
        for position, (id, original) in enumerate(zip(instance.ids, instance.original, strict=True)):
            assert position in instance.masked or id == original
            assert position not in instance.masked or original >= NUM_SPECIAL


def test_whole_words_are_masked_or_nothing_of_them(numbered, rules):
    rules = rules._replace(whole_word=True)
    found = instances_of(epoch_of(make_loader(numbered, whole_word=True)))
    over_separator = in_front = short = 0
    for instance in found:
        num_a = len(instance.parts()[0])
        groups = word_groups(instance.original, num_a, rules)
        masked = set(instance.masked)
        assert all(masked.issuperset(group) or masked.isdisjoint(group) for group in groups)
        wanted = num_to_predict(len(instance.ids), rules)
        left = [group for group in groups if masked.isdisjoint(group)]
        assert len(masked) <= wanted
        assert all(len(masked) + len(group) > wanted for group in left)  # no word that would have fitted is left
        short += len(masked) < wanted
        over_separator += any(group[0] <= num_a < group[-1] and group[0] in masked for group in groups)
        in_front += instance.original[1] in rules.continues and 1 in masked
    assert in_front  # a ## at the start of A has no word to go with and is one of its own
    assert over_separator  # a ## at the start of B goes with the last word of A
    assert short < len(found) / 20


def test_random_pieces_are_drawn_from_the_whole_vocabulary_special_ones_too(numbered, rules):
    """As in the original."""
    replaced = [
        instance.ids[position]
        for seed in range(60)
        for instance in instances_of(epoch_of(make_loader(numbered, mask_share=0.5, random_share=0.4, seed=seed)))
        for position in instance.masked
        if instance.ids[position] not in (rules.mask, instance.original[position])
    ]
    counts = np.bincount(replaced, minlength=len(numbered.tokenizer))
    assert len(counts) == len(numbered.tokenizer)
    parts = counts[: len(counts) // 20 * 20].reshape(20, -1).sum(axis=1)
    assert np.sum((parts - parts.mean()) ** 2 / parts.mean()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert counts[:NUM_SPECIAL].sum() > 0


@pytest.mark.parametrize(("mask_share", "random_share"), [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)])
def test_shares_of_one_kind_make_every_masked_piece_that_kind(numbered, rules, mask_share, random_share):
    found = instances_of(epoch_of(make_loader(numbered, mask_share=mask_share, random_share=random_share)))
    kept = [i.ids[p] == i.original[p] for i in found for p in i.masked]
    hidden = [i.ids[p] == rules.mask for i in found for p in i.masked]
    assert np.mean(hidden) == pytest.approx(mask_share, abs=0.005)
    assert np.mean(kept) == pytest.approx(1 - mask_share - random_share, abs=0.005)


FIGURES = (
    "instances", "length", "length of A", "length of B", "full", "random", "B of random", "masked", "MASK", "same",
    "words masked in full", "first masked",
)  # fmt: skip


def figures(instances, rules):
    """What is compared of one pass, in the order of FIGURES, from (a, b, label, ids, original, masked positions)."""
    lengths = np.array([len(ids) for _, _, _, ids, _, _ in instances])
    of_a, of_b = (np.array([len(instance[part]) for instance in instances]) for part in (0, 1))
    is_random = np.array([bool(label) for _, _, label, _, _, _ in instances])
    fates = [(ids[p], original[p]) for _, _, _, ids, original, masked in instances for p in masked]
    words = [
        set(masked).issuperset(group)
        for a, _, _, _, original, masked in instances
        for group in word_groups(original, len(a), rules._replace(whole_word=True))
        if len(group) > 1 and not set(masked).isdisjoint(group)
    ]
    return [
        len(instances), lengths.mean(), of_a.mean(), of_b.mean(), np.mean(lengths == rules.max_length),
        is_random.mean(), of_b[is_random].mean(), len(fates) / lengths.sum(),
        np.mean([id == rules.mask for id, _ in fates]), np.mean([id == original for id, original in fates]),
        np.mean(words), np.mean([min(masked, default=0) for *_, masked in instances]),
    ]  # fmt: skip


@pytest.mark.parametrize("whole_word", [False, True])
def test_distributions_are_those_of_the_plain_reference(numbered, rules, whole_word):
    """T8 on a small text: means over passes, which are independent of each other, within four standard errors."""
    rules = rules._replace(whole_word=whole_word)
    documents = [
        [list(range(start + NUM_SPECIAL, end + NUM_SPECIAL)) for start, end in pairwise(starts)]
        for starts in numbered.documents
    ]
    ours, theirs = [], []
    loader, rng = make_loader(numbered, tokens=2048, whole_word=whole_word), random.Random(5)
    batches, epoch, gathered = loader.batches(), 0, []
    while epoch < NUM_PASSES:
        (packed,), state = next(batches)
        if state.epoch > epoch:
            ours.append(figures(gathered, rules))
            epoch, gathered = state.epoch, []
        gathered += [(*i.parts(), i.label, i.ids, i.original, i.masked) for i in unpacked(packed)]
    for _ in range(NUM_PASSES):
        made = []
        for a, b, is_random, masked, ids in make_instances(documents, rules, rng):
            made.append((a, b, is_random, ids, [rules.cls, *a, rules.sep, *b, rules.sep], list(masked)))
        theirs.append(figures(made, rules))
    ours, theirs = np.array(ours), np.array(theirs)
    errors = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / NUM_PASSES)
    apart = (ours.mean(axis=0) - theirs.mean(axis=0)) / np.maximum(errors, 1e-9)
    assert dict(zip(FIGURES, apart, strict=True)) == pytest.approx(dict.fromkeys(FIGURES, 0.0), abs=4)


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_spans_cover_every_document_exactly_once_an_epoch(numbered, objective):
    found = instances_of(epoch_of(make_loader(numbered, objective=objective)))
    tokens = []
    for instance in found:
        span = as_range(instance.original[1:-1])
        assert 1 <= len(span) <= MAX_LENGTH - 2
        assert numbered.document_of(span.start) == numbered.document_of(span.stop - 1)
        assert set(instance.segments) == {0}
        assert bool(instance.masked) == (objective == "mlm")
        tokens += span
    assert sorted(tokens) == list(range(numbered.num_tokens))


def test_spans_are_full_but_for_the_ends_and_cut_elsewhere_in_another_epoch(numbered):
    loader = make_loader(numbered, objective="mlm")
    cuts = []
    for epoch in range(2):
        spans = [as_range(instance.original[1:-1]) for instance in instances_of(epoch_of(loader, epoch))]
        by_document = defaultdict(list)
        for span in sorted(spans, key=lambda span: span.start):
            by_document[numbered.document_of(span.start)].append(len(span))
        assert all(length == MAX_LENGTH - 2 for lengths in by_document.values() for length in lengths[1:-1])
        assert all(len(lengths) == 1 for lengths in by_document.values() if sum(lengths) <= MAX_LENGTH - 2)
        cuts.append({span.start for span in spans})
    assert len(cuts[0] & cuts[1]) < 0.5 * len(cuts[0])


def chi_square(draws, num_cells):
    counts = np.bincount((np.asarray(draws) * num_cells).astype(int), minlength=num_cells)
    expected = len(draws) / num_cells
    return np.sum((counts - expected) ** 2 / expected)


def test_draws_look_uniform_over_counters_and_over_neighbouring_keys():
    over_counters = kernel.order_keys(kernel.derive_key(0, 0), 50_000) / 2.0**64
    over_keys = [float(kernel.order_keys(kernel.derive_key(5, key), 1)[0]) / 2.0**64 for key in range(20_000)]
    for draws in (over_counters, over_counters * 1e4 % 1, np.array(over_keys)):
        assert 61 < chi_square(draws, 100) < 149  # 99 degrees of freedom, p = 0.001 on both sides
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(len(draws))


def test_every_bit_of_a_key_turns_every_bit_of_a_draw_half_the_time():
    keys = np.random.default_rng(0).integers(0, 2**40, 500).tolist()
    draws = np.array([kernel.order_keys(key, 1)[0] for key in keys])
    for bit in range(63):
        turned = draws ^ np.array([kernel.order_keys(key ^ (1 << bit), 1)[0] for key in keys])
        shares = np.unpackbits(turned.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(shares - 0.5).max() < 6 * 0.5 / np.sqrt(500), bit


def test_no_two_documents_share_a_key_in_any_of_some_epochs():
    keys = {
        kernel.derive_key(epoch_key, document)
        for epoch_key in (kernel.derive_key(1, epoch) for epoch in range(3))
        for document in (loader._ORDER, *range(100_000))  # what shuffles has a key beside the documents
    }
    assert len(keys) == 3 * 100_001
    assert min(keys) >= 0  # 63 bits, so it passes as a plain int
