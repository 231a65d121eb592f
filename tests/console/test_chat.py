"""The console's chat in a real browser, before a real pair: answers, their time line, and what is told of failures."""

from __future__ import annotations

import base64

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.console.browser import Browser
from tests.console.conftest import Watched
from tests.console.page import ANSWER, SCENE, Page
from tests.processes import wait_for

pytestmark = pytest.mark.console

ENGINE = ["queue", "prefill", "decode"]


def test_a_picture_is_described_and_shown_where_the_time_went(page: Page) -> None:
    page.ask("Describe the picture.", page.new_picture())
    assert "finish: stop" in page.facts
    assert "cache hits: 0 of 1 item" in page.facts
    assert page.stages[0] == "tokenize"
    assert page.stages[-3:] == ENGINE
    assert {"decode", "preprocess", "hash", "tower", "wire"} <= set(page.stages)
    assert "computed by encoder-" in page.browser.text(".line tr.item")
    widths = [bar.size["width"] for bar in page.browser.all(".track span")]
    assert min(widths) >= 2
    assert max(widths) > 20


def test_the_same_picture_again_is_a_cache_hit(page: Page) -> None:
    page.ask("Describe the picture.", SCENE)
    assert page.answer == ANSWER
    page.browser.one("#fresh").click()
    assert page.browser.all(".message") == []
    page.ask("Describe the picture.", SCENE)
    assert page.answer == ANSWER
    assert "cache hits: 1 of 1 item" in page.facts
    assert "cached" in page.facts.partition("answer")[0]
    assert "from the language service's cache" in page.browser.text(".line tr.item")
    assert not {"tower", "wire"} & set(page.stages)


def test_a_failure_is_explained_and_the_encoder_shown_as_down(page: Page, watched: Watched) -> None:
    page.browser.until(lambda: page.encoder == "● ready", "a ready encoder")
    watched.encoder.kill()
    try:
        page.ask("Describe the picture.", page.new_picture())
        code = page.browser.one(".failed").get_attribute("data-code")
        assert code in ("encoder_failed", "encoder_unavailable")
        told = page.browser.text(".failed")
        assert told.startswith(f"503 {code}")
        for words in ("The service says:", "Request id: req-", "Retry after: 1 s"):
            assert words in told
        page.browser.until(lambda: page.encoder == "✕ down", "an encoder that is down")
        assert page.browser.text("#summary") == "0 of 1 encoder ready"
        ground = page.browser.run("return getComputedStyle(document.querySelector('#encoder-list li')).backgroundColor")
        red, green, blue = (int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(","))
        assert red > green + 10
        assert red > blue + 10
        page.browser.until(lambda: code in page.browser.text("#failure-counts"), "the failure in the list")
        page.browser.one("#fresh").click()
        page.ask("Who are you?")
        assert page.answer == "I am a small demo model that answers questions about simple pictures."
        page.browser.one("#fresh").click()
        page.ask("Describe the picture.", SCENE)
        again = page.browser.one(".failed button") if page.browser.all(".failed") else None
    finally:
        watched.encoder.start()
    page.browser.until(lambda: page.encoder == "● ready", "a ready encoder")
    if again is not None:
        again.click()
        page.browser.until(lambda: page.answer == ANSWER, "the answer at the second try")
    assert page.answer == ANSWER


def test_what_failed_is_tried_again_by_a_button(page: Page, watched: Watched) -> None:
    fault = httpx.post(f"{watched.encoder.url}/v1/faults", json={"kind": "error", "count": 1}, trust_env=False)
    assert fault.status_code == 201
    try:
        page.ask("Describe the picture.", page.new_picture())
        page.browser.one(".failed button").click()
        page.browser.until(lambda: "finish: stop" in page.facts, "the answer at the second try")
        page.browser.one("#question").send_keys("Who are you?", Keys.ENTER)
        page.browser.until(lambda: len(page.browser.all(".message footer span")) > 6, "an answer after that")
    finally:
        httpx.delete(f"{watched.encoder.url}/v1/faults", trust_env=False)


def test_stop_ends_the_answer_in_the_service_too(page: Page, watched: Watched) -> None:
    def running() -> int:
        metrics = httpx.get(f"{watched.language.url}/metrics", trust_env=False).text
        return next(int(float(line.split()[-1])) for line in metrics.splitlines() if line.startswith("epd_engine_running "))

    page.option("further", '{"ignore_eos": true, "max_tokens": 1900}')
    page.browser.one("#question").send_keys("Who are you?", Keys.ENTER)
    page.browser.until(lambda: page.answer and page.browser.one("#stop").is_displayed(), "the beginning of an answer")
    assert running() == 1
    page.browser.one("#stop").click()
    page.browser.until(page.settled, "the end of the answer")
    assert "finish: stopped" in page.facts
    assert page.browser.one("#send").is_displayed()
    wait_for(lambda: running() == 0, 1, "the end of the computation")


