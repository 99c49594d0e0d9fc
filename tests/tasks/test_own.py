"""Your own files: what is guessed and said, what is refused, and one dataset whatever the form."""

import json
import unicodedata

import pytest

from bertworks.errors import UserError
from bertworks.tasks import squad as squad_module
from bertworks.tasks.metrics import measure
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import Answer, ChoiceExample, Columns, Skipped, SpanExample, TextExample

RECORDS = [
    {"review": "so good", "stars": "good", "id": "a"},
    {"review": "so, bad", "stars": "bad", "id": "b"},
    {"review": "meh", "stars": "fair", "id": "c"},
]


def as_csv(records):
    quoted = (",".join(f'"{value}"' for value in record.values()) for record in records)
    return "\n".join([",".join(records[0]), *quoted])


def as_tsv(records):
    return "\n".join(["\t".join(records[0]), *("\t".join(record.values()) for record in records)])


def as_json_lines(records):
    return "\n".join(map(json.dumps, records))


@pytest.mark.parametrize(
    ("name", "written"), [("a.csv", as_csv), ("a.tsv", as_tsv), ("a.jsonl", as_json_lines), ("a.json", json.dumps)]
)
def test_every_form_gives_the_same_dataset(write, name, written):
    dataset = open_own("classify", {"train": write(name, written(RECORDS))})
    assert dataset.task.labels == ("bad", "fair", "good")
    assert list(dataset.examples("train")) == [
        TextExample("a", "so good", None, "good"),
        TextExample("b", "so, bad", None, "bad"),
        TextExample("c", "meh", None, "fair"),
    ]
    assert dataset.notes == (
        f"{name}: text from 'review' (guessed); label from 'stars' (guessed); id from 'id' (guessed)",
    )


def test_usual_names_are_korean_too(write):
    path = write("a.csv", "번호,리뷰,평가,날짜\n7,좋아요,좋음,1\n8,싫어요,나쁨,2\n")
    dataset = open_own("classify", {"train": path})
    assert next(dataset.examples("train")) == TextExample("7", "좋아요", None, "좋음")
    assert dataset.task.columns.stated() == {"text": "리뷰", "label": ["평가"], "id": "번호"}


