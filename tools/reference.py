#!/usr/bin/env python3
"""Write the reference pages of the documentation from the code, so that they are never out of date.

Usage: tools/reference.py FOLDER. The pages are commands.md (each command with its options), settings.md (each setting
with its default and meaning) and python.md (each public name with its signature and docstring). `make docs` calls it.
Signatures are read from the source as they are written there; no network is imported.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer

import bertworks
import bertworks.data
from bertworks.cli import app
from bertworks.cli.info import settings_of
from bertworks.config import Settings, described
from bertworks.finetuning.settings import settings_for
from bertworks.recipe import Recipe
from bertworks.serving.settings import Limits
from bertworks.tasks import TASKS
from bertworks.tasks.own_files import DEFAULTS
from bertworks.tasks.task import TaskKind

PACKAGE = Path(bertworks.__file__).parent
_SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "Example:", "Examples:")
_LONGEST_ALIAS = 70
_ENTRY = re.compile(r"(\*{0,2}[\w, *]+): (.*)", re.DOTALL)


def cell(text: str) -> str:
    """Return text for one cell of a Markdown table, in which nothing but backticks is read as markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else re.sub(r"([\\<>*_\[\]#])", r"\\\1", part) for part in parts).replace(
        "|", "\\|"
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table, which the style of the site shows on a phone as a list."""
    lines = [head, tuple("---" for _ in head), *rows]
    text = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    return f'<div class="entries of-{len(head)}" markdown>\n\n{text}\n\n</div>\n'


def commands_page() -> str:
    """Return the page of all commands, in the groups of `bertworks --help`."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "Every command with its arguments and options, as `bertworks COMMAND --help` prints them. What is in "
        "capitals is for you to fill in. Settings (`key=value`) are on [a page of their own](settings.md).\n",
    ]
    panel = None
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}\n")
        context = typer.Context(command, info_name=f"bertworks {name}")
        parts.append(f"### {name}\n\n{described_help(command.help or '')}\n")
        usage = " ".join([f"bertworks {name}", *command.collect_usage_pieces(context)])
        usage = (
            re.sub(r"\{(.*?)\}", r"\1", usage).replace("......", "...").replace("[[key=value...]]...", "[key=value...]")
        )
        parts.append(f"```\n{usage}\n```\n")
        rows = []
        for param in command.get_params(context):
            if getattr(param, "hidden", False) or param.name == "help":
                continue
            if record := param.get_help_record(context):
                rows.append(option_row(param, *record))
        parts.append(table(("", "Meaning", "Default"), rows) if rows else "It has no options.\n")
        if command.epilog:
            about, _, examples = command.epilog.partition("\n")
            parts.append(f"{about}\n\n```\n{inspect.cleandoc(examples)}\n```\n")
    return "\n".join(parts)


def option_row(param: Any, names: str, text: str) -> tuple[str, str, str]:
    """Return an argument or an option as a row: its names, its help without the default, its default."""
    default = re.search(r"\[default: (.*?)\]", text)
    text = re.sub(r"\s*\[(default: .*?|required)\]", "", text)
    if param.required and param.param_type_name == "option":
        shown = "required"
    else:
        shown = f"`{default[1]}`" if default else ""
    name = re.sub(r"\s*<(.*?)>$", lambda found: "" if found[1].startswith("list") else f" {found[1].upper()}", names)
    if param.param_type_name == "argument":
        name = re.sub(r" [A-Z]+$", "", name)
    return f"`{name}`", cell(text), shown


