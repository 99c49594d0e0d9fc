"""Tasks by name: what there is, what is nearest, and the command that lists them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.errors import UserError
from bertworks.tasks import TASKS, find_task
from bertworks.tasks.columns import roles_of
from bertworks.tasks.own_files import KINDS
from bertworks.tasks.task import open_dataset

PROMISED = {
    "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "ax", "squad1", "squad2", "swag", "conll2003",
    "nsmc", "kornli", "korsts", "korquad", "klue-ner", "klue-nli", "klue-sts", "naver-ner", "snli", "sick", "codah",
}  # fmt: skip


def test_every_promised_task_is_there():
    assert set(TASKS) >= PROMISED


@pytest.mark.parametrize(
    ("typed", "name"), [("SST-2", "sst2"), ("STS-B", "stsb"), ("KLUE_NER", "klue-ner"), ("CoNLL-2003", "conll2003")]
)
def test_a_name_may_be_written_as_its_makers_do(typed, name):
    assert find_task(typed).name == name


@pytest.mark.parametrize(("typed", "nearest"), [("mrcp", "mrpc"), ("nsmcc", "nsmc")])
def test_a_slip_is_answered_with_the_nearest_name(typed, nearest):
    with pytest.raises(UserError, match=f"did you mean '{nearest}'"):
        find_task(typed)


def test_plain_names_do_not_collide():
    assert all(find_task(name) is TASKS[name] for name in TASKS)


def test_every_task_is_described_in_full():
    for task in TASKS.values():
        assert task.summary
        assert task.metrics
        assert set(task.splits) & {"train", "test"} or task.trained_on
        assert not task.trained_on or task.trained_on in TASKS
        assert all(sources for sources in task.splits.values())
        assert bool(task.labels) == (task.kind in ("classify", "tag"))
        assert bool(task.score_range) == (task.kind == "regress")
        assert task.defaults.max_length >= 128


def test_the_papers_rows_are_those_of_the_paper():
    """PAPER, tables 1 to 4 and 7."""
    rows = {name: (task.published.base, task.published.large) for name, task in TASKS.items() if task.published}
    assert rows == {
        "cola": ("52.1", "60.5"), "sst2": ("93.5", "94.9"), "mrpc": ("88.9", "89.3"), "qqp": ("71.2", "72.1"),
        "stsb": ("85.8", "86.5"), "mnli": ("84.6/83.4", "86.7/85.9"), "qnli": ("90.5", "92.7"), "rte": ("66.4", "70.1"),
        "squad1": ("80.8/88.5", "84.1/90.9"), "squad2": ("not given", "78.7/81.9"), "swag": ("81.6", "86.6"),
        "conll2003": ("96.4/92.4", "96.6/92.8"),
    }  # fmt: skip


def test_an_empty_folder_has_no_task(tmp_path):
    for task in TASKS.values():
        with pytest.raises(UserError, match="has no files of") as refused:
            open_dataset(task, tmp_path)
        assert next(iter(task.splits.values()))[0].names[0] in str(refused.value)


def test_the_command_lists_all_tasks(bertworks):
    code, out, err = bertworks("tasks")
    assert (code, err) == (0, "")
    benchmarks, _, kinds = out.partition("\nYour own files")
    assert [line.split()[0] for line in benchmarks.splitlines()] == list(TASKS)
    assert [line.split()[0] for line in kinds.splitlines()[1:]] == list(KINDS)
    described = json.loads(bertworks("tasks", "--json")[1])
    assert list(described) == [*TASKS, *KINDS]
    assert described["mrpc"]["metrics"] == ["f1", "accuracy"]


def test_the_command_shows_one_task_with_its_files(bertworks):
    code, out, _ = bertworks("tasks", "SST-2")
    assert code == 0
    assert all(word in out for word in ("sst2", "negative, positive", "dev: dev.tsv", "glue/SST-2", "93.5"))
    assert json.loads(bertworks("tasks", "sst2", "--json")[1])["labels"] == ["negative", "positive"]


def test_a_wrong_name_ends_in_a_line_and_exit_code_2(bertworks):
    code, out, err = bertworks("tasks", "mrcp")
    assert (code, out) == (2, "")
    assert err == "error: no task is called 'mrcp' (did you mean 'mrpc'?); `bertworks tasks` lists them all\n"


def test_a_wrong_name_may_be_near_a_kind_of_task_for_your_own_files(bertworks):
    assert "no task is called 'clasify' (did you mean 'classify'?)" in bertworks("tasks", "clasify")[2]
    assert "(known: cola, " in bertworks("tasks", "zzz")[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_for_your_own_files_is_shown_with_the_columns_that_it_reads(bertworks, kind):
    described = json.loads(bertworks("tasks", kind, "--json")[1])
    assert (described["name"], described["kind"], described["columns"].keys() - set(roles_of(kind))) == (
        kind,
        kind,
        set(),
    )
    code, out, _ = bertworks("tasks", kind)
    assert code == 0
    assert all(column in out for column in described["columns"])
    assert described.keys() >= json.loads(bertworks("tasks", "cola", "--json")[1]).keys()


def test_tasks_load_neither_torch_nor_numpy():
    program = (
        "import sys; sys.argv = ['bertworks', 'tasks']\n"
        "from bertworks.cli import main\n"
        "import bertworks.tasks.own_files, bertworks.tasks.metrics, bertworks.tasks.task\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'numba', 'pyarrow'} & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "squad1" in ended.stdout
    assert ended.stderr.strip() == "[]"


def test_the_guide_has_every_task():
    guide = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    folds = {"codah-2", "codah-3"}  # between the first and the last
    assert [name for name in TASKS if f"`{name}`" not in guide and name not in folds] == []