def test_parquet_gives_it_too(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": [1, 0, None]}), tmp_path / "a.parquet")
    dataset, skipped = open_own("classify", {"train": tmp_path / "a.parquet"}), Skipped()
    assert dataset.task.labels == ("0", "1")
    assert [example.label for example in dataset.examples("train", skipped)] == ["1", "0"]
    assert skipped.counts == {"rows without a label": 1}


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary"]
)
def test_text_of_parquet_is_of_any_type(tmp_path, refusal, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    wanted = pa.dictionary(pa.int32(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    table = {
        "text": pa.array(["좋다", "b"], pa.string()).cast(wanted), "label": pa.array(["x", "y"]).cast(wanted),
        "image": pa.array([b"\xff\xd8", b"\xff"]),
    }  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    found = list(open_own("classify", {"train": tmp_path / "a.parquet"}).examples("train"))
    assert [(one.first, one.label) for one in found] == [("좋다", "x"), ("b", "y")]
    told = refusal(lambda: open_own("classify", {"train": tmp_path / "a.parquet"}, {"text": "image"}).examples("train"))
    assert "a.parquet: row 1: column 'image' is binary, and not UTF-8 text" in told


def with_class_names(table, **features):
    """As Hugging Face's datasets save a table: with the names of classes in the metadata of its schema."""
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.mark.parametrize("kind", ["Sequence", "List", "LargeList"])
def test_numbers_of_classes_have_the_names_that_parquet_gives_them(tmp_path, refusal, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tags = {"feature": {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}, "_type": kind}
    table = pa.table({"tokens": [["Ada", "King", "sat"], ["so"]], "ner_tags": [[1, 2, 0], [0]]})
    for path, written in (("a.parquet", with_class_names(table, ner_tags=tags)), ("b.parquet", table)):
        pq.write_table(written, tmp_path / path)
    dataset = open_own("tag", {"train": tmp_path / "a.parquet"})
    assert [example.tags for example in dataset.examples("train")] == [("B-PER", "I-PER", "O"), ("O",)]
    assert dataset.task.labels == ("O", "B-PER", "I-PER")
    told = refusal(lambda: open_own("tag", {"train": tmp_path / "b.parquet"}))
    assert "b.parquet: row 1: column 'ner_tags' has numbers without names; write the names of the tags" in told


def test_numbers_of_labels_have_the_names_that_parquet_gives_them(tmp_path, refusal):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    label = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    pq.write_table(with_class_names(table, text={"dtype": "string", "_type": "Value"}, label=label), tmp_path / "a")
    dataset, skipped = open_own("classify", {"train": tmp_path / "a"}), Skipped()
    assert [example.label for example in dataset.examples("train", skipped)] == ["pos", "neg"]
    assert skipped.counts == {"rows without a label": 1}
    pq.write_table(with_class_names(table, label=label | {"names": ["neg"]}), tmp_path / "b")
    told = refusal(lambda: open_own("classify", {"train": tmp_path / "b"}))
    assert "b: row 1: column 'label': 1 is not the number of a class; the file names 1 of them" in told


@pytest.mark.parametrize("metadata", [b"{", b"\xff", b"[]", b'{"info": 7}', b'{"info": {"features": {"text": []}}}'])
def test_metadata_that_names_nothing_is_passed_over_or_told(tmp_path, metadata):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": ["a", "b"], "label": [1, 0]}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = open_own("classify", {"train": tmp_path / "a.parquet"})
    assert dataset.task.labels == ("0", "1")


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path, refusal):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.Table.from_arrays([pa.array(["a", "b"])] * 3, names=["text", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    told = refusal(lambda: open_own("classify", {"train": tmp_path / "a.parquet"}))
    assert "a.parquet: 2 columns are named 'label'" in told


def test_a_pair_is_found_and_what_is_not_used_is_said(write):
    path = write("a.tsv", "premise\thypothesis\tgold_label\tgenre\nA\tB\tyes\tx\nC\tD\tno\tx\n")
    dataset = open_own("classify", {"train": path})
    assert dataset.task.is_pair
    assert next(dataset.examples("train")) == TextExample("0", "A", "B", "yes")
    assert dataset.notes[0].endswith("not used: 'genre'")


def test_named_columns_go_over_guesses(write):
    path = write("a.csv", "text,summary,label,topic\nlong,short,1,sport\nlong,brief,0,art\n")
    dataset = open_own("classify", {"train": path}, Columns(text="summary", label=("topic",)))
    assert [(example.first, example.label) for example in dataset.examples("train")] == [
        ("short", "sport"),
        ("brief", "art"),
    ]
    assert "text from 'summary'; label from 'topic'; not used: 'text', 'label'" in dataset.notes[0]


def test_columns_may_be_a_mapping_and_one_label_need_be_no_list(write, refusal):
    path = write("a.csv", "text,summary,label,topic\nlong,short,1,sport\nlong,brief,0,art\n")
    for columns in ({"text": "summary", "label": "topic"}, Columns(text="summary", label="topic")):
        dataset = open_own("classify", {"train": path}, columns)
        assert [example.label for example in dataset.examples("train")] == ["sport", "art"]
    told = refusal(lambda: open_own("classify", {"train": path}, {"texts": "summary"}))
    assert "columns: to classify there is no 'texts'; allowed: text, pair, label" in told


@pytest.mark.parametrize(("kind", "name", "content"), [("tag", "a.conll", "Rolf B-PER\n"), ("answer", "a.json", "{}")])
def test_columns_are_not_named_where_a_file_has_none(write, refusal, kind, name, content):
    path = write(name, content)
    told = refusal(lambda: open_own(kind, {"train": path}, Columns(id="x")))
    assert "has a form of its own, without names of columns; leave out --column" in told


def test_one_column_left_over_is_the_text(write):
    dataset = open_own("classify", {"train": write("a.csv", "이것,label\n좋다,1\n싫다,0\n")})
    assert [example.first for example in dataset.examples("train")] == ["좋다", "싫다"]


def test_the_only_column_is_not_guessed_for_its_name_may_be_a_text(write, refusal):
    """A file of texts alone would lose its first one."""
    path = write("a.csv", "a fine film\nbad one\n")
    words = refusal(lambda: open_own("classify", {"test": path}, labels=["0", "1"], to_predict=True))
    assert "there are: 'a fine film'; if that is a text, write `text` on a line above it" in words
    named = open_own("classify", {"test": path}, Columns(text="a fine film"), ["0", "1"], to_predict=True)
    assert [example.first for example in named.examples("test")] == ["bad one"]


def test_columns_that_cannot_be_guessed_are_asked_for_with_the_list(write, refusal):
    path = write("a.csv", "one,two,three\na,b,c\n")
    words = refusal(lambda: open_own("classify", {"train": path}))
    assert "which column is the text?" in words
    assert "name it with --column text=NAME, in Python with columns" in words
    assert "there are: 'one', 'two', 'three'" in words
    words = refusal(lambda: open_own("classify", {"train": path}, Columns(text="one")))
    assert "which column is the label?" in words
    words = refusal(lambda: open_own("classify", {"train": path}, Columns(text="four")))
    assert "no column 'four'; there are: 'one', 'two', 'three'" in words


def test_several_labels_are_told_that_each_may_have_a_column(write, refusal):
    words = refusal(lambda: open_own("multilabel", {"train": write("a.csv", "text,food,film\na,0,1\n")}))
    assert "--column label=NAME (again for each label, where each has a column of 0 and 1), in Python" in words


def test_labels_that_are_numbers_are_in_their_order(write):
    path = write("a.csv", "text,label\n" + "".join(f"t{i},{i}\n" for i in (10, 9, -2, 2)))
    assert open_own("classify", {"train": path}).task.labels == ("-2", "2", "9", "10")


def test_minus_one_beside_numbers_from_0_is_no_label_and_counted(write):
    train = write("a.csv", "text,label\n" + "".join(f"t{i},{label}\n" for i, label in enumerate((0, 1, -1, 0, -1))))
    dataset = open_own("classify", {"train": train, "dev": write("b.csv", "text,label\na,-1\nb,1\n")})
    for split, kept, missing in (("train", 3, 2), ("dev", 1, 1)):
        skipped = Skipped()
        assert len(list(dataset.examples(split, skipped))) == kept
        assert skipped.counts == {"rows with the label -1, read as no label": missing}
    assert dataset.task.labels == ("0", "1")
    assert [example.label for example in open_own("regress", {"train": train}).examples("train")] == [0, 1, -1, 0, -1]


@pytest.mark.parametrize("labels", [("-1", "1"), ("-2", "-1", "0", "1"), ("-1", "good", "bad")])
def test_minus_one_is_a_label_like_others_elsewhere(write, labels):
    path = write("a.csv", "text,label\n" + "".join(f"t{i},{label}\n" for i, label in enumerate(labels)))
    assert open_own("classify", {"train": path}).task.labels[labels[0] == "-2"] == "-1"


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [(["--1", "2"], ("--1", "2")), (["1", "01"], ("01", "1")), (["9" * 5_000, "1"], ("1", "9" * 5_000))],
)
def test_labels_that_only_look_like_numbers_are_words(write, labels, ordered):
    path = write("a.csv", "text,label\n" + "".join(f"t,{label}\n" for label in labels))
    assert open_own("classify", {"train": path}).task.labels == ordered


def test_a_label_that_only_dev_has_is_told_with_its_line(write, refusal):
    train, dev = write("a.csv", "text,label\na,x\nb,y\n"), write("b.csv", "text,label\na,x\nb,z\n")
    dataset = open_own("classify", {"train": train, "dev": dev})
    assert "b.csv:3: 'z' is not a label here; allowed: x, y" in refusal(dataset.examples("dev"))


def test_a_test_file_may_lack_labels_and_a_dev_file_may_not(write, refusal):
    train, bare = write("a.csv", "text,label\na,x\nb,y\n"), write("b.csv", "text\na\n")
    dataset = open_own("classify", {"train": train, "test": bare}, Columns(label=("label",)))
    assert list(dataset.examples("test")) == [TextExample("0", "a", None, None)]
    assert "no column 'label'" in refusal(
        lambda: open_own("classify", {"train": train, "dev": bare}, Columns(label=("label",)))
    )
    assert "which column is the label?" in refusal(lambda: open_own("classify", {"train": train, "dev": bare}))


def test_a_models_labels_take_the_place_of_a_train_file(write, refusal):
    path = write("b.csv", "text,label\na,x\n")
    dataset = open_own("classify", {"test": path}, labels=["y", "x"])
    assert dataset.task.labels == ("y", "x")
    assert [example.label for example in dataset.examples("test")] == ["x"]
    assert "the labels are not known" in refusal(lambda: open_own("classify", {"test": path}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text,label\na,x\nb,x\n", "has 1 label; there must be at least 2"),  # one class only
        ("text,label\na,x\n", "has 1 label"),  # one example
        ("text,label\n", "has no rows"),
        (
            "text,label\n" + "".join(f"a,{i}.5\n" for i in range(150)),
            "150 different values in 150 rows; is it the label?",
        ),
        ('text,label\na,x\nb,"y\n', "a.csv:3: not CSV"),
        ("text,label\na,x\nb\n", "a.csv:3: 1 column where 2"),
    ],
)
def test_a_file_that_teaches_nothing_is_refused(write, refusal, content, words):
    """T9: one class, one example, no rows, labels that are none, a broken row."""
    assert words in refusal(lambda: open_own("classify", {"train": write("a.csv", content)}))


def test_too_many_labels_are_noticed_before_the_memory_is_full(write, refusal, monkeypatch):
    monkeypatch.setattr("bertworks.tasks.own_files._MAX_LABELS", 200)
    path = write("a.csv", "text,label\n" + "".join(f"a,{i}.5\n" for i in range(10_000)))
    assert "in 201 rows" in refusal(lambda: open_own("classify", {"train": path}))
    path = write("b.csv", "text,label\n" + "".join(f"a,{i}\n" * 5 for i in range(10_000)))
    assert "201 different values" in refusal(lambda: open_own("classify", {"train": path}))


@pytest.mark.parametrize("value", [["x"], {"a": 1}])
def test_a_label_that_is_a_list_or_an_object_is_told_with_its_line(write, refusal, value):
    path = write("a.jsonl", as_json_lines([{"text": "a", "label": "x"}, {"text": "b", "label": value}]))
    assert "a.jsonl:2: column 'label': " in refusal(lambda: open_own("classify", {"train": path}))


def test_scores_are_numbers_and_nothing_else(write, refusal):
    path = write("a.csv", "text,score\na,-3.5\nb,1e3\n")
    dataset = open_own("regress", {"train": path})
    assert [example.label for example in dataset.examples("train")] == [-3.5, 1000.0]
    assert dataset.task.labels == ()
    for word in ("nan", "inf", "1,5", "1e300", "-1e39"):
        bad = open_own("regress", {"train": write("b.tsv", f"text\tscore\na\t1\nb\t{word}\n")})
        assert f"b.tsv:3: '{word}' is not a score; it must be a number" in refusal(bad.examples("train"))


def test_a_score_that_is_nan_is_refused_in_parquet_as_in_text_and_a_missing_one_is_left_out(tmp_path, write, refusal):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": ["a", "b", "c"], "score": [1.0, None, 2.0]}), tmp_path / "a.parquet")
    dataset, skipped = open_own("regress", {"train": tmp_path / "a.parquet"}), Skipped()
    assert [example.label for example in dataset.examples("train", skipped)] == [1.0, 2.0]
    assert "row 2" in str(skipped)
    pq.write_table(pa.table({"text": ["a", "b"], "score": [1.0, float("nan")]}), tmp_path / "b.parquet")
    for path, place in ((tmp_path / "b.parquet", ": row 2"), (write("b.csv", "text,score\na,1\nb,nan\n"), ":3")):
        told = refusal(open_own("regress", {"train": path}).examples("train"))
        assert f"{path}{place}: 'nan' is not a score; it must be a number" in told


@pytest.mark.parametrize("cell", ["a|b", "a;b", '"a, b"', '"[""a"", ""b""]"'])
def test_several_labels_are_a_list_in_a_cell(write, cell):
    path = write("m.csv", f"text,labels\nt,{cell}\nt,b\nt,\n")
    dataset = open_own("multilabel", {"train": path})
    assert dataset.task.labels == ("a", "b")
    assert [example.label for example in dataset.examples("train")] == [("a", "b"), ("b",), ()]


def test_labels_are_divided_at_one_sign_and_those_of_a_list_are_not(write):
    path = write("m.csv", 'text,labels\nt,"a, b|c;d"\nt,"a, b;c"\nt,"[""a, b"", ""c""]"\n')
    found = [example.label for example in open_own("multilabel", {"train": path}).examples("train")]
    assert found == [("a, b", "c;d"), ("a, b", "c"), ("a, b", "c")]


def test_a_list_in_a_cell_that_is_none_is_told_with_its_line(write, refusal):
    path = write("m.csv", 'text,labels\nt,"[""a"""\n')
    assert "m.csv:2: '[\"a\"' is not a list of labels" in refusal(lambda: open_own("multilabel", {"train": path}))


def test_several_labels_are_a_list_in_json_or_a_column_each(write, refusal):
    path = write("m.jsonl", as_json_lines([{"text": "t", "labels": ["b", "a", "b"]}, {"text": "t", "labels": []}]))
    dataset = open_own("multilabel", {"train": path})
    assert [example.label for example in dataset.examples("train")] == [("b", "a"), ()]
    path = write("c.csv", "text,toxic,insult\nt,1,0\nt,0,0\nt,1,1\n")
    columns = Columns(label=("toxic", "insult"))
    dataset = open_own("multilabel", {"train": path}, columns)
    assert dataset.task.labels == ("toxic", "insult")
    gold = [example.label for example in dataset.examples("train")]
    assert gold == [("toxic",), (), ("toxic", "insult")]
    assert measure(dataset.task, gold, gold)["f1"] == 1
    wrong = open_own("multilabel", {"train": write("d.csv", "text,toxic,insult\nt,1,2\n")}, columns)
    assert "d.csv:2: '2' is not a label here; allowed: 0, 1, false, true" in refusal(wrong.examples("train"))
    assert "'multilabel'" in refusal(lambda: open_own("classify", {"train": path}, columns))


def test_choices_are_columns_or_a_list(write, refusal):
    expected = [ChoiceExample("0", "I am", ("old", "new"), 1)]
    path = write("c.csv", "context,ending0,ending1,label\nI am,old,new,1\n")
    assert list(open_own("choose", {"train": path}).examples("train")) == expected
    path = write("c.jsonl", '{"prompt": "I am", "choices": ["old", "new"], "label": 1}')
    assert list(open_own("choose", {"train": path}).examples("train")) == expected
    path = write("d.jsonl", '{"prompt": "I am", "choices": ["old", 7], "label": 1}')
    assert "d.jsonl:1: choices[1]: a whole number where a string" in refusal(
        open_own("choose", {"train": path}).examples("train")
    )
    path = write("e.jsonl", '{"prompt": "I am", "choices": ["old"], "label": 0}')
    assert "1 ending; a choice needs two" in refusal(open_own("choose", {"train": path}).examples("train"))
    path = write("f.csv", "context,ending0,ending1,label\nI am,old,new,2\n")
    assert "f.csv:2: '2' is not the number of an ending" in refusal(
        open_own("choose", {"train": path}).examples("train")
    )


def test_the_right_ending_may_be_a_letter(write, refusal):
    expected = [ChoiceExample("0", "I am", ("old", "new"), 1)]
    for column, right in (("label", "B"), ("answer", "b"), ("answerKey", "B"), ("answer", "1")):
        path = write("c.csv", f"question,A_text,choice_a,choice_b,{column}\nI am,x,old,new,{right}\n")
        assert list(open_own("choose", {"train": path}).examples("train")) == expected
    path = write("c.csv", "context,ending0,ending1,label\nI am,old,new,C\n")
    told = refusal(open_own("choose", {"train": path}).examples("train"))
    assert "c.csv:2: 'C' is not the number of an ending; allowed: 0 to 1, or A to B" in told


def test_a_choice_without_a_label_is_left_out_and_counted(write):
    path, skipped = write("c.csv", "context,ending0,ending1,label\na,b,c,-1\na,b,c,\na,b,c,1\n"), Skipped()
    assert len(list(open_own("choose", {"train": path}).examples("train", skipped))) == 1
    assert skipped.counts == {"rows with the label -1, read as no label": 1, "rows without a label": 1}


@pytest.mark.parametrize(("names", "right"), [(["A", "B"], "B"), (["1", "2"], "2"), ([1, 2], 2)])
def test_an_answer_is_one_of_the_names_of_the_endings_where_they_have_any_as_in_arc(write, names, right):
    record = {"question": "I am", "choices": {"text": ["old", "new"], "label": names}, "answerKey": right}
    path = write("c.jsonl", as_json_lines([record]))
    assert list(open_own("choose", {"train": path}).examples("train")) == [
        ChoiceExample("0", "I am", ("old", "new"), 1)
    ]


def test_a_row_may_have_fewer_endings_and_leaves_the_last_columns_empty(write, refusal):
    head = "context,ending0,ending1,ending2,label\n"
    dataset = open_own("choose", {"train": write("c.csv", f"{head}a,b,c,,0\nd,e,f,g,2\n")})
    assert [(one.endings, one.label) for one in dataset.examples("train")] == [(("b", "c"), 0), (("e", "f", "g"), 2)]
    for row, words in (
        ("a,b,c,,2", "c.csv:2: '2' is not the number of an ending; allowed: 0 to 1"),
        ("a,b,,c,0", "c.csv:2: column 'ending1' is empty, and an ending after it is not"),
        ("a,b,,,0", "c.csv:2: 1 ending; a choice needs two"),
    ):
        path = write("c.csv", f"{head}{row}\n")
        assert words in refusal(open_own("choose", {"train": path}).examples("train"))


def test_questions_come_from_squads_json_or_from_rows(write):
    context = "It rises in the Alps."
    expected = SpanExample("0", "Where?", context, (Answer(16, "Alps"),), False)
    answer = {"text": "Alps", "answer_start": 16}
    qa = {"id": "0", "question": "Where?", "answers": [answer]}
    squad = {"data": [{"paragraphs": [{"context": context, "qas": [qa]}]}]}
    lists = {"question": "Where?", "context": context, "answers": {"text": ["Alps"], "answer_start": [16]}}
    files = [
        write("a.json", json.dumps(squad)),
        write("b.csv", f"question,context,answer\nWhere?,{context},Alps\n"),
        write("c.tsv", f"question\tcontext\tanswer\tanswer_start\nWhere?\t{context}\tAlps\t16\n"),
        write("d.jsonl", json.dumps(lists)),
        write("e.json", json.dumps([lists])),
    ]
    for path in files:
        assert list(open_own("answer", {"train": path}).examples("train")) == [expected], path.name


def test_questions_that_are_to_be_answered_are_read_once(write, monkeypatch):
    qas = [{"id": str(number), "question": "Where?"} for number in range(3)]
    path = write("a.json", json.dumps({"data": [{"paragraphs": [{"context": "In Rome.", "qas": qas}]}]}))
    times, real = [], squad_module.read_json
    monkeypatch.setattr(squad_module, "read_json", lambda path: times.append(path) or real(path))
    dataset = open_own("answer", {"test": path}, to_predict=True)
    assert len(list(dataset.examples("test"))) == 3
    assert times == [path]


def test_the_place_of_an_answer_may_be_missing_in_some_records(write):
    rows = [{"question": "Where?", "context": "In Rome.", "answer": "Rome", "answer_start": 3},
            {"question": "Where?", "context": "In Rome.", "answer": "Rome"}]  # fmt: skip
    dataset = open_own("answer", {"train": write("a.jsonl", as_json_lines(rows))})
    assert [example.answers for example in dataset.examples("train")] == [(Answer(3, "Rome"),)] * 2


def test_questions_with_the_same_id_are_refused(write, refusal):
    path = write("a.csv", "id,question,context,answer\n7,Where?,A b,b\n7,Why?,A b,b\n")
    assert "two questions have the id '7'" in refusal(lambda: open_own("answer", {"train": path}))


def test_an_empty_answer_says_that_there_is_none(write):
    path = write(
        "a.csv", "question,context,answer\nWhere?,In the Alps.,Alps\nWhy?,In the Alps.,\nWho?,In the Alps.,Rhine\n"
    )
    dataset, skipped = open_own("answer", {"train": path}), Skipped()
    assert dataset.task.has_impossible
    assert [example.is_impossible for example in dataset.examples("train", skipped)] == [False, True]
    assert skipped.counts == {"questions whose answer is not in the context": 1}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"answers": {"text": ["a", "b"], "answer_start": [1]}}, "2 answers and 1 place of"),
        ({"answers": {"text": [7], "answer_start": [1]}}, "answer: a whole number where a string"),
        ({"answers": "a", "answer_start": "one"}, "'one' is not the position of an answer"),
        ({"answers": "a", "answer_start": -1}, "'-1' is not the position of an answer"),
        ({"answers": "a", "context": None}, "column 'context': null where a string"),
        ({"answers": {"texts": ["a"]}}, "column 'answers' has no 'text'; it has: 'texts'"),
        ({"answers": 0}, "answer: a whole number where a string"),
    ],
)
def test_a_wrong_answer_is_told_with_its_line(write, refusal, record, words):
    path = write("a.jsonl", json.dumps({"question": "?", "context": "a", **record}))
    told = refusal(lambda: list(open_own("answer", {"train": path}).examples("train")))
    assert "a.jsonl:1: " in told
    assert words in told