def described_help(text: str) -> str:
    """Return a command's help as paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def settings_page() -> str:
    """Return the page of all settings of pre-training and fine-tuning."""
    parts = [
        "# Settings\n",
        "Settings are given as `key=value` after a command: `bertworks pretrain base ... train.seed=1`. "
        "A recipe is a file with the same keys in sections. "
        "`bertworks settings pretrain` and `bertworks settings finetune` print these tables.\n",
        "## Pre-training\n",
        "The defaults are the paper's values. A recipe, such as `base` or `tiny-cpu`, may set others; "
        "`bertworks settings pretrain tiny-cpu` lists those of a recipe.\n",
        *section_tables(Recipe()),
        "## Fine-tuning\n",
        "`bertworks settings finetune mrpc` lists those of a task. "
        "Learning rate, length, epochs and batch size depend on the task:\n",
        table(("Task", "`task.max_length`", "`optim.lr`", "`train.epochs`", "`train.batch_size`"), task_rows()),
        "A model may recommend a learning rate of its own, in its card (`bertworks models mini`). "
        "That one is used unless you give `optim.lr`.\n",
        "The defaults below are those of `classify`, for your own files.\n",
        *section_tables(settings_of("finetune", None), "finetune-"),
        "## Searches\n",
        "`bertworks search` takes the same keys. A list, such as `optim.lr=3e-5,5e-5`, is tried value by value.\n",
        "## Serving\n",
        "Limits are given as `bertworks serve MODEL --limits inputs=64,seconds=10`, "
        'in Python as `bw.serve(..., limits=["inputs=64"])`.\n',
        table(("Limit", "Default", "Allowed", "Meaning"), map(setting_row, described(Limits()))),
    ]
    return "\n".join(parts)


def section_tables(settings: Settings, prefix: str = "") -> Iterator[str]:
    """Yield a heading and a table for each section."""
    rows = described(settings)
    for name, section in settings:
        about = inspect.cleandoc(type(section).__doc__ or "").split("\n")[0]
        yield f"### {name} {{#{prefix}{name}}}\n\n{about}\n"
        of_section = (row for row in rows if row["setting"].startswith(f"{name}."))
        yield table(("Setting", "Default", "Allowed", "Meaning"), map(setting_row, of_section))


def setting_row(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return a setting as a row of a table."""
    default = row["default"]
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return (
        f"`{row['setting']}`",
        "not set" if default is None else f"`{shown}`",
        cell(row["allowed"]),
        cell(row["help"]),
    )


def task_rows() -> Iterator[tuple[str, ...]]:
    """Yield the settings that depend on the task, for each benchmark and each kind of your own files."""
    found = {name: settings_for(task) for name, task in TASKS.items()}
    for name, settings in found.items():
        values = (settings.task.max_length, settings.optim.lr, settings.train.epochs, settings.train.batch_size)
        yield f"`{name}`", *(f"{value:g}" for value in values)
    for kind in get_args(TaskKind):
        own = DEFAULTS[kind]
        values = (own.max_length, own.learning_rate, own.epochs, own.batch_size)
        yield f"`{kind}`, your own files", *(f"{value:g}" for value in values)


def python_page() -> str:
    """Return the page of the Python names: those of `bertworks`, of `bertworks.data`, and the records they return."""
    parts = [
        "# Python\n",
        "```python\nimport bertworks as bw\n```\n",
        "All names below are imported when they are first used, so `import bertworks` itself takes no time.\n",
    ]
    shown: set[str] = set()
    returned: dict[str, str] = {}
    for name in sorted(set(bertworks.__all__) - {"__version__"}, key=in_order):
        parts.append(documented(f"bertworks.{bertworks._HOMES[name]}", name, "bw", returned))
        shown.add(name)
    parts.append("## bertworks.data {#data}\n\nBatches for a training loop of your own.\n")
    for name in bertworks.data.__all__:
        module = f"bertworks.{bertworks.data._HOMES.get(name, 'data.loader')}"
        parts.append(documented(module, name, "bertworks.data", {}, level=3))
        shown.add(name)
    results = [
        documented(module, name, module, {}, level=3) for name, module in sorted(returned.items()) if name not in shown
    ]
    if results:
        parts.append("## What the functions return {#returned}\n")
        parts += results
    return "\n".join(parts)


