"""The page of a server in a real browser: what a person does and sees there, on a phone and on a desk.

Needs `pip install playwright` and a Chromium of the system or of playwright; skipped, and said so, where there is none.
"""

import json
import shutil
import subprocess

import pytest
from servers import running
from small_models import write_small_model

from bertworks.tasks.conll import tag_labels

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the server's page is UNTESTED in a browser: playwright is not installed"
)
TAGS = list(tag_labels(("PER", "LOC")))
PAIR = {"task": {"kind": "classify", "name": "mine", "is_pair": True}}
KEY = "a-key"
SIZES = [(390, 844), (1280, 900)]
TABS = ["fill", "classify", "tag", "answer", "nsp", "choose", "embed", "attention", "tokenize"]
CONTRAST = """(selector) => {
    const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const light = (colour) => {
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const [red, green, blue] = [...pen.getImageData(0, 0, 1, 1).data].map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    };
    return Math.min(...[...document.querySelectorAll(selector)].map((element) => {
        const style = getComputedStyle(element);
        const both = [light(style.color), light(style.backgroundColor)].sort((a, b) => a - b);
        return both[1] / both[0];
    }));
}"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, most = tmp_path_factory.mktemp("models"), {"max_position_embeddings": 128}
    return {
        "plain": write_small_model(root / "plain", **most),
        "classes": write_small_model(root / "classes", {"classify": 3}, labels=["x", "y", "z"], **most),
        "pairs": write_small_model(root / "pairs", {"classify": 2}, labels=["no", "yes"], about=PAIR, **most),
        "tags": write_small_model(root / "tags", {"tag": len(TAGS)}, labels=TAGS, **most),
        "spans": write_small_model(root / "spans", {"span": 2}, **most),
        "endings": write_small_model(root / "endings", {"choose": 1}, **most),
    }


@pytest.fixture(scope="module")
def server(folders):
    with running(*folders.values()) as server:
        yield server


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"the server's page is UNTESTED in a browser: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


class Visit:
    """A page that is opened, and what went wrong in it: scripts, the policy, requests to other places."""

    def __init__(self, browser, server, size=SIZES[1], tab="", **options):
        self.origin = f"http://127.0.0.1:{server.port}"
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, locale=options.pop("locale", "en-US"), **options
        )
        self.page, self.problems = self.context.new_page(), []
        self.page.set_default_timeout(10_000)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda asked: self._check_place(asked.url))
        self.page.goto(f"{self.origin}/#{tab}")

    def _check_place(self, url):
        if not url.startswith((self.origin, "data:")):
            self.problems.append(f"asked for {url}")

    def found(self, tab):
        """The result in a tab, once it is there."""
        panel = self.page.locator(f"#panel-{tab}")
        panel.locator(".out:not([aria-busy]):not(.stale) .found").wait_for()
        return panel

    def run(self, tab, **texts):
        for name, text in texts.items():
            self.page.fill(f"#{tab}-{name}", text)
        self.page.locator(f"#panel-{tab} .primary").click()

    def fits(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def focused(self):
        return self.page.evaluate("document.activeElement.id || document.activeElement.textContent")


@pytest.fixture
def visit(browser, server):
    """Opens the page; at the end nothing has gone wrong in it, save for what a test says it provokes."""
    visits = []

    def open_page(server=server, **options):
        visits.append(Visit(browser, server, **options))
        return visits[-1]

    yield open_page
    for one in visits:
        one.context.close()
        assert one.problems == []


@pytest.mark.parametrize("size", SIZES, ids=["phone", "desk"])
def test_every_tab_begins_with_an_example_and_its_result(visit, server, size):
    shows = {
        "fill": ".bars button", "classify": ".bars li", "tag": "mark", "answer": "mark.span", "nsp": ".bars li",
        "choose": ".bars.wide li", "embed": ".heat tbody td", "attention": ".heads button", "tokenize": ".piece",
    }  # fmt: skip
    counts = {"fill": 5, "classify": 3, "answer": 1, "nsp": 2, "choose": 4, "embed": 25, "attention": 3 * (2 + 1)}
    one = visit(size=size)
    one.found("fill")
    assert [tab.get_attribute("id") for tab in one.page.get_by_role("tab").all()] == [f"tab-{tab}" for tab in TABS]
    for tab in TABS:
        one.page.click(f"#tab-{tab}")
        panel = one.found(tab)
        assert panel.locator(shows[tab]).count() == counts.get(tab, panel.locator(shows[tab]).count() or 1)
        assert one.fits(), tab
        assert panel.locator(".curl code").inner_text().startswith(f"curl {one.origin}/v1/")
        assert "ms in all" in panel.locator(".cost").last.inner_text()
        assert one.page.locator("[role=tabpanel]:visible").count() == 1


def test_what_is_shown_is_what_the_server_says(visit, server):
    one = visit(tab="tag")
    one.found("tag")
    text = "the cat 🐈 ran far , a dog sat ."
    one.run("tag", input=text)
    panel = one.found("tag")
    [entities] = server.results("/v1/tag", model="tags", input=text)
    assert entities
    assert panel.locator("mark").all_inner_texts() == [entity["text"] + entity["type"] for entity in entities]
    assert panel.locator(".passage").inner_text().replace("PER", "").replace("LOC", "") == text
    one.page.click("#tab-nsp")
    one.run("nsp", input="the cat sat", following="a dog ran")
    shown = one.found("nsp").locator(".bars .share").first
    [share] = server.results("/v1/nsp", model="plain", input="the cat sat", following="a dog ran")
    sync_api.expect(shown).to_have_text(f"{100 * share['is_next']:.{int(share['is_next'] < 0.0995)}f}%")


def test_the_span_and_other_answers_are_shown_in_the_passage(visit, server):
    context = "the 🐈 cat sat on the mat . a dog ran far away ."
    one = visit(size=SIZES[0], tab="answer")
    one.found("answer")
    one.run("answer", question="the cat", context=context)
    panel = one.found("answer")
    [answers] = server.results("/v1/answer", model="spans", question="the cat", context=context, top_k=3)
    assert panel.locator("mark").inner_text() == answers[0]["text"]
    panel.locator(".list button").nth(2).click()
    heights = panel.locator(".list td:last-child").evaluate_all(
        """(cells) => cells.map((cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            return text.getBoundingClientRect().height;
        })"""
    )
    assert max(heights) < 30  # a score stays in one line beside a long answer
    assert panel.locator("mark").inner_text() == answers[2]["text"]
    assert panel.locator(".passage").inner_text() == context


def test_a_pair_model_asks_for_two_texts(visit):
    one = visit(tab="classify")
    panel = one.found("classify")
    assert panel.locator("textarea").count() == 1
    one.page.select_option("#model-classify", "pairs")
    sync_api.expect(panel.locator("textarea")).to_have_count(2)
    sync_api.expect(panel.locator(".bars li")).to_have_count(2)
    assert '"pair": ' in panel.locator(".curl code").inner_text()
    one.page.fill("#classify-input", "a big dog")
    one.page.select_option("#model-classify", "classes")
    sync_api.expect(panel.locator("textarea")).to_have_count(1)
    assert one.page.input_value("#classify-input") == "a big dog"  # what was written stays


def test_a_candidate_is_filled_in_and_then_the_next_mask(visit, server):
    one = visit()
    one.found("fill")
    one.run("fill", input="the [MASK] sat on a [MASK] .")
    panel = one.found("fill")
    sync_api.expect(panel.locator(".masks section")).to_have_count(2)
    [masks] = server.results("/v1/fill", model="plain", input="the [MASK] sat on a [MASK] .")
    token = masks[1][2]["token"]
    panel.locator(".masks section").nth(1).locator("button").nth(2).click()
    sync_api.expect(panel.locator(".masks section")).to_have_count(1)
    joined = f" {token}" if not token.startswith("##") else token[2:]
    text = f"the [MASK] sat on a{joined} ."
    assert one.page.input_value("#fill-input") == text
    assert panel.locator(".filled").inner_text() == joined.strip()
    [[guesses]] = server.results("/v1/fill", model="plain", input=text)
    sync_api.expect(panel.locator(".bars bdi")).to_have_text([guess["token"] for guess in guesses])
    panel.locator(".bars button").first.click()
    sync_api.expect(panel.locator(".found")).to_contain_text("Every mask is filled.")
    assert one.focused() == "Undo"
    one.page.keyboard.press("Enter")
    sync_api.expect(panel.locator(".masks section")).to_have_count(1)
    assert one.page.input_value("#fill-input") == text


def test_only_what_the_models_can_do_is_there(visit, folders):
    with running(folders["tags"]) as server:
        one = visit(server)
        one.found("tag")
        assert one.page.get_by_role("tab").all_inner_texts() == ["Entities", "Similarity", "Attention", "Pieces"]


def test_errors_are_said_as_a_person_reads_them(visit, server):
    one = visit()
    panel = one.found("fill")
    alert = panel.get_by_role("alert")
    one.run("fill", input="no mask here")
    sync_api.expect(alert).to_contain_text("Write [MASK] where a word is missing")
    one.run("fill", input=" ")
    sync_api.expect(alert).to_contain_text("This field is empty: Sentence.")
    assert one.problems == []
    one.run("fill", input="the [MASK] " + "cat " * 200)
    sync_api.expect(alert).to_contain_text("The model cannot do this")
    _, answer, _ = server.ask("/v1/fill", {"model": "plain", "input": "the [MASK] " + "cat " * 200})
    sync_api.expect(alert).to_contain_text(answer["error"]["message"][1:])
    assert one.page.input_value("#fill-input").startswith("the [MASK] cat")
    one.page.route("**/v1/fill", lambda route: route.abort())
    one.run("fill", input="the [MASK] sat")
    sync_api.expect(alert).to_contain_text("The server does not answer")
    one.page.unroute("**/v1/fill")
    one.page.keyboard.press("Tab")
    one.run("fill", input="the [MASK] sat")
    sync_api.expect(alert).to_have_count(0)
    # Chromium itself writes of every answer of 400 and more, and of one that does not come.
    one.problems[:] = [problem for problem in one.problems if not problem.startswith("Failed to load resource")]


def test_the_keyboard_is_enough(visit):
    one = visit()
    panel = one.found("fill")
    keys = one.page.keyboard
    one.page.locator("#tab-fill").focus()
    for key, tab in [("ArrowDown", "classify"), ("ArrowUp", "fill"), ("ArrowLeft", "tokenize"), ("Home", "fill"),
                     ("End", "tokenize"), ("ArrowRight", "fill")]:  # fmt: skip
        keys.press(key)
        assert one.focused() == f"tab-{tab}"
        assert one.page.locator(f"#tab-{tab}").get_attribute("aria-selected") == "true"
    outline = one.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    while one.focused() != "fill-input":
        keys.press("Tab")
    keys.press("Control+a")
    keys.type("a [MASK] ran")
    keys.press("Enter")
    sync_api.expect(panel.locator(".said")).to_have_text("a ? ran")
    sync_api.expect(one.page.locator("#told")).to_contain_text("is the first candidate")
    first = panel.locator(".bars button").first
    for _ in range(10):
        keys.press("Tab")
        if first.evaluate("(button) => button === document.activeElement"):
            break
    keys.press("Enter")
    sync_api.expect(panel.locator(".found")).to_contain_text("Every mask is filled.")


def test_attention_by_layer_head_and_token(visit, server):
    one = visit(tab="attention")
    one.found("attention")
    one.run("attention", input="the cat sat", pair="a dog")
    panel = one.found("attention")
    sync_api.expect(panel.locator(".tokens").first.locator("bdi")).to_have_text(
        ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "[SEP]"]
    )
    [found] = server.results("/v1/attend", model="plain", input="the cat sat", pair="a dog")
    panel.get_by_role("button", name="Layer 3, mean of its heads", exact=True).focus()
    one.page.keyboard.press("ArrowUp")
    one.page.keyboard.press("ArrowRight")
    one.page.keyboard.press("ArrowRight")
    one.page.keyboard.press("Enter")
    assert panel.locator(".heads [aria-pressed=true]").get_attribute("aria-label") == "Layer 2, head 2"
    panel.locator(".tokens").first.locator("li").nth(2).focus()
    weights = found["weights"][1][1][2]
    expected = ["" if weight < 0.0005 else f"{100 * weight:.{int(100 * weight < 9.95)}f}%" for weight in weights]
    assert panel.locator(".tokens").last.locator(".share").all_inner_texts() == expected
    drawn = panel.locator(".lines canvas").evaluate(
        "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    )
    assert drawn


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_the_curl_line_does_the_same(visit):
    text = 'it\'s "the" [MASK] $HOME \\ `sat`\n! 고양이'
    one = visit()
    one.found("fill")
    one.run("fill", input=text)
    sync_api.expect(one.page.locator(".curl code")).to_contain_text("고양이")
    line = one.page.locator(".curl code").inner_text()
    done = subprocess.run(["bash", "-c", f"{line} -s"], capture_output=True, check=True, timeout=20)
    [[guesses]] = json.loads(done.stdout)["results"]
    assert one.page.locator(".bars bdi").all_inner_texts() == [guess["token"] for guess in guesses]


def test_texts_are_shown_as_texts(visit):
    text = "<img src=x onerror=alert(1)> </script><script>alert(1)</script> the cat"
    one = visit(tab="tag")
    for tab in ("tag", "tokenize", "attention"):
        one.page.click(f"#tab-{tab}")
        one.found(tab)
        one.run(tab, input=text)
        one.found(tab)
    assert one.page.locator("#panels img").count() == 0


def test_korean(visit):
    with running("mini", "mini-ko") as server:
        one = visit(server, locale="ko-KR")
        panel = one.found("fill")
        assert one.page.locator("html").get_attribute("lang") == "ko"
        assert one.page.get_by_role("tab").first.inner_text() == "빈칸 채우기"
        assert one.page.input_value("#model-fill") == "mini-ko"
        assert one.page.input_value("#fill-input").startswith("그는 대학교에서")
        [[guesses]] = server.results("/v1/fill", model="mini-ko", input=one.page.input_value("#fill-input"))
        sync_api.expect(panel.locator(".bars bdi")).to_have_text([guess["token"] for guess in guesses])
        one.page.get_by_role("radio", name="English").check(force=True)
        sync_api.expect(one.page.get_by_role("tab").first).to_have_text("Fill a mask")
        one.page.reload()
        one.found("fill")
        assert one.page.locator("html").get_attribute("lang") == "en"


def test_a_key_is_asked_for_and_never_shown(visit, folders):
    with running(folders["plain"], keys=[KEY]) as server:
        one = visit(server)
        one.page.locator("#key").wait_for()
        one.page.fill("#key", "wrong")
        one.page.keyboard.press("Enter")
        sync_api.expect(one.page.locator("#waiting")).to_contain_text("does not take this key")
        one.page.fill("#key", KEY)
        one.page.keyboard.press("Enter")
        panel = one.found("fill")
        assert one.page.locator("#key").is_hidden()
        assert "$BERTWORKS_API_KEY" in panel.locator(".curl code").inner_text()
        assert KEY not in one.page.content()
        one.problems[:] = [problem for problem in one.problems if "401" not in problem]


def test_many_and_long_texts_stay_within_a_phone(visit):
    one = visit(size=SIZES[0], tab="embed")
    one.found("embed")
    one.run("embed", input="\n".join(f"cat{'s' * 80} {number}" for number in range(24)))
    panel = one.found("embed")
    sync_api.expect(panel.locator(".heat tbody td")).to_have_count(24 * 24)
    assert one.fits()
    cell = panel.locator(".heat tbody td").nth(1)
    assert cell.bounding_box()["width"] >= 40  # its number stays in one line; the table scrolls by itself
    assert cell.bounding_box()["height"] < 100
    one.run("embed", input="\n".join(["a"] * 40))
    sync_api.expect(panel.get_by_role("alert")).to_contain_text("At most 24 lines can be compared here; there are 40.")
    for tab in ("tokenize", "attention"):
        one.page.click(f"#tab-{tab}")
        one.found(tab)
        one.run(tab, input="cat" * 60 + " the cat" * 20)
        one.found(tab)
        assert one.fits(), tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_and_words_can_be_read_in_both_themes(visit, scheme):
    one = visit(tab="embed", color_scheme=scheme)
    one.found("embed")
    assert one.page.evaluate(CONTRAST, ".heat td:not(.self)") >= 4.5
    assert one.page.evaluate(CONTRAST, ".primary, .curl") >= 4.5
    one.page.click("#tab-tag")
    one.found("tag")
    assert one.page.evaluate(CONTRAST, "mark") >= 4.5