def test_tags_come_from_columns_or_from_records(write, refusal):
    lines = write("a.txt", "Rolf B-PER\nhere O\n\nBonn B-LOC\n")
    records = [{"tokens": ["Rolf", "here"], "ner_tags": ["B-PER", "O"]}, {"tokens": ["Bonn"], "ner_tags": ["B-LOC"]}]
    record_file = write("a.jsonl", as_json_lines(records))
    for path in (lines, record_file):
        dataset = open_own("tag", {"train": path})
        assert dataset.task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
        assert [(example.words, example.tags) for example in dataset.examples("train")] == [
            (["Rolf", "here"], ("B-PER", "O")),
            (["Bonn"], ("B-LOC",)),
        ]
    dev = write("b.conll", "Bonn B-GPE\n")
    dataset = open_own("tag", {"train": lines, "dev": dev})
    assert "b.conll:1: 'B-GPE' has a type that is not known here; allowed: LOC, PER" in refusal(dataset.examples("dev"))
    assert "every tag is O" in refusal(lambda: open_own("tag", {"train": write("c.txt", "a O\n")}))
    assert "words without tags" in refusal(lambda: open_own("tag", {"train": write("d.txt", "a,O\n")}))
    message = refusal(lambda: open_own("tag", {"train": write("d.csv", "a,O\n")}))
    assert "CSV is not read for tagging; give lines of a word and its tag (.txt, .tsv, .conll), or lists" in message