def in_order(name: str) -> tuple[bool, bool, str]:
    """Return the place of a public name: opening a model first, then functions, then classes."""
    return name not in ("load", "Model"), name[0].isupper(), name


def source_of(module: str) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def documented(module: str, name: str, shown_in: str, returned: dict[str, str], level: int = 2) -> str:
    """Return the documentation of a function, a class or an alias; adds the records that it returns to `returned`."""
    tree = source_of(module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            collect_returned(tree, module, node, returned)
            node.args = Spelled(tree).visit(node.args)
            return heading(level, name, f"{shown_in}.{signature(node)}") + docstring(node)
        if isinstance(node, ast.ClassDef) and node.name == name:
            return class_text(tree, module, node, shown_in, returned, level)
    raise LookupError(f"{module} does not define {name}")


def class_text(
    tree: ast.Module, module: str, node: ast.ClassDef, shown_in: str, returned: dict[str, str], level: int
) -> str:
    """Return the documentation of a class: how it is made, its docstring, its methods and properties."""
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    made = next((one for one in functions if one.name == "__init__"), None)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    if made is not None and node.name != "Model":  # a model is made by `load`
        call = signature(made, node.name)
    elif fields and made is None:
        call = f"{node.name}({', '.join(map(ast.unparse, fields))})"
        call = call if len(call) <= 100 else f"{node.name}(\n    " + ",\n    ".join(map(ast.unparse, fields)) + ",\n)"
        call = re.sub(r" = Field\(.*?\)(?=[,)\n])", "", call)
    else:
        call = node.name
    parts = [heading(level, node.name, f"class {shown_in}.{call}") + docstring(node)]
    public = [one for one in functions if not one.name.startswith("_") and ast.get_docstring(one)]
    properties = [one for one in public if "property" in decorators(one)]
    methods = [one for one in public if one not in properties]
    in_full = [one for one in methods if is_for_callers(one)]
    spelled = Spelled(tree)
    for one in in_full:
        collect_returned(tree, module, one, returned)
        one.args = spelled.visit(one.args)
        if one.returns is not None:
            one.returns = spelled.visit(one.returns)
        owner = node.name if "classmethod" in decorators(one) else node.name.lower()
        anchor = f"{node.name}.{one.name}".lower()
        code = signature(one, f"{owner}.{one.name}")
        parts.append(heading(level + 1, f"{node.name}.{one.name}", code, anchor) + docstring(one))
    rows = [
        (f"`.{one.name}`" if one in properties else f"`.{one.name}()`", cell(first_line(one)))
        for one in [*properties, *(one for one in methods if one not in in_full)]
    ]
    if rows:
        parts.append(f"**Also of {node.name}:**\n\n" + table(("", ""), rows))
    return "\n".join(parts)


def is_for_callers(node: ast.FunctionDef) -> bool:
    """Tell a method that callers use from one for other parts of the package: the former says what goes in and out."""
    return any(f"\n{section}" in (ast.get_docstring(node) or "") for section in _SECTIONS) or "classmethod" in (
        decorators(node)
    )


def decorators(node: ast.FunctionDef) -> list[str]:
    """Return the names of a function's decorators."""
    return [ast.unparse(one).split(".")[-1] for one in node.decorator_list]


def collect_returned(tree: ast.Module, module: str, node: ast.FunctionDef, returned: dict[str, str]) -> None:
    """Find classes of the package among the names in a function's return annotation."""
    if node.returns is None:
        return
    imported = {
        alias.asname or alias.name: statement.module
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    text = ast.unparse(node.returns).replace("'", "")
    for name in re.findall(r"[A-Z]\w+", text):
        where = imported.get(name, module)
        if where.startswith("bertworks") and any(
            isinstance(one, ast.ClassDef) and one.name == name for one in source_of(where).body
        ):
            returned[name] = where


def heading(level: int, name: str, code: str, anchor: str = "") -> str:
    """Return a heading with a name, and a block of code under it."""
    return f"{'#' * level} {name} {{#{anchor or name.lower()}}}\n\n```python\n{code}\n```\n\n"


def signature(node: ast.FunctionDef, name: str = "") -> str:
    """Return a function's signature as it is written, on one line or one line an argument."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + [*arguments.defaults]
    parts = [argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if parts and parts[0] in ("self", "cls"):
        parts = parts[1:]
    if arguments.vararg:
        parts.append(f"*{argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [argument(one, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    result = f" -> {unquoted(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    name = name or node.name
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= 90:
        return line
    return f"{name}(\n    " + ",\n    ".join(parts) + f",\n){result}"


def argument(node: ast.arg, default: ast.expr | None) -> str:
    """Return an argument with its type and default."""
    kind = f": {unquoted(node.annotation)}" if node.annotation else ""
    equals = " = " if kind else "="
    return f"{node.arg}{kind}" + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def unquoted(node: ast.expr | None) -> str:
    """Return an annotation; one that is quoted, because it is imported late, without its quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node) if node is not None else ""


class Spelled(ast.NodeTransformer):
    """Puts short aliases of types, and private constants, in place: a reader of a signature cannot look them up."""

    def __init__(self, tree: ast.Module) -> None:
        self.values = aliases(tree)
        for statement in ast.walk(tree):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("bertworks."):
                found = aliases(source_of(str(statement.module)))
                self.values |= {one.name: found[one.name] for one in statement.names if one.name in found}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace the name of an alias."""
        value = self.values.get(node.id)
        return self.visit(value) if value is not None else node


def aliases(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the module's names for types and its private constants, as far as they are short."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            is_type = name[0].isupper() and not name.isupper() and isinstance(value, ast.BinOp | ast.Subscript)
            if len(ast.unparse(value)) <= _LONGEST_ALIAS and (is_type or isinstance(value, ast.Call)):
                found[name] = value
    return found


def first_line(node: ast.FunctionDef) -> str:
    """Return the first paragraph of a docstring."""
    return (ast.get_docstring(node) or "").split("\n\n")[0]


def docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a docstring in Google's form as Markdown."""
    parts = []
    for block in blocks(ast.get_docstring(node) or ""):
        first, _, rest = block.partition("\n")
        if first in _SECTIONS:
            body = textwrap.dedent(rest)
            parts.append(section(first.removesuffix(":"), body))
        elif block.startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```")
        else:
            parts.append(" ".join(block.split()))
    return "\n\n".join(parts) + "\n"


def blocks(text: str) -> list[str]:
    """Return the paragraphs of a docstring; a section keeps its own paragraphs."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        is_inside = block.startswith("    ") and found and found[-1].partition("\n")[0] in _SECTIONS
        if is_inside:
            found[-1] += f"\n\n{block}"
        else:
            found.append(block.rstrip())
    return found


def section(title: str, body: str) -> str:
    """Return a section of a docstring: a list of names, an example as code, or a paragraph."""
    if title.startswith("Example"):
        return f"```pycon\n{body.strip()}\n```"
    if title in ("Args", "Attributes", "Raises"):
        entries = re.split(r"\n(?=\S)", body.strip())
        found = [_ENTRY.match(entry) for entry in entries]
        if all(found):
            names = {"Args": "Arguments"}.get(title, title)
            lines = [f"- **`{one[1]}`**: {prose(one[2])}" for one in found if one]
            return f"{names}:\n\n" + "\n".join(lines)
    return f"**{title}** {prose(body)}"


def prose(text: str) -> str:
    """Return running text with its braces and stars as they are."""
    return re.sub(r"([*_<\[\]])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", " ".join(text.split()))


PAGES = {"commands.md": commands_page, "settings.md": settings_page, "python.md": python_page}


def main() -> None:
    """Write all pages into the folder that is named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: tools/reference.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
