"""Every page, for everybody: no barrier that axe knows, nothing wrong in the console."""

from __future__ import annotations

import pytest

from tests.dashboard.conftest import OpenWindow, Scheme
from tests.dashboard.product import Product


@pytest.fixture(scope="module")
def paths(product: Product) -> dict[str, str]:
    """The pages by name, over some policy and traffic."""
    product.make("/groups", name="chat", weight=500)
    model = product.model("llama", max_in_flight=2, aliases=["chat-model"])
    product.model("idle", enabled=False)
    tenant, secret = product.tenant("chatbot", group="chat", tokens_per_minute=10_000_000)
    other, _ = product.tenant("<b>bold</b> & 'quoted'", status="suspended", budget_tokens=5)
    product.api.patch(f"/tenants/{other['id']}", json={"weight": 7})
    product.ask(4, "chatbot", secret, "llama")
    (key,) = product.get(f"/keys?tenant_id={tenant['id']}")["items"]
    (endpoint,) = product.get(f"/models/{model['id']}/endpoints")["items"]
    endpoint_path = f"/models/{model['id']}/endpoints/{endpoint['id']}"
    return {
        "overview": "/",
        "fairshare": "/fairshare",
        "pool": "/fairshare?pool=llama",
        "idle pool": "/fairshare?pool=idle",
        "replicas": "/replicas",
        "groups": "/groups",
        "group": "/groups/chat",
        "tenants": "/tenants",
        "no tenants": "/tenants?search=nobody",
        "new tenant": "/tenants/new",
        "tenant": f"/tenants/{tenant['id']}",
        "new key": f"/tenants/{tenant['id']}/keys",
        "keys": "/keys",
        "key": f"/keys/{key['id']}",
        "models": "/models",
        "new model": "/models/new",
        "model": f"/models/{model['id']}",
        "new endpoint": f"/models/{model['id']}/endpoints/new",
        "endpoint": endpoint_path,
        "usage": "/usage",
        "requests": "/usage/requests",
        "audit": "/audit",
        "settings": "/settings",
    }


def test_no_page_keeps_anybody_out_or_is_too_wide_for_a_telephone_or_has_an_error(
    new_window: OpenWindow, paths: dict[str, str]
) -> None:
    window = new_window()
    found = {}
    for name, path in paths.items():
        page = window.open(path)
        assert page.locator("h1").count() == 1, name
        barriers = window.barriers()
        page.emulate_media(color_scheme="dark")
        barriers += window.barriers("color-contrast")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 320, "height": 800})
        page.wait_for_function("document.documentElement.scrollWidth <= 320")
        page.set_viewport_size({"width": 1360, "height": 860})
        if barriers:
            found[name] = barriers
    assert found == {}


@pytest.mark.parametrize("name", ["overview", "groups", "tenant", "key", "model"])
def test_nor_does_one_to_be_read_only(
    new_window: OpenWindow, paths: dict[str, str], name: str
) -> None:
    window = new_window("viewer")
    window.open(paths[name])
    assert window.barriers() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neither_do_the_login_and_what_is_not_there(new_window: OpenWindow, scheme: Scheme) -> None:
    window = new_window(None, scheme)
    window.open("/login")
    assert window.barriers() == []
    window = new_window("admin", scheme)
    for path in ("/nothing", "/tenants/nobody", "/fairshare?pool=nothing"):
        window.open(path)
        assert window.barriers() == []
    window.expected(404)


def test_the_theme_can_be_chosen_and_is_kept(new_window: OpenWindow) -> None:
    window = new_window(scheme="light")
    page = window.open("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    window.open("/tenants")
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(ground) == light


def test_pages_ask_nothing_of_any_other_host(
    new_window: OpenWindow, product: Product, paths: dict[str, str]
) -> None:
    window = new_window()
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    for path in paths.values():
        window.open(path)
    assert [url for url in asked if not url.startswith(product.url + "/")] == []


def test_the_content_is_one_key_away(new_window: OpenWindow) -> None:
    page = new_window().open("/tenants")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "New tenant"
