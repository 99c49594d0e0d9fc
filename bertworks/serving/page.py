"""The page at `/`: what the served models can do, for a person with a browser.

It is one file that is put together here, with its style and its scripts inside (`pages/serve`), and loads nothing from
anywhere; all that it shows it asks the server's own routes. Its content security policy allows these scripts and styles
alone, by their hashes, and requests to this server. The page needs no key: it asks for one where the server does.
"""

import functools
from string import Template

from fastapi import APIRouter, Response

from bertworks import __version__
from bertworks.report.charts import content_hash, page_file

router = APIRouter()


@functools.cache
def _page() -> tuple[str, dict[str, str]]:
    """Return the text of the page and its headers."""
    style = page_file("serve", "style.css")
    script = "".join(page_file("serve", name) for name in ("words.js", "results.js", "page.js"))
    policy = {
        "default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
        "connect-src": "'self'", "img-src": "data:", "script-src": f"'sha256-{content_hash(script)}'",
        "style-src": f"'sha256-{content_hash(style)}'",
    }  # fmt: skip
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache",
    }  # fmt: skip
    text = Template(page_file("serve", "page.html")).substitute(style=style, script=script, version=__version__)
    return text, headers


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def page() -> Response:
    """Return the page."""
    text, headers = _page()
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)
