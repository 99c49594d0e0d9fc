"""The page at `/`, without a browser: its policy, its key, and that both languages say everything."""

import re

import pytest
from servers import running
from small_models import write_small_model

from bertworks.report.charts import content_hash, page_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(write_small_model(tmp_path_factory.mktemp("models") / "plain"), keys=["a-key"]) as server:
        yield server


def test_the_page_needs_no_key_and_the_rest_does(server):
    status, text, headers = server.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert text.startswith(b"<!DOCTYPE html>")
    assert server.ask("/", method="HEAD")[0] == 200
    assert server.ask("/", {"inputs": "a"})[0] == 401
    assert server.ask("/v1/models")[0] == 401
    assert "get" not in server.ask("/openapi.json", key="a-key")[1]["paths"].get("/", {})


def test_its_policy_allows_its_own_scripts_and_styles_alone(server):
    _, text, headers = server.ask("/")
    page, policy = text.decode(), headers["content-security-policy"]
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"{kind} 'sha256-{content_hash(content)}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    linked = re.findall(r"""(?:src|href|action)=["'](\w+:|#)""", page)
    assert linked == ["data:", "#"]  # the icon, and the link to the content
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert " style=" not in page


def test_both_languages_say_everything_and_nothing_is_left_over():
    words, results, page = (page_file("serve", f"{name}.js") for name in ("words", "results", "page"))
    tables = re.search(r"const WORDS = \{\n  en: \{(.*?)\n  \},\n  ko: \{(.*?)\n  \},\n\};", words, re.DOTALL)
    english, korean = (dict(re.findall(r'(\w+): "([^"]*)"', table)) for table in tables.groups())
    assert english.keys() == korean.keys()
    for name, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", korean[name])), name
    said = set(re.findall(r"[\"'](\w+)[\"']", results + page)) | set(
        re.findall(r'data-say="(\w+)"', page_file("serve", "page.html"))
    )
    tasks = set(re.findall(r"^  (\w+): \{\s+method:", page, re.MULTILINE))
    assert len(tasks) == 9
    assert english.keys() <= said | tasks | {f"{task}About" for task in tasks} | {
        name for name in english if re.fullmatch(r"error\d+", name)
    }
    for examples in re.findall(r"^  (?:en|ko): \{\n    fill:.*?^  \},", words, re.DOTALL | re.MULTILINE):
        assert set(re.findall(r"^    (\w+): \[\[", examples, re.MULTILINE)) == tasks | {"pair"}
