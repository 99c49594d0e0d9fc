"""What a network says of windows of text: tests compare it with the windows' own right answers."""

from bertworks.tasks.evaluation import score_items
from bertworks.tasks.heads import KINDS, answer_items, tag_items
from bertworks.tasks.windows import decode_answers, unit_labels


def predict_answers(net, examples, encoded, layout):
    """Return what a network in evaluation mode answers to each question."""
    rows = score_items(net, KINDS["answer"], answer_items(encoded), layout).rows
    return decode_answers(examples, encoded, enumerate(rows))


def predict_tags(net, encoded, layout):
    """Return the number of every unit's best label and how likely it is, by a network in evaluation mode."""
    rows = score_items(net, KINDS["tag"], tag_items(encoded), layout).rows
    windows = zip(encoded.windows, rows, strict=True)
    return unit_labels(encoded, enumerate(row[window.positions] for window, row in windows))
