"""What operators do, in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from shared import tables
from shared.database import Database
from tests.dashboard.conftest import OpenWindow, Window
from tests.dashboard.product import ADMIN, VIEWER, Product

SECRET = re.compile(r"sk-[0-9a-f]{48}")


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_page_asked_for(
    new_window: OpenWindow, product: Product
) -> None:
    window = new_window(None)
    page = window.open("/tenants?search=a")
    page.wait_for_url(re.compile("/login"))
    page.get_by_label("Admin or viewer token").fill("wrong")
    press(page, "Log in")
    expect(page.get_by_role("alert")).to_contain_text("opens nothing here")
    page.get_by_label("Admin or viewer token").fill(ADMIN)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{product.url}/tenants?search=a")
    press(page, "Log out")
    page.wait_for_url(f"{product.url}/login")
    window.open("/tenants")
    page.wait_for_url(re.compile("/login"))
    window.expected(401)


def test_a_group_a_tenant_and_a_key_are_made_and_the_secret_is_shown_once(
    window: Window, product: Product
) -> None:
    page = window.open("/groups")
    page.get_by_label("Name").fill("interactive")
    page.get_by_label("Weight", exact=True).fill("500")
    press(page, "Create group")
    expect(page.get_by_role("status")).to_contain_text("Created")

    window.open("/tenants/new")
    page.get_by_label("Name", exact=True).fill("search")
    page.get_by_label("Group").select_option("interactive")
    page.get_by_label("Tokens a minute").fill("120000")
    press(page, "Create tenant")
    expect(page.get_by_role("heading", level=1)).to_have_text("search")

    page.get_by_role("link", name="New key").first.click()
    page.get_by_label("Name", exact=True).fill("production")
    press(page, "Create key")
    expect(page.get_by_role("heading", level=1)).to_have_text("production")
    secret = page.locator("#secret").inner_text()
    assert SECRET.fullmatch(secret)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press(page, "Copy")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret

    page.get_by_role("link", name="Done").click()
    expect(page.get_by_role("row", name="production")).to_contain_text(secret[:11])
    assert secret not in page.content()
    page.go_back()
    assert secret not in page.content()
    (tenant,) = product.get("/tenants?search=search")["items"]
    assert (tenant["group"], tenant["tokens_per_minute"]) == ("interactive", 120_000)


def test_a_key_is_rotated_disabled_and_deleted(window: Window, product: Product) -> None:
    tenant, old = product.tenant("rotator")
    (key,) = product.get(f"/keys?tenant_id={tenant['id']}")["items"]
    page = window.open(f"/keys/{key['id']}")
    press(page, "Rotate")
    expect(page.locator("#secret")).to_be_visible()
    assert page.locator("#secret").inner_text() != old
    window.open(f"/keys/{key['id']}")
    page.get_by_label("Disabled").check()
    page.get_by_label("Expires (UTC)").fill("2040-01-31T12:00:00")
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("Saved")
    stored = product.get(f"/keys/{key['id']}")
    assert (stored["disabled"], stored["expires_at"]) == (True, "2040-01-31T12:00:00Z")
    page.get_by_text("Delete this key").click()
    press(page, "Delete the key")
    expect(page.get_by_role("status")).to_contain_text("Deleted")
    assert product.get(f"/keys?tenant_id={tenant['id']}")["items"] == []


def test_a_change_of_weight_shows_the_split_before_it_is_saved(
    window: Window, product: Product
) -> None:
    product.model("split-model", max_in_flight=8)
    for name in ("split-a", "split-b"):
        product.make("/groups", name=name, weight=100)
    for group in product.get("/groups")["items"]:
        if not group["name"].startswith("split-"):
            product.api.patch(f"/groups/{group['name']}", json={"weight": 1})
    page = window.open("/groups")
    page.get_by_label("Pool").select_option("split-model")
    row = page.locator('[data-group="split-a"]')
    before = int(row.locator("span").nth(1).inner_text())
    page.get_by_label("Weight of split-a").fill("1000000")
    expect(row.locator("span").nth(3)).to_have_class("changed")
    assert int(row.locator("span").nth(3).inner_text()) > before
    assert product.get("/groups/split-a")["weight"] == 100
    press(page, "Save weights")
    expect(page.get_by_role("status")).to_contain_text("Saved")
    assert product.get("/groups/split-a")["weight"] == 1_000_000


def test_a_weight_out_of_range_is_refused_in_the_apis_words(
    window: Window, product: Product
) -> None:
    product.make("/groups", name="out-of-range")
    page = window.open("/groups")
    field = page.get_by_label("Weight of out-of-range")
    field.fill("0")
    press(page, "Save weights")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("must be a whole number from 1 to 1,000,000")).to_be_visible()
    expect(field).to_have_value("0")
    assert product.get("/groups/out-of-range")["weight"] == 100
    window.expected(422)


def test_what_is_wrong_stands_at_its_field_and_what_was_typed_stays(window: Window) -> None:
    page = window.open("/tenants/new")
    page.get_by_label("Weight").fill("heavy")
    press(page, "Create tenant")
    weight = page.get_by_label("Weight")
    expect(weight).to_have_attribute("aria-invalid", "true")
    expect(weight).to_have_value("heavy")
    expect(page.locator("#f-name-error")).to_contain_text("must be text of 1 to 200 characters")
    assert window.barriers() == []
    window.expected(422)


def test_a_models_affinity_is_set_and_given_back_to_the_gateway(
    window: Window, product: Product
) -> None:
    model = product.model("agents", max_in_flight=4)
    path = f"/models/{model['id']}"
    page = window.open(path)
    expect(page.locator("#affinity-now")).to_contain_text("In force: off")
    page.get_by_label("Session affinity", exact=True).select_option("true")
    page.get_by_label("Hold a slot for").fill("5000")
    press(page, "Save affinity")
    expect(page.locator("#affinity-now")).to_contain_text("on, holds 5,000 ms, at most 25 %")
    stored = product.get(path)
    assert stored["session_affinity"] == {"enabled": True, "hold_ms": 5000}
    page.get_by_label("Hold a slot for").fill("60001")
    press(page, "Save affinity")
    expect(page.locator("#a-hold_ms-error")).to_contain_text("from 0 to 60,000")
    page.get_by_label("Hold a slot for").fill("")
    page.get_by_label("Session affinity", exact=True).select_option("")
    press(page, "Save affinity")
    expect(page.locator("#affinity-now")).to_contain_text("In force: off")
    assert product.get(path)["session_affinity"] == {}
    window.expected(422)


def test_a_model_and_its_endpoint_are_made_and_changed(window: Window, product: Product) -> None:
    page = window.open("/models/new")
    page.get_by_label("Name", exact=True).fill("org/made by hand")
    page.get_by_label("Aliases").fill("hand\nmade")
    page.get_by_label("Slots", exact=True).fill("6")
    press(page, "Create model")
    expect(page.get_by_role("heading", level=1)).to_have_text("org/made by hand")
    page.get_by_role("link", name="New endpoint").click()
    page.get_by_label("URL").fill("http://169.254.169.254/v1")
    page.get_by_label("API key").fill("upstream-secret")
    press(page, "Create endpoint")
    expect(page.locator("#f-url-error")).to_be_visible()
    assert "upstream-secret" not in page.content()
    page.get_by_label("URL").fill("http://127.0.0.1:9/v1")
    page.get_by_label("API key").fill("upstream-secret")
    press(page, "Create endpoint")
    page.get_by_role("link", name="http://127.0.0.1:9/v1").click()
    page.get_by_label("Priority").fill("3")
    press(page, "Save")
    expect(page.get_by_role("row", name="http://127.0.0.1:9/v1")).to_contain_text("set")
    (model,) = product.get("/models?search=by hand")["items"]
    (endpoint,) = product.get(f"/models/{model['id']}/endpoints")["items"]
    assert (endpoint["priority"], endpoint["has_api_key"]) == (3, True)
    window.expected(422)


def test_a_model_that_was_deleted_while_its_page_was_open_is_told(
    window: Window, product: Product
) -> None:
    model = product.model("soon-gone")
    page = window.open(f"/models/{model['id']}")
    product.api.delete(f"/models/{model['id']}")
    press(page, "Save")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not here")
    window.open(f"/fairshare?pool={model['name']}")
    expect(page.get_by_role("alert")).to_contain_text("There is no model soon-gone")
    window.expected(404)


def test_a_pools_page_that_is_open_tells_that_its_model_was_deleted(
    window: Window, product: Product
) -> None:
    model = product.model("gone-meanwhile")
    page = window.open(f"/fairshare?pool={model['name']}")
    expect(page.get_by_role("heading", name="Idle")).to_be_visible()
    product.api.delete(f"/models/{model['id']}")
    expect(page.get_by_role("alert")).to_contain_text("There is no model gone-meanwhile")


def test_a_session_that_ended_is_told_and_leads_back_to_the_form(new_window: OpenWindow) -> None:
    window = new_window()
    page = window.open("/tenants/new")
    page.get_by_label("Name", exact=True).fill("not-saved")
    page.context.clear_cookies()
    press(page, "Create tenant")
    expect(page.get_by_role("alert")).to_contain_text("was not saved")
    page.get_by_label("Admin or viewer token").fill(ADMIN)
    press(page, "Log in")
    page.wait_for_url(f"{window.url}/tenants/new")


def test_what_changed_meanwhile_is_told_and_kept(window: Window, product: Product) -> None:
    tenant, _ = product.tenant("raced")
    page = window.open(f"/tenants/{tenant['id']}")
    product.api.patch(f"/tenants/{tenant['id']}", json={"weight": 55})
    page.get_by_label("Weight").fill("66")
    press(page, "Save")
    expect(page.get_by_role("alert")).to_contain_text("It has changed since")
    assert product.get(f"/tenants/{tenant['id']}")["weight"] == 55
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("Saved")
    assert product.get(f"/tenants/{tenant['id']}")["weight"] == 66
    window.expected(412)


def test_a_viewer_is_offered_nothing_to_change(new_window: OpenWindow, product: Product) -> None:
    tenant, _ = product.tenant("looked-at")
    model = product.model("looked-at")
    window = new_window("viewer")
    for path in ("/groups", f"/tenants/{tenant['id']}", f"/models/{model['id']}", "/keys"):
        page = window.open(path)
        changing = page.locator("main button:not(.go), main a.primary")
        assert changing.count() == 0, path
        assert page.locator("main input:enabled:not([type=hidden], [type=search])").count() == 0


def test_a_forged_form_is_refused(window: Window, product: Product) -> None:
    page = window.open("/groups")
    send = """async (token) => {
        const body = new URLSearchParams({action: "create", name: "forged", form_token: token});
        return (await fetch("/groups", {method: "POST", body})).status;
    }"""
    assert page.evaluate(send, "made up") == 403
    other = "document.querySelector('[name=form_token]').value"
    stolen = new_token(page, other)
    assert page.evaluate(send, stolen[::-1]) == 403
    assert product.api.get("/groups/forged").status_code == 404
    window.expected(403)


def new_token(page: Page, script: str) -> str:
    token: str = page.evaluate(script)
    return token


EVIL = "<img src=x onerror=alert(1)>\"'`"


def test_names_with_markup_are_text_wherever_they_stand(window: Window, product: Product) -> None:
    product.make("/groups", name=EVIL)
    tenant, secret = product.tenant(EVIL, group=EVIL)
    model = product.model(EVIL, max_in_flight=1)
    product.ask(2, "evil", secret, EVIL)
    for path in (
        "/",
        "/fairshare",
        f"/fairshare?pool={EVIL}",
        "/groups",
        "/tenants",
        f"/tenants/{tenant['id']}",
        "/keys",
        "/models",
        f"/models/{model['id']}",
        "/audit",
    ):
        page = window.open(path)
        expect(page.get_by_text(EVIL).first).to_be_attached()
        assert page.locator("main img").count() == 0, path
    page = window.open(f"/fairshare?pool={EVIL}")
    expect(page.locator(".u-legend")).to_have_count(2)
    expect(page.locator(".u-legend").first).to_contain_text(EVIL)


def test_two_thousand_tenants_are_paged_and_filtered(window: Window, product: Product) -> None:
    product.run(_many_tenants(product, 2000))
    page = window.open("/tenants")
    rows = page.locator("#list tbody tr")
    expect(rows).to_have_count(50)
    first = rows.first.inner_text()
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url(re.compile("cursor="))
    expect(rows).to_have_count(50)
    assert rows.first.inner_text() != first
    window.open("/tenants")
    page.get_by_role("searchbox").press_sequentially("TEAM 01999")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("team 01999")
    expect(page).to_have_url(re.compile(r"search=TEAM(\+|%20)01999"))
    page.get_by_role("searchbox").fill("nobody of this name")
    expect(page.locator("#list")).to_contain_text("No tenants match")


async def _many_tenants(product: Product, number: int) -> None:
    database, now = Database(product.database_url), datetime.now(UTC)
    async with database.transaction() as session:
        session.add_all(
            tables.TenantRow(
                id=tables.new_id(),
                name=f"team {index:05}",
                group_name="default",
                weight=100,
                budget_period="month",
                status="active",
                created_at=now,
                updated_at=now,
                revision=0,
            )
            for index in range(number)
        )
    await database.close()


@pytest.mark.parametrize("token", [ADMIN, VIEWER])
def test_the_whole_of_login_works_by_keyboard(
    new_window: OpenWindow, product: Product, token: str
) -> None:
    page = new_window(None).open("/login")
    expect(page.get_by_label("Admin or viewer token")).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{product.url}/")