def test_a_new_conversation_has_nothing_of_an_answer_that_was_coming(page: Page) -> None:
    def prompt_tokens() -> str:
        page.ask("Who are you?")
        return page.facts.partition("prompt: ")[2].split()[0]

    page.option("max-tokens", "3")
    alone = prompt_tokens()
    page.browser.one("#fresh").click()
    page.option("further", '{"ignore_eos": true, "max_tokens": 1900}')
    page.browser.one("#question").send_keys("Who are you?", Keys.ENTER)
    page.browser.until(lambda: page.answer, "the beginning of an answer")
    page.browser.one("#fresh").click()
    page.browser.until(lambda: page.browser.one("#send").is_displayed(), "the end of the answer")
    page.option("further", "")
    assert prompt_tokens() == alone


def test_the_answer_takes_the_options(page: Page) -> None:
    page.option("max-tokens", "3")
    page.option("system", "Be brief.")
    page.ask("Who are you?")
    assert "finish: length" in page.facts
    assert "answer: 3 tokens" in page.facts
    page.option("further", "{")
    page.browser.one("#question").send_keys("Who are you?", Keys.ENTER)
    assert "cannot be read" in page.browser.text("#notice")
    assert len(page.browser.all(".message.user")) == 1
    page.option("further", '{"temperature": -1}')
    page.browser.one("#question").send_keys(Keys.ENTER)
    page.browser.until(lambda: page.browser.all(".failed"), "a refusal")
    assert page.browser.text(".failed").startswith("400 invalid_request")
    assert "Parameter: temperature" in page.browser.text(".failed")


PASTE = """
const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], arguments[2], {type: arguments[3]}));
const kind = arguments[1] === "paste" ? ClipboardEvent : DragEvent;
const field = arguments[1] === "paste" ? "clipboardData" : "dataTransfer";
document.body.dispatchEvent(new kind(arguments[1], {[field]: data, bubbles: true, cancelable: true}));
"""


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_pictures_are_pasted_dropped_and_removed(page: Page, way: str) -> None:
    content = base64.b64encode(SCENE.read_bytes()).decode()
    for name in ("one.png", "two.png"):
        page.browser.run(PASTE, content, way, name, "image/png")
    page.browser.until(lambda: len(page.browser.all("#pictures img")) == 2, "two thumbnails")
    page.browser.run(PASTE, content, way, "notes.txt", "text/plain")
    page.browser.until(lambda: page.browser.text("#notice") == "Only pictures can be added here.", "a notice")
    page.browser.one("#pictures button[aria-label='Remove one.png']").click()
    assert [image.get_attribute("alt") for image in page.browser.all("#pictures img")] == ["two.png"]
    page.ask("Describe the picture.")
    assert page.answer == ANSWER
    assert page.browser.all("#pictures img") == []


SHOWN = """
const done = arguments[arguments.length - 1];
import("/console/message.js").then(({AnswerView}) => {
  const view = new AnswerView();
  const answer = {content: "<b>bold</b>", reasoning: "Thinking <i>hard</i>.", reason: "tool_calls", usage: null, timings: null,
                  calls: [{id: "1", name: "look", arguments: '{"at": "<script>"}'}]};
  view.update(answer);
  view.finish(answer, 1.5, 0.25);
  done();
});
"""


def test_reasoning_is_folded_calls_are_shown_and_text_is_only_text(page: Page) -> None:
    page.browser.driver.execute_async_script(SHOWN)
    assert page.answer == "<b>bold</b>"
    assert page.browser.text(".call") == 'look\n{"at": "<script>"}'
    assert "first token: 250 ms" in page.facts
    assert not page.browser.one(".reasoning .text").is_displayed()
    page.browser.one(".reasoning summary").click()
    assert page.browser.text(".reasoning .text") == "Thinking <i>hard</i>."


EVENTS = """
const [pieces, done] = arguments;
import("/console/sse.js").then(async ({events}) => {
  const body = new ReadableStream({start(controller) {
    for (const piece of pieces) controller.enqueue(Uint8Array.from(piece));
    controller.close();
  }});
  const found = [];
  for await (const data of events(body)) found.push(data);
  done(found);
});
"""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_read_however_they_are_cut(browser: Browser, watched: Watched, end: str) -> None:
    browser.driver.get(watched.language.url)
    lines = [": keep-alive", "", "event: x", "data: Größe ●", "", "data:a", "data: b", "", "id: 1", "", "data: [DONE]", "", ""]
    stream = end.join(lines).encode()
    for size in (1, 2, 7, len(stream)):
        pieces = [list(stream[at : at + size]) for at in range(0, len(stream), size)]
        assert browser.driver.execute_async_script(EVENTS, pieces) == ["Größe ●", "a\nb", "[DONE]"]
