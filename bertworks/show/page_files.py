"""What our HTML pages are put together with: files of the package's `pages` folder, escaping, and content hashes.

A page is one file that loads nothing. Its content security policy names the styles and scripts that we ship by their
hashes, so that a slip in the escaping would show, not run.
"""

import base64
import hashlib
import html
from importlib import resources


def page_file(*path: str) -> str:
    """Return the text of a file of `pages`."""
    return resources.files("bertworks").joinpath("pages", *path).read_text(encoding="utf-8")


def content_hash(content: str) -> str:
    """Return the sha256 that a content security policy knows a style or a script by."""
    return base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def escaped(text: str) -> str:
    """Return text from outside as it may stand in HTML, also between quotation marks; a lone surrogate becomes `?`."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))