def test_records_without_words_are_counted_and_the_others_keep_their_numbers(write):
    records = [{"words": ["Rolf"], "tags": ["B-PER"]}, {"words": [], "tags": []}, {"words": ["Bonn"], "tags": ["O"]}]
    dataset, skipped = open_own("tag", {"train": write("a.jsonl", as_json_lines(records))}), Skipped()
    assert [example.id for example in dataset.examples("train", skipped)] == ["0", "2"]
    assert skipped.counts == {"rows without words": 1}


@pytest.mark.parametrize("labels", [[["good"]], {"good": 1}])
def test_several_labels_are_words(write, refusal, labels):
    path = write("a.jsonl", as_json_lines([{"text": "a", "labels": ["x"]}, {"text": "b", "labels": labels}]))
    told = refusal(lambda: open_own("multilabel", {"train": path}))
    assert "a.jsonl:2: " in told
    assert "where a label is expected" in told


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"tokens": ["a"], "tags": []}, "1 word and 0 tags"),
        ({"tokens": "a b", "tags": ["O", "O"]}, "column 'tokens': a string where a list"),
        ({"tokens": ["a", 3], "tags": ["O", "O"]}, "tokens[1]: a whole number where a string"),
        ({"tokens": ["a"], "tags": [1]}, "column 'tags' has numbers without names"),
        ({"tokens": ["a", "b"], "tags": ["O", 1]}, "tags[1]: a whole number where a string"),
        ({"tokens": ["a"], "tags": ["PER"]}, "'PER' is not a tag"),
    ],
)
def test_a_wrong_tagged_record_is_told_with_its_line(write, refusal, record, words):
    path = write("a.jsonl", json.dumps(record))
    told = refusal(lambda: open_own("tag", {"train": path}))
    assert "a.jsonl:1: " in told
    assert words in told


