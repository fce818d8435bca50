"""The monitor in headless Chromium: every page is opened, used and looked over, in light and in dark."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("no chromium with chromedriver: apt-get install chromium chromium-driver", allow_module_level=True)

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PAGES = [
    "/",
    "/nodes",
    "/nodes/node-1",
    "/actors",
    "/actors/lease-2",
    "/drivers",
    "/deaths",
    "/deaths/lease-5",
    "/nodes/node-4",
    "/events",
    "/login",
]
DEADLINE_S = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # selenium leaves its own socket to the collector
]

# The contrast of every visible text with what is behind it, by the formula of WCAG 2, as far as colours are plain.
CONTRAST = """
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const style = getComputedStyle(one);
    if (style.backgroundImage !== "none") return null;
    const [r, g, b, a = 1] = channels(style.backgroundColor);
    if (a > 0.99) return [r, g, b];
    if (a > 0) return null;
  }
  return null;
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest(":disabled")) continue;
  const back = behind(element);
  if (!back) continue;
  const [a, b] = [light(channels(getComputedStyle(element).color)), light(back)];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const name = `${element.tagName}.${element.className} "${element.textContent.slice(0, 30)}"`;
  if (ratio < 4.5) poor.push(`${name} ${ratio.toFixed(2)}`);
}
return poor;
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
        "--window-size=1400,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    except Exception as error:
        pytest.skip(f"chromium does not start here: {str(error).splitlines()[0]}")
    browser.set_page_load_timeout(DEADLINE_S)
    yield browser
    browser.quit()


