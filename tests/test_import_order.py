"""The house as imports see it: they go one way, no two files need each other, and the tour of the code is true."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import tour  # noqa: E402 -- a script, not a module of a package

# Lower may never import higher. A recipe names settings of `data` and activations of `nn`, so it stands after them.
ORDER = (
    "errors", "config", "files", "processes", "cluster", "text", "data", "nn", "recipe", "models", "planning", "report",
    "train", "tasks", "export", "inference", "serving", "finetuning", "reproduction", "demo", "cli", "__main__",
)  # fmt: skip
# Imports inside a function may go the other way, for a reason that is given here.
LATE = {
    ("bertworks.models.convert", "bertworks.train.checkpoint"),  # Adam's state of a run, for Google's format
    ("bertworks.data.prepare", "bertworks.models.folder"),  # the name of a model as the vocabulary
}
SMALLEST_FILE = 40  # lines: less is not a chapter


def sources():
    files = (ROOT / "bertworks").rglob("*.py")
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {name: file.read_text(encoding="utf-8") for name, file in names.items()}


def imports(modules, name):
    """Return the modules of ours that one imports: at its top level, and inside functions."""
    found = (set(), set())

    def visit(node, is_late):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            found[is_late].update(target if target in modules else node.module for target in targets)
        elif isinstance(node, ast.Import):
            found[is_late].update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(ast.parse(modules[name]), False)
    return tuple({one for one in targets if one in modules and one not in ("bertworks", name)} for targets in found)


def upward(modules):
    """Return (importer, imported) of imports against the order: at the top level, and inside functions."""
    found = (set(), set())
    for name in set(modules) - {"bertworks"}:
        for is_late, targets in enumerate(imports(modules, name)):
            found[is_late].update(
                (name, target)
                for target in targets
                if ORDER.index(target.split(".")[1]) > ORDER.index(name.split(".")[1])
            )
    return found


def cycle(modules):
    """Return modules of which each needs the next, and the last the first, to be imported; none if there are none."""
    needs = {name: sorted(imports(modules, name)[0]) for name in modules}
    done = set()

    def walk(name, way):
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for target in needs[name]:
                if found := walk(target, [*way, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in needs if (found := walk(name, []))), [])


@pytest.fixture(scope="module")
def package():
    return sources()


def test_every_room_has_its_place_in_the_order(package):
    assert {name.split(".")[1] for name in package if "." in name} == set(ORDER)


def test_imports_go_one_way(package):
    at_once, late = upward(package)
    assert at_once == set()
    assert late == LATE


def test_no_two_modules_need_each_other(package):
    assert cycle(package) == []


def test_an_import_against_the_order_is_found():
    modules = {"bertworks": "", "bertworks.text.lines": "from bertworks.nn import bert\n", "bertworks.nn.bert": ""}
    assert upward(modules) == ({("bertworks.text.lines", "bertworks.nn.bert")}, set())
    modules["bertworks.text.lines"] = "def read():\n    from bertworks.nn.bert import Bert\n"
    assert upward(modules) == (set(), {("bertworks.text.lines", "bertworks.nn.bert")})
    modules["bertworks.text.lines"] = "if TYPE_CHECKING:\n    from bertworks.nn.bert import Bert\n"
    assert upward(modules) == (set(), set())


def test_modules_that_need_each_other_are_found():
    modules = {
        "bertworks.nn.a": "from bertworks.nn.b import f\n",
        "bertworks.nn.b": "try:\n    import bertworks.nn.c\nfinally:\n    pass\n",
        "bertworks.nn.c": "from bertworks.nn import a\n",
    }
    assert cycle(modules) == ["bertworks.nn.a", "bertworks.nn.b", "bertworks.nn.c", "bertworks.nn.a"]
    modules["bertworks.nn.c"] = "def f():\n    from bertworks.nn import a\n"
    assert cycle(modules) == []


def test_every_file_is_a_chapter():
    files = {file.relative_to(ROOT).as_posix(): file for file in (ROOT / "bertworks").rglob("*.py")}
    small = {
        name: num_lines
        for name, file in files.items()
        if file.stem not in ("__init__", "__main__")
        and (num_lines := len(file.read_text(encoding="utf-8").splitlines())) < SMALLEST_FILE
    }
    assert small == {}


def test_the_tour_is_true():
    text = tour.TOUR.read_text(encoding="utf-8")
    assert text == tour.filled(text), "run tools/tour.py"


def test_it_is_four_files_to_the_gradient(package):
    text = tour.TOUR.read_text(encoding="utf-8")
    chain = ["cli/pretrain.py", "train/pretrain.py", "train/trainer.py", "nn/bert.py"]
    assert f"`{' -> '.join(chain)}`" in text
    command, work, loop, network = (f"bertworks.{file[:-3].replace('/', '.')}" for file in chain)
    assert work in set().union(*imports(package, command))
    assert loop in set().union(*imports(package, work))
    assert ".backward()" in package[loop]
    assert network in package


def test_type_checkers_see_the_public_names_where_they_are(package):
    import bertworks

    block = next(node for node in ast.parse(package["bertworks"]).body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {name: f"bertworks.{home}" for name, home in bertworks._HOMES.items()}
    assert all(getattr(bertworks, name).__module__ == home for name, home in seen.items())


def test_every_operator_of_ours_has_what_compiling_needs():
    """A GPU's operators are not run here, and without their shapes a compiled training run ends at its first step."""
    found = 0
    for name, source in sources().items():
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        marks = {ast.unparse(mark) for function in functions for mark in function.decorator_list}
        operators = [one.name for one in functions if any("custom_op(" in ast.unparse(m) for m in one.decorator_list)]
        assert [f"{name}.{one}" for one in operators if f"{one}.register_fake" not in marks] == []
        found += len(operators)
    assert found