def test_a_kind_that_there_is_not_is_answered_with_the_nearest(write):
    with pytest.raises(UserError, match=r"'clasify' is not a kind of task \(did you mean 'classify'\?\)"):
        open_own("clasify", {})


def test_empty_texts_are_counted_not_hidden(write):
    path = write("a.csv", 'text,label\n" ",x\nb,y\n,x\nc,x\n')
    dataset, skipped = open_own("classify", {"train": path}), Skipped()
    assert [example.first for example in dataset.examples("train", skipped)] == ["b", "c"]
    assert skipped.counts == {"rows without a text": 2}
    rows = [{"text": "a", "label": "x"}, {"text": None, "label": "y"}, {"text": "b", "label": "y"}]
    dataset, skipped = open_own("classify", {"train": write("a.jsonl", as_json_lines(rows))}), Skipped()
    assert [example.first for example in dataset.examples("train", skipped)] == ["a", "b"]
    assert skipped.counts == {"rows without a text": 1}


def test_pairs_in_one_file_and_not_in_the_other_are_refused(write, refusal):
    pairs, alone = (
        write("a.csv", "sentence1,sentence2,label\na,b,1\nc,d,0\n"),
        write("b.csv", "sentence1,sent2,label\na,b,1\n"),
    )
    for files in ({"train": pairs, "dev": alone}, {"train": alone, "dev": pairs}):
        told = refusal(lambda files=files: open_own("classify", files))
        assert "b.csv has no second text, and" in told
        assert "a.csv has one in 'sentence2'" in told
    both = open_own("classify", {"train": pairs, "dev": alone}, {"pair": ""})
    assert not both.task.is_pair
    assert {example.second for split in ("train", "dev") for example in both.examples(split)} == {None}


