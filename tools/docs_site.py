"""What `make docs` does beyond MkDocs: pages from the code, the navigation of whole folders, links into the repository.

MkDocs calls the functions whose names begin with `on_`.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "build" / "reference"  # what tools/reference.py wrote
FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md")  # pages of the site that lie beside docs/
_RECORDS = ("CHANGELOG.md", "log.md", "tour.md", "results/faults.md", "results/abuse.md")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Replace each `folder/*` of the navigation by the folder's pages; one without pages is left out."""
    docs = Path(config.docs_dir)
    config.nav = [item for item in (_filled(docs, item, config.extra["order"]) for item in config.nav) if item]
    return config


def _filled(docs: Path, item: Any, orders: Mapping[str, Sequence[str]]) -> Any:
    (title, value), *_ = item.items()
    if not isinstance(value, str) or not value.endswith("/*"):
        return item
    folder = docs / value.removesuffix("/*")
    pages = [page.name for page in folder.glob("*.md")]
    index, first = folder / "index.md", orders.get(folder.name, ())
    named = re.findall(r"\]\(([\w.-]+\.md)", index.read_text(encoding="utf-8")) if index.exists() else []
    order = dict.fromkeys(["index.md", *(f"{name}.md" for name in first), *named])
    order = {name: number for number, name in enumerate(order)}
    pages.sort(key=lambda name: (order.get(name, len(order)), name.removesuffix(".md")))  # English before .ko
    return {title: [posixpath.join(folder.name, name) for name in pages]} if pages else None


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the code, and those that lie beside docs/."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    pages = sorted(REFERENCE.glob("*.md"))
    if not pages:
        raise PluginError(f"{REFERENCE} has no pages; run `make docs`, which writes them first")
    for page in pages:
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text(encoding="utf-8")))
    for name in FROM_ROOT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\((docs/)", "](", text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files that the site does not have into links to the repository; keep "5 %" on one line."""
    if page.file.src_uri in _RECORDS:
        page.meta["search"] = {"boost": 0.1}  # such a page has every word, and answers no question
    return of_site(
        markdown, page.file.src_uri, lambda path: bool(files.get_file_from_path(path)), config.repo_url or ""
    )


def of_site(markdown: str, name: str, has: Callable[[str], bool], repository: str = "") -> str:
    """Return the text of a page as the site has it.

    Links to files that are not in docs/, such as source code, lead into the repository. Without its address, which is
    `repo_url` in mkdocs.yml, they become text with the path. What leads nowhere is left, and MkDocs reports it.
    """

    def replaced(found: re.Match[str]) -> str:
        text, (target, _, anchor) = found[1], found[2].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), target))
        is_of_site = path.startswith("docs/") and has(path.removeprefix("docs/"))
        if not target or re.match(r"[a-z]+:", target) or is_of_site or not (ROOT / path).exists():
            return found[0]
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor and '#' + anchor})"
        return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]  # the text of a link may be code
    parts = _CODE.split("".join(parts))
    parts[::2] = [re.sub(r"(?<=\d) %", "&nbsp;%", part) for part in parts[::2]]
    return "".join(parts)
