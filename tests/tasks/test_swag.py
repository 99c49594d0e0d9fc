"""Choices among endings: SWAG's CSV and CODAH's TSV."""

import pytest

from bertworks.tasks import TASKS
from bertworks.tasks.task import ChoiceExample, open_dataset

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


def test_swag_reads_the_start_of_the_second_sentence_with_each_ending(write, tmp_path):
    row = '0,v,1,"A man, old. He",  "A man, old.",He,gold,runs.,sits.,"flies, far.",eats.'
    write("swag/train.csv", f"{HEADER},label\n{row.replace('  ', '')},2\n")
    write("swag/test.csv", f"{HEADER}\n{row.replace('  ', '')}\n")
    endings = ("He runs.", "He sits.", "He flies, far.", "He eats.")
    dataset = open_dataset(TASKS["swag"], tmp_path)
    assert list(dataset.examples("train")) == [ChoiceExample("0", "A man, old.", endings, 2)]
    assert list(dataset.examples("test")) == [ChoiceExample("0", "A man, old.", endings, None)]


def test_an_ending_alone_stays_as_it_is(write, tmp_path):
    write("swag_like_val.csv", f"{HEADER},label\n0,v,1,s,Context.,,gold,One.,Two.,Three.,Four.,0\n")
    (example,) = open_dataset(TASKS["swag-like"], tmp_path).examples("dev")
    assert example.endings == ("One.", "Two.", "Three.", "Four.")


@pytest.mark.parametrize("fold", range(5))
def test_codah_has_five_folds(write, tmp_path, fold):
    write(f"codah/cv_split/fold_{fold}/dev.tsv", f"o\tI am\thungry {fold}.\tb\tc\td\t3\n")
    (example,) = open_dataset(TASKS[f"codah-{fold}" if fold else "codah"], tmp_path).examples("dev")
    assert example == ChoiceExample("0", "I am", (f"hungry {fold}.", "b", "c", "d"), 3)


@pytest.mark.parametrize("label", ["4", "-1", "", "one", "1.5", "²"])
def test_a_label_that_is_no_ending_is_told_with_its_line(write, tmp_path, refusal, label):
    write("codah/cv_split/fold_0/dev.tsv", f"o\tI\ta\tb\tc\td\t0\no\tI\ta\tb\tc\td\t{label}\n")
    words = refusal(open_dataset(TASKS["codah"], tmp_path).examples("dev"))
    assert f"dev.tsv:2: {label!r} is not the number of an ending; allowed: 0 to 3" in words


def test_a_missing_column_of_swag_is_told_with_those_there_are(write, tmp_path, refusal):
    write("swag/val.csv", "sent1,ending0,label\na,b,0\n")
    words = refusal(open_dataset(TASKS["swag"], tmp_path).examples("dev"))
    assert "val.csv:2: no column 'sent2'; there are: 'sent1', 'ending0', 'label'" in words