def test_columns_of_json_are_those_of_all_records(write):
    """Not of the first alone: what it lacks would be lost for all others."""
    rows = [{"context": "c", "ending0": "x", "ending1": "y", "label": 0},
            {"context": "c", "ending0": "x", "ending1": "y", "ending2": "z", "label": 2, "id": "7"}]  # fmt: skip
    for some in (rows, rows[::-1]):
        path = write("a.jsonl", "\n".join(map(json.dumps, some)))
        found = list(open_own("choose", {"train": path}).examples("train"))
        assert {len(example.endings) for example in found} == {2, 3}
        assert [example.id for example in found] == ["0", "1"]  # as not every record has one
    first, second = (
        {"question": "q", "context": "서울 역은 서울 에 있다", "answer": ""},
        {"answer": "서울", "answer_start": 6},
    )
    path = write("b.jsonl", "\n".join(map(json.dumps, [first, first | second])))
    assert list(open_own("answer", {"train": path}).examples("train"))[1].answers[0].start == 6


def test_a_record_without_the_second_text_that_others_have_is_refused(write, refusal):
    path = write(
        "a.jsonl", "\n".join(map(json.dumps, [{"text": "a", "label": 1}, {"text": "b", "pair": "c", "label": 0}]))
    )
    assert "a.jsonl:1: no column 'pair'" in refusal(
        lambda: list(open_own("classify", {"train": path}).examples("train"))
    )


