"""Pre-training instances the slow way: what the paper's script does, said plainly, and a check that replays it.

`make_instances` draws its own random numbers, for comparing distributions. `explains` has none: it takes the instances
that somebody made of a document and tells whether any choices of the algorithm lead to exactly them.
"""

from typing import NamedTuple


class Instance(NamedTuple):
    a: list[int]
    b: list[int]
    is_random: bool
    masked: dict[int, int]  # position in [CLS] a [SEP] b [SEP] -> the piece that stood there
    ids: list[int]  # after masking


class Rules(NamedTuple):
    max_length: int
    short_seq_prob: float
    mask_rate: float
    max_predictions: int
    whole_word: bool
    vocab_size: int
    cls: int
    sep: int
    mask: int
    continues: frozenset[int]  # ids of pieces that go on with a word


def make_instances(documents, rules, rng):
    """Make the instances of one pass over documents, each a list of sentences, each a list of ids."""
    for number, sentences in enumerate(documents):
        for a, b, is_random in pairs_of(number, sentences, documents, rules, rng):
            yield masked_instance(a, b, is_random, rules, rng)


def pairs_of(number, sentences, documents, rules, rng):
    most = rules.max_length - 3
    target = rng.randint(2, most) if rng.random() < rules.short_seq_prob else most
    waiting = list(sentences)
    while waiting:
        chunk = chunk_of(waiting, target)
        num_a = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        a, b = joined(chunk[:num_a]), joined(chunk[num_a:])
        is_random = len(chunk) == 1 or rng.random() < 0.5
        if is_random:
            other = rng.choice([index for index in range(len(documents)) if index != number])
            start = rng.randrange(len(documents[other]))
            b = joined(chunk_of(documents[other][start:], target - len(a)))
        waiting = waiting[num_a if is_random else len(chunk) :]
        yield *truncated(a, b, most, rng), is_random


def joined(sentences):
    return [id for sentence in sentences for id in sentence]


def chunk_of(sentences, target):
    """The first sentences, as many as reach the target length."""
    chunk = sentences[:1]
    while sum(map(len, chunk)) < target and len(chunk) < len(sentences):
        chunk = sentences[: len(chunk) + 1]
    return chunk


def truncated(a, b, most, rng):
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


def masked_instance(a, b, is_random, rules, rng):
    ids = [rules.cls, *a, rules.sep, *b, rules.sep]
    groups = word_groups(ids, len(a), rules)
    rng.shuffle(groups)
    wanted = num_to_predict(len(ids), rules)
    chosen = []
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen += group
    masked = {position: ids[position] for position in sorted(chosen)}
    for position in masked:
        if rng.random() < 0.8:
            ids[position] = rules.mask
        elif rng.random() < 0.5:
            ids[position] = rng.randrange(rules.vocab_size)
    return Instance(a, b, is_random, masked, ids)


def word_groups(ids, num_a, rules):
    """Positions that are masked together, separators left out; a `##` at the start of B joins the last word of A."""
    groups = []
    for position in [*range(1, num_a + 1), *range(num_a + 2, len(ids) - 1)]:
        if rules.whole_word and groups and ids[position] in rules.continues:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def num_to_predict(length, rules):
    return min(rules.max_predictions, max(1, round(length * rules.mask_rate)))


class Pair(NamedTuple):
    """Where an instance was taken from: token ranges in a corpus that is numbered through."""

    a: range
    b: range
    is_random: bool


def explains(sentence_starts, pairs, most, could_be_random_b):
    """Tell whether some choices of the algorithm turn a document into exactly these pairs, in this order.

    Args:
        sentence_starts: where the document's sentences start, and its end.
        pairs: all of a document, in the order of A.
        most: tokens of A and B together.
        could_be_random_b: says of (wanted length) which untruncated ranges a random B can be; see `follows`.
    """
    return any(follows(sentence_starts, pairs, most, target, could_be_random_b) for target in [most, *range(2, most)])


def follows(starts, pairs, most, target, could_be_random_b):
    if not pairs or len(starts) < 2:
        return not pairs and len(starts) == 1
    pair, num_sentences = pairs[0], 1
    while starts[num_sentences] - starts[0] < target and num_sentences < len(starts) - 1:
        num_sentences += 1
    for num_a in range(1, max(2, num_sentences)):
        a = range(starts[0], starts[num_a])
        if pair.is_random:
            sources, used = could_be_random_b(pair.b, target - len(a)), num_a
        else:
            sources, used = [range(starts[num_a], starts[num_sentences])] if num_sentences > 1 else [], num_sentences
        fits = any(is_cut_of(pair, a, b, most) for b in sources)
        if fits and follows(starts[used:], pairs[1:], most, target, could_be_random_b):
            return True
    return False


def is_cut_of(pair, a, b, most):
    """Whether truncation leads from (a, b) to the pair; what it leaves of each is certain, only from where is not."""
    len_a, len_b = len(a), len(b)
    while len_a + len_b > most:
        if len_a > len_b:
            len_a -= 1
        else:
            len_b -= 1
    return (
        (len(pair.a), len(pair.b)) == (len_a, len_b)
        and a.start <= pair.a.start and pair.a.stop <= a.stop
        and b.start <= pair.b.start and pair.b.stop <= b.stop
    )  # fmt: skip
