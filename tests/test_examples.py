"""The examples in the docstrings of public names are true: each is run, in a folder with the files that it names."""

import doctest
import json
import sys

import pytest

import bertworks as bw
import bertworks.data

CORPUS = "The river runs to the sea.\nIt is long.\n\nThe mill is old, and the wheel turns.\n"
# What would serve until a signal, or needs the files of benchmarks.
NOT_RUN = {"serve", "glue", "reproduce"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def rows_of_reviews():
    starts = ("The film was", "I found it", "It is", "A story that is", "This one is")
    words = {"good": ("wonderful", "lovely", "fine"), "bad": ("dull", "terrible", "boring")}
    return [(f"{start} {word}", label) for start in starts for label, some in words.items() for word in some]


def write_json(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a corpus, tables, and a small model for each kind of task, which has learnt its rows by heart."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "corpus.txt").write_text(CORPUS, encoding="utf-8")
    (folder / "reviews.csv").write_text(
        "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows_of_reviews()), encoding="utf-8"
    )
    people, places = ("Kim", "Lee", "Park", "Choi"), ("Seoul", "Busan", "Paris", "London")
    both = [(person, place) for person in people for place in places] * 2
    write_json(
        folder / "names.jsonl",
        [
            {"words": [person, "lives", "in", place, "."], "tags": ["B-PER", "O", "O", "B-LOC", "O"]}
            for person, place in both
        ],
    )
    write_json(
        folder / "questions.jsonl",
        [
            {"question": f"Where does {person} live?", "context": f"{person} lives in {place}.", "answer": place}
            for person, place in both
        ],
    )
    subjects = {"She sits down.": "She plays the piano.", "He opens the door.": "He walks in."}
    write_json(
        folder / "endings.jsonl",
        [
            {"context": context, "endings": [right, "It melts."][:: 1 if first else -1], "label": 0 if first else 1}
            for context, right in subjects.items()
            for first in (True, False)
        ]
        * 4,
    )
    for kind, name in (("classify", "reviews"), ("tag", "names"), ("answer", "questions"), ("choose", "endings")):
        table = next(folder.glob(f"{name}.*"))
        bw.finetune(
            kind, model="mini", train=table, dev=table, out=folder / f"{name}-model", quiet=True, device="cpu",
            overrides=["train.batch_size=8", "optim.lr=5e-4", "train.epochs=4", "task.max_length=24"],
        )  # fmt: skip
    return folder


def examples():
    for module in (bw, bertworks.data):
        for name in sorted({*module.__all__} - {"__version__", *NOT_RUN}):
            public = getattr(module, name)
            if getattr(public, "__doc__", None):
                yield from doctest.DocTestFinder(recurse=isinstance(public, type)).find(
                    public, name, module=sys.modules[public.__module__], globs={}
                )


def with_examples():
    return [pytest.param(test, id=test.name) for test in examples() if test.examples]


@pytest.mark.parametrize("test", with_examples())
def test_the_example_in_the_docstring_is_true(folder, monkeypatch, test):
    monkeypatch.chdir(folder)
    test.globs = {"bw": bw, "bertworks": bertworks, "model": bw.load("mini", device="cpu")}
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(test).failed == 0


def test_every_public_function_and_every_method_for_callers_has_an_example():
    shown = {param.id for param in with_examples()} | NOT_RUN
    functions = {*bw.__all__} - {"__version__", "Model", "GridPlan", "UserError"}
    methods = {
        f"Model.{name}" for name in ("fill", "nsp", "embed", "features", "attention", "classify", "tag", "answer")
    }
    assert (functions | methods | {"Model.choose", "Model.describe", "Model.encode", "Model.save"}) - shown == set()