@pytest.mark.parametrize("names", [("ending1", "ending0"), ("choice_b", "choice_a"), ("Option 10", "Option 2")])
def test_endings_go_by_their_number_whatever_the_order_of_their_columns(write, names):
    path = write("a.csv", f"context,{','.join(names)},label\nc,second,first,0\n")
    (example,) = open_own("choose", {"train": path}).examples("train")
    assert example.endings == ("first", "second")


def test_ids_of_choices_and_of_tagged_records_are_kept(write):
    path = write("a.csv", "id,context,ending0,ending1\n17,c,x,y\n3,c,x,y\n")
    assert [one.id for one in open_own("choose", {"test": path}, labels=()).examples("test")] == ["17", "3"]
    path = write("a.jsonl", '{"id": "s17", "words": ["a"]}\n')
    assert [one.id for one in open_own("tag", {"test": path}, labels=()).examples("test")] == ["s17"]


def test_labels_are_the_same_however_their_letters_are_composed(write):
    nfc, nfd = "긍정", unicodedata.normalize("NFD", "긍정")
    path = write("a.csv", f"text,label\na,{nfc}\nb,{nfd}\nc,부정\n")
    assert open_own("classify", {"train": path}).task.labels == ("긍정", "부정")
    found = open_own("classify", {"dev": path}, labels=(nfd, "부정")).examples("dev")
    assert [example.label for example in found] == [nfd, nfd, "부정"]  # as the model has them


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("1.0", "0.0"), ("TRUE", "0"), ("1", "false")])
def test_columns_of_yes_and_no_may_be_written_as_pandas_does(write, yes, no):
    path = write("a.csv", f"text,x,y\na,{yes},{no}\n")
    (example,) = open_own("multilabel", {"train": path}, {"label": ["x", "y"]}).examples("train")
    assert example.label == ("x",)


