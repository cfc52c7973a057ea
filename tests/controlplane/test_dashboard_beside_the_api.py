"""The dashboard shares the API's address and takes nothing from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import httpx
import pytest
import pytest_asyncio

from tests.controlplane.api import ADMIN, VIEWER, Api

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADDRESSES = itertools.count(1)
FORM_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


class Fields(HTMLParser):
    """The fields of the form that shows a thing, as a browser sends them back."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._is_inside = False
        self._name = ""
        self.feed(page)
        del self.found["form_token"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._is_inside = given.get("class") == "grid" and not self.found
        if not self._is_inside:
            return
        self._name = given.get("name") or self._name
        if tag == "textarea":
            self.found[self._name] = ""
        is_chosen = tag == "option" and "selected" in given
        is_given = tag == "input" and (given.get("type") != "checkbox" or "checked" in given)
        if is_chosen or is_given:
            self.found[self._name] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        if self._is_inside and self.lasttag == "textarea" and self._name:
            self.found[self._name] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._name = ""
        elif tag == "form":
            self._is_inside = False


class Browser:
    """A client that keeps cookies and fills in the form token of the page it saw last."""

    def __init__(self, api: Api, address: str) -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(api.plane.app, client=(address, 1)),
            base_url="http://gateway",
        )
        self.address = address
        self.form_token = ""

    async def get(self, path: str, **options: object) -> httpx.Response:
        page = await self.client.get(path, **options)  # type: ignore[arg-type]
        if found := FORM_TOKEN.search(page.text):
            self.form_token = found[1]
        return page

    async def post(self, path: str, headers: dict[str, str] | None = None, **form: str) -> int:
        sent = {"form_token": self.form_token, **form}
        return (await self.client.post(path, data=sent, headers=headers)).status_code

    async def log_in(self, token: str) -> int:
        await self.get("/login")
        status = await self.post("/login", token=token)
        await self.get("/")
        return status


@pytest_asyncio.fixture(loop_scope="module")
async def browser(api: Api) -> AsyncIterator[Browser]:
    # Wrong tokens are counted by address for as long as the control plane runs.
    browser = Browser(api, f"192.0.2.{next(ADDRESSES)}")
    yield browser
    await browser.client.aclose()


async def test_a_stranger_is_sent_to_the_login_and_back(browser: Browser) -> None:
    answer = await browser.get("/tenants?search=a%20b")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=/tenants%3Fsearch%3Da%2520b",
    )
    await browser.get(answer.headers["location"])
    form = {"form_token": browser.form_token, "token": ADMIN}
    done = await browser.client.post(answer.headers["location"], data=form)
    assert (done.status_code, done.headers["location"]) == (303, "/tenants?search=a%20b")