class Screen:
    """One browser on one monitor."""

    def __init__(self, browser: Any, base: str) -> None:
        self.browser = browser
        self.base = base
        browser.get(f"{base}/login")
        browser.delete_all_cookies()
        browser.execute_script("localStorage.clear()")
        self.errors()

    def open(self, path: str) -> None:
        self.browser.get(self.base + path)  # which may return with a page that is not parsed to its end
        script = "return document.readyState"
        self.until(lambda: self.browser.execute_script(script) == "complete", f"{path} is loaded")

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return WebDriverWait(self.browser, DEADLINE_S).until(lambda _: condition(), f"it never came to this: {what}")

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> Any:
        return self.until(
            lambda: next((e for e in self.all(selector) if e.is_displayed()), None), f"{selector} is seen"
        )

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(self.browser.execute_script(script, selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.browser.execute_script(script, selector))

    def background(self) -> str:
        script = """
            const color = getComputedStyle(document.documentElement).backgroundColor;
            return color === "rgba(0, 0, 0, 0)" ? null : color;  // before the style sheet is applied
        """
        return str(self.until(lambda: self.browser.execute_script(script), "the page has its style"))

    def is_live(self) -> None:
        self.until(lambda: self.all('#live[data-state="ok"]'), "the sign says live")

    def errors(self) -> list[str]:
        return [
            entry["message"] for entry in self.browser.get_log("browser") if entry["level"] in {"SEVERE", "WARNING"}
        ]

    def sign_in(self, token: str) -> None:
        self.open("/login")
        self.one("input[name=token]").send_keys(token)
        self.one("form button").click()
        self.until(lambda: "/login" not in self.browser.current_url, "the login is over")


@pytest.fixture
def seen(make_cluster: Any, make_monitor: Any) -> Any:
    """A monitor that has seen some minutes of a middling cluster."""
    monitor = make_monitor(make_cluster(nodes=12, actors=130))
    monitor.cluster.die("lease-5", "memory")
    monitor.cluster.die("lease-9", "signal")
    monitor.cluster.lost["node-4"] = (monitor.cluster.at, "no sign of life for more than 15 s")
    monitor.cluster.happen("node_joined", "node-005:8037 joined with 16 CPU", 5)
    monitor.cluster.happen("node_lost", "node-004:8037 is lost, with 10 actors: no sign of life for more than 15 s", 4)
    monitor.cluster.happen("out_of_memory", "Learner was lost on node-001:8037: it passed its memory limit", 1)
    monitor.look(60)
    return monitor


@pytest.fixture
def screen(chromium: Any, seen: Any, serve: Callable[[Any], str]) -> Iterator[Screen]:
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.25):
            seen.look(1, every_s=0.5)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    screen = Screen(chromium, serve(seen))
    screen.theme("light")
    yield screen
    chromium.get("about:blank")  # lets go of its connections
    over.set()
    thread.join(60.0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_opens_without_an_error_and_can_be_read(screen: Screen, theme: str, tmp_path: Path) -> None:
    screen.theme(theme)
    backgrounds = set()
    for path in PAGES:
        screen.open(path)
        if path != "/login":
            screen.is_live()
        assert screen.one("h1").text
        assert screen.errors() == [], path
        poor = screen.browser.execute_script(CONTRAST)
        assert poor == [], f"text of too little contrast on {path} in {theme}"
        wide = screen.browser.execute_script("return document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{path} is wider than its window"
        assert screen.browser.get_screenshot_as_file(str(tmp_path / "page.png"))
        backgrounds.add(
            screen.browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        )
    assert len(backgrounds) == 1


def test_a_narrow_window_shows_every_page_without_scrolling_sideways(screen: Screen) -> None:
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    screen.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for path in PAGES:
            screen.open(path)
            assert screen.one("h1").text
            if path != "/login":
                screen.is_live()
            assert screen.browser.execute_script("return document.documentElement.scrollWidth") <= 390, path
            assert screen.errors() == []
    finally:
        screen.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_theme_can_be_switched_and_stays(screen: Screen) -> None:
    screen.open("/")
    light = screen.background()
    screen.one("#theme").click()
    dark = screen.background()
    assert dark != light
    screen.open("/actors")
    assert screen.background() == dark
    screen.one("#theme").click()
    assert screen.background() == light


def test_the_overview_leads_to_a_node_and_its_actors(screen: Screen) -> None:
    screen.open("/")
    screen.until(lambda: len(screen.all(".map a")) == 12, "twelve nodes are shown")
    assert len(screen.all(".chart canvas")) == 5
    assert "128" in screen.text("#tiles")
    (deaths,) = screen.all("#deaths ul")
    assert "it passed its memory limit" in deaths.text
    first = screen.all(".map a")[0]
    first.click()
    screen.until(lambda: screen.text("#title") == "node-000:8037", "the node's page is there")
    link = screen.until(lambda: next(iter(screen.all("#actors tbody a")), None), "its actors are listed")
    name = link.text
    link.click()
    screen.until(lambda: screen.text("#title").startswith(name), "the actor's page is there")
    assert screen.errors() == []


def test_a_lost_node_is_shown_until_its_loss_is_acknowledged(screen: Screen, seen: Any, token: str) -> None:
    screen.open("/")
    screen.until(lambda: "node-004:8037" in screen.text("#lost-list"), "the overview names the lost node")
    screen.sign_in(token)
    screen.open("/nodes?state=lost")
    screen.until(lambda: len(screen.texts("#list tbody tr")) == 1, "one node is lost")
    assert "no sign of life" in screen.text("#list tbody")
    screen.one("#list tbody th a").click()
    screen.until(lambda: "no sign of life" in screen.text("#lost-text"), "its page says why")
    screen.one("#acknowledge").click()
    screen.until(lambda: screen.browser.current_url.endswith("/nodes"), "the loss is acknowledged and the list there")
    assert not seen.cluster.lost
    screen.open("/events")
    screen.until(lambda: len(screen.texts("#list tbody tr")) == 3, "the events are listed")
    assert "joined" in screen.texts("#list tbody tr")[-1]


def test_nodes_of_the_map_are_reached_by_arrow_keys(screen: Screen) -> None:
    screen.open("/")
    screen.until(lambda: len(screen.all(".map a")) == 12, "twelve nodes are shown")
    screen.browser.execute_script("document.querySelector('.map a[tabindex=\"0\"]').focus()")
    screen.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "node-002" in screen.browser.switch_to.active_element.get_attribute("aria-label")


def test_actors_are_filtered_sorted_and_paged(screen: Screen) -> None:
    screen.open("/actors")
    screen.until(lambda: len(screen.all("tbody tr")) == 50, "a page of actors is shown")
    assert "128 actors" in screen.text(".count")

    screen.one("body").send_keys("/")
    field = screen.browser.switch_to.active_element
    assert field.get_attribute("type") == "search"
    field.send_keys("replaybuffer")
    screen.until(lambda: set(screen.texts("tbody th")) == {"ReplayBuffer"}, "only replay buffers are shown")
    assert "q=replaybuffer" in screen.browser.current_url
    field.clear()
    field.send_keys(" ", Keys.BACKSPACE)
    screen.until(lambda: "128 actors" in screen.text(".count"), "all are shown again")

    memory = next(head for head in screen.all("thead button") if head.text == "Memory")
    memory.send_keys(Keys.ENTER)
    screen.until(lambda: screen.all('th[aria-sort="descending"]'), "the largest come first")
    assert screen.browser.switch_to.active_element == memory, "the focus stays where it was"
    screen.until(lambda: "GiB" in screen.texts("tbody tr:first-child td")[7], "the first one is large")

    screen.one('button[aria-label="Next page"]').click()
    screen.until(lambda: "Page 2 of 3" in screen.text(".pager"), "the second page is shown")
    screen.browser.refresh()
    screen.until(lambda: "Page 2 of 3" in screen.text(".pager"), "the address keeps the page")

    screen.open("/actors?state=starting")
    screen.until(lambda: set(screen.texts("tbody .pill")) == {"starting"}, "only those that start are shown")
    assert screen.errors() == []


def test_names_are_text_whatever_is_in_them(screen: Screen) -> None:
    screen.open("/actors?q=sly")
    screen.until(lambda: set(screen.texts("tbody th")) == {"<b>Sly</b>"}, "the class has its odd name")
    assert screen.all("tbody th b") == []


def test_a_log_is_followed_and_its_streams_told_apart(screen: Screen, seen: Any) -> None:
    screen.open("/actors/lease-1")
    screen.until(lambda: "first line" in screen.text("#log"), "the log is shown")
    seen.cluster.log.append(("\x1b[31mred <i>news</i>\x1b[0m\n", False))
    screen.until(lambda: "red <i>news</i>" in screen.text("#log"), "new lines come by themselves")
    assert "\x1b" not in screen.text("#log")
    assert screen.all("#log i") == []
    buttons = {button.text: button for button in screen.all("#stream button")}
    buttons["stderr"].click()
    assert screen.one("#log").text.strip() == "a warning"
    buttons["stdout"].click()
    assert "a warning" not in screen.one("#log").text


def test_a_stack_is_dumped_after_signing_in(screen: Screen, token: str) -> None:
    screen.open("/actors/lease-2")
    screen.is_live()
    screen.one("#stack-button").click()
    screen.until(lambda: "/login" in screen.browser.current_url, "an unknown user has to sign in")
    screen.one("input[name=token]").send_keys(token, Keys.ENTER)
    screen.until(lambda: "/actors/lease-2" in screen.browser.current_url, "the login leads back")
    screen.one("#stack-button").click()
    screen.until(lambda: "in sample_batch" in screen.text("#stack"), "the stack is shown")
    assert screen.errors() == []


def test_an_actor_is_killed_only_after_being_asked(screen: Screen, seen: Any, token: str) -> None:
    screen.sign_in(token)
    screen.open("/actors/lease-3")
    screen.is_live()
    screen.one("#kill").click()
    assert "Kill this actor?" in screen.one("dialog").text
    screen.one("dialog button[value=no]").click()
    assert seen.cluster.killed == []
    screen.one("#kill").click()
    screen.one("#reason").send_keys("it hangs")
    screen.one("#confirm-kill").click()
    screen.until(lambda: seen.cluster.killed, "the cluster is told")
    assert seen.cluster.killed == [("lease-3", "in the monitor: it hangs")]
    screen.until(lambda: "has ended" in screen.text("#problem"), "the page says that it has ended")
    screen.one("#problem a").click()
    screen.until(lambda: screen.text("#state") == "killed by user", "its death is explained")


def test_a_wrong_token_is_refused_on_the_page(screen: Screen) -> None:
    screen.open("/login")
    screen.one("input[name=token]").send_keys("wrong", Keys.ENTER)
    assert "not this monitor's token" in screen.one("[role=alert]").text


def test_a_death_shows_how_its_memory_grew(screen: Screen) -> None:
    screen.open("/deaths")
    screen.until(lambda: len(screen.all("tbody tr")) == 2, "both deaths are listed")
    next(link for link in screen.all("tbody a") if link.text == "RolloutWorker").click()
    canvas = screen.one("canvas")
    assert canvas.get_attribute("aria-label") == "Memory before the end: resident 7.0 GiB"
    assert "6.0 GiB above its start" in screen.text("#facts")
    assert "step 2 <i>in red</i>" in screen.text("#log")
    canvas.send_keys(Keys.ARROW_LEFT)
    assert "7.0 GiB" in screen.one(".tip").text


def test_charts_tell_their_numbers_to_mouse_keys_and_readers(screen: Screen) -> None:
    screen.open("/nodes/node-1")
    screen.until(lambda: "busy" in screen.all(".chart canvas")[0].get_attribute("aria-label"), "the chart has numbers")
    canvas = screen.all(".chart canvas")[0]
    webdriver.ActionChains(screen.browser).move_to_element(canvas).perform()
    assert "%" in screen.one(".tip").text
    buttons = {button.text: button for button in screen.all("#window button")}
    buttons["30 min"].click()
    assert buttons["30 min"].get_attribute("aria-pressed") == "true"
    assert screen.errors() == []


def test_a_master_that_does_not_answer_is_seen_on_every_page(screen: Screen, seen: Any) -> None:
    screen.open("/")
    screen.is_live()
    seen.store.failed("the master at localhost:8037 does not answer")
    health = seen.store.health
    seen.store.health = lambda: type(health())(False, 30.0, "the master at localhost:8037 does not answer")
    screen.until(lambda: screen.all('#live[data-state="bad"]'), "the sign says that something is wrong")
    assert "does not answer" in screen.text("#live")


def test_every_control_has_a_name_and_nothing_is_a_trap_for_the_keyboard(screen: Screen) -> None:
    for path in PAGES:
        screen.open(path)
        nameless = screen.browser.execute_script(
            "return [...document.querySelectorAll('button, a[href], input, select, canvas[role]')]"
            ".filter((e) => e.checkVisibility() && e.type !== 'hidden')"
            ".filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length || e.title))"
            ".map((e) => e.outerHTML.slice(0, 120))"
        )
        assert nameless == [], path
    screen.open("/actors")
    screen.until(lambda: len(screen.all("tbody tr")) == 50, "actors are shown")
    reached = set()
    for _ in range(12):
        screen.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(screen.browser.execute_script("return document.activeElement.outerHTML.slice(0, 200)"))
    assert len(reached) == 12


def test_a_thousand_nodes_and_ten_thousand_actors_are_shown_page_by_page(
    chromium: Any, make_cluster: Any, make_monitor: Any, serve: Callable[[Any], str]
) -> None:
    monitor = make_monitor(make_cluster(nodes=1000, actors=10_000, gpus=1))
    monitor.look(3)
    screen = Screen(chromium, serve(monitor))
    screen.open("/")
    screen.until(lambda: len(screen.all(".map a")) == 1000, "a thousand nodes are shown")
    screen.open("/actors?sort=calls&order=desc")
    screen.until(lambda: len(screen.all("tbody tr")) == 50, "a page of actors is shown")
    size = screen.browser.execute_script(
        "return performance.getEntriesByType('resource')"
        ".filter((e) => e.name.includes('/api/v1/actors'))[0].decodedBodySize"
    )
    assert 0 < size < 200_000, "more is fetched than a page shows"
    assert "10,000 actors" in screen.text(".count")
    chromium.get("about:blank")