def test_the_place_of_an_answer_may_be_written_as_pandas_does(write, refusal):
    path = write("a.csv", "question,context,answer,answer_start\nq,a b a,a,4.0\n")
    assert next(open_own("answer", {"train": path}).examples("train")).answers[0].start == 4
    path = write("b.csv", "question,context,answer,answer_start\nq,a b a,a,4.5\n")
    assert "'4.5' is not the position" in refusal(lambda: open_own("answer", {"train": path}))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("text=a", "a mapping is expected"),
        (["text"], "a mapping is expected"),
        ({"text": ["text"]}, "columns: text: \"['text']\" where the name of a column"),
        ({"label": 3}, "columns: label: '3' where"),
        ({"label": ""}, "columns: label: '' where"),
        ({"words": "text"}, "to classify there is no 'words'"),
    ],
)
def test_columns_of_other_types_and_kinds_are_refused(write, refusal, columns, words):
    assert words in refusal(lambda: open_own("classify", {"train": write("a.csv", "text,label\na,1\nb,0\n")}, columns))


def test_as_many_labels_as_rows_may_be_where_a_row_may_have_several(write):
    rows = [{"text": f"text {i}", "label": [f"l{i}"]} for i in range(24)]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    assert len(open_own("multilabel", {"train": path}).task.labels) == 24


def test_a_label_that_differs_in_every_row_is_doubted(write, refusal):
    path = write("a.csv", "text,label\n" + "".join(f"text {i},{i}.5\n" for i in range(60)))
    assert "is it the label? A number to be predicted is the task 'regress'" in refusal(
        lambda: open_own("classify", {"train": path})
    )