@pytest.mark.parametrize("away", ["//evil.example", "https://a.example", "/\\evil", "x", "/\t/e"])
async def test_login_leads_nowhere_else(browser: Browser, away: str) -> None:
    await browser.get("/login")
    done = await browser.client.post(
        "/login", params={"next": away}, data={"form_token": browser.form_token, "token": ADMIN}
    )
    assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_a_part_of_a_page_and_a_poll_are_told_that_the_session_is_over(
    browser: Browser,
) -> None:
    part = await browser.get("/tenants", headers={"hx-request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (200, "/login?next=/tenants")
    poll = await browser.get("/fairshare/bars", headers={"accept": "application/json"})
    assert (poll.status_code, poll.content) == (401, b"")


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(browser: Browser) -> None:
    cookie = (await browser.get("/login")).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    secure = await browser.client.get("https://gateway/login")
    assert "Secure" in secure.headers["set-cookie"]


async def test_a_session_cookie_opens_nothing_of_the_api(browser: Browser) -> None:
    assert await browser.log_in(ADMIN) == 303
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        answer = await browser.client.request(method, "/api/v1/tenants", json={"name": "forged"})
        assert answer.status_code == 401
    assert (await browser.get("/api/v1/nothing")).headers["content-type"].endswith("problem+json")


async def test_a_form_without_its_token_changes_nothing(browser: Browser, api: Api) -> None:
    await browser.log_in(ADMIN)
    before = await api.everything()
    for token in ("", "x", VIEWER):
        assert await browser.post("/groups", action="create", name="f", form_token=token) == 403
    assert await browser.post("/logout", form_token="") == 403
    as_text = await browser.client.post(
        "/groups",
        content=f"form_token={browser.form_token}&action=create&name=forged",
        headers={"content-type": "text/plain"},
    )
    assert as_text.status_code == 415
    assert await api.everything() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
async def test_a_form_from_another_site_changes_nothing(
    browser: Browser, api: Api, headers: dict[str, str]
) -> None:
    await browser.log_in(ADMIN)
    form = {"action": "create", "name": "forged", "weight": "1"}
    before = await api.everything()
    assert await browser.post("/groups", headers, **form) == 403
    assert await api.everything() == before
    assert await browser.post("/groups", {"origin": "http://gateway"}, **form) == 303


async def test_the_login_form_is_protected_as_well(browser: Browser) -> None:
    assert await browser.post("/login", token=ADMIN) == 403
    await browser.get("/login")
    assert await browser.post("/login", token=ADMIN, form_token="x") == 403
    assert await browser.post("/login", {"sec-fetch-site": "cross-site"}, token=ADMIN) == 403


async def test_wrong_tokens_are_limited_by_address(browser: Browser, api: Api) -> None:
    await browser.get("/login")
    answers = [await browser.post("/login", token="wrong") for _ in range(6)]
    assert answers == [401] * 5 + [429]
    assert await browser.post("/login", token=ADMIN) == 429
    elsewhere = Browser(api, "elsewhere")
    assert await elsewhere.log_in(ADMIN) == 303
    await elsewhere.client.aclose()


async def test_a_viewer_sees_every_page_and_changes_nothing(browser: Browser, api: Api) -> None:
    tenant = await api.tenant("acme")
    assert await browser.log_in(VIEWER) == 303
    assert "Save" not in (await browser.get(f"/tenants/{tenant['id']}")).text
    before = await api.everything()
    for path, form in (
        ("/groups", {"action": "create", "name": "mine"}),
        (f"/tenants/{tenant['id']}", {"action": "delete"}),
        (f"/tenants/{tenant['id']}/keys", {"name": "mine"}),
        ("/models/new", {"name": "mine"}),
    ):
        assert await browser.post(path, **form) == 403
    assert await api.everything() == before


async def test_every_answer_keeps_scripts_and_frames_out(browser: Browser) -> None:
    await browser.log_in(ADMIN)
    for path in ("/", "/login", "/nothing", "/static/dashboard.js", "/static/nothing"):
        headers = (await browser.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


async def test_the_audit_log_names_the_browsers_address(browser: Browser, api: Api) -> None:
    await browser.log_in(ADMIN)
    assert await browser.post("/groups", action="create", name="new", weight="5") == 303
    entry = (await api.items("/audit"))[0]
    assert (entry["subject_name"], entry["actor"]) == ("new", "admin")
    assert entry["client"] == browser.address


async def test_names_are_text_on_every_page(browser: Browser, api: Api) -> None:
    evil = "\"'><img src=x onerror=alert(1)>{{7*7}}"
    await api.group(evil)
    tenant = await api.tenant(evil, group=evil)
    key = await api.key(tenant["id"], evil)
    model = await api.model(evil)
    await browser.log_in(ADMIN)
    for path in (
        "/",
        "/groups",
        f"/tenants/{tenant['id']}",
        "/tenants",
        f"/tenants?search={evil}",
        "/keys",
        f"/keys/{key['id']}",
        "/models",
        f"/models/{model['id']}",
        "/fairshare",
        f"/fairshare?pool={evil}",
        "/audit",
        f"/{evil}",
    ):
        page = (await browser.get(path)).text
        assert "<img" not in page
        assert "&lt;img" in page or path in ("/", f"/{evil}", "/fairshare")
        assert ">49<" not in page


async def test_what_changed_meanwhile_is_not_written_over(browser: Browser, api: Api) -> None:
    tenant = await api.tenant("acme")
    await browser.log_in(ADMIN)
    path = f"/tenants/{tenant['id']}"
    await api.patch(path, {"weight": 7})
    old = str(tenant["revision"])
    for form in ({"name": "mine"}, {"action": "delete"}):
        assert await browser.post(path, revision=old, **form) == 412
    assert (await api.get(path))["weight"] == 7


async def test_saving_a_form_changes_only_what_was_changed_in_it(
    browser: Browser, api: Api
) -> None:
    # What a form does not show: that no model at all is allowed, and fractions of seconds. A term
    # that began a moment earlier is another one, of which nothing has been used.
    moment = "2026-01-31T12:00:00.250000Z"
    tenant = await api.tenant("acme", allowed_models=[], budget_started_at=moment)
    key = await api.key(tenant["id"], "laptop", expires_at="2030-01-31T12:00:00.250000Z")
    model = await api.model("llama", aliases=[" l"])
    del key["secret"]
    await browser.log_in(ADMIN)
    for path, was in (("tenants", tenant), ("keys", key), ("models", model)):
        page = (await browser.get(f"/{path}/{was['id']}")).text
        assert await browser.post(f"/{path}/{was['id']}", **Fields(page).found) == 303
        assert await api.get(f"/{path}/{was['id']}") == was
        changed = {**Fields(page).found, "name": "other"}
        assert await browser.post(f"/{path}/{was['id']}", **changed) == 303
        now = await api.get(f"/{path}/{was['id']}")
        assert {name for name in was if was[name] != now[name]} == {
            *("name", "updated_at", "revision")
        }


async def test_usage_is_downloaded_through_the_session(browser: Browser) -> None:
    assert (await browser.get("/usage/sums.csv")).status_code == 303
    await browser.log_in(VIEWER)
    for path in ("/usage/sums.csv?by=model", "/usage/requests.csv"):
        answer = await browser.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "tokens" in answer.text
    assert (await browser.get("/usage/sums.csv?by=shoe")).status_code == 422
