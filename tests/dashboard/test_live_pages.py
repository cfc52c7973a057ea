"""The live pages against what the backend really runs: two groups want eight slots."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from playwright.sync_api import Locator, expect

from tests.dashboard.conftest import OpenWindow, Window
from tests.dashboard.product import Product

MODEL = "shared-model"


@pytest.fixture(scope="module")
def fight(product: Product) -> dict[str, str]:
    """Ids of two tenants in groups of weight 500 and 50 that run seven and one, and wait."""
    for name, weight in (("chat", 500), ("api", 50)):
        product.make("/groups", name=name, weight=weight)
    product.model(MODEL, max_in_flight=8)
    chatbot, chat_key = product.tenant("chatbot", group="chat")
    batch, api_key = product.tenant("api-batch", group="api")
    product.ask(7, "chatbot", chat_key, MODEL)
    product.ask(1, "api-batch", api_key, MODEL)
    product.until_runs(MODEL, 8)
    product.ask(10, "chatbot", chat_key, MODEL)
    product.ask(5, "api-batch", api_key, MODEL)
    return {"chatbot": chatbot["id"], "api-batch": batch["id"]}


def cells(bar: Locator) -> Counter[str]:
    names = bar.locator("i").evaluate_all("cells => cells.map(cell => cell.className)")
    return Counter(names)


def figure(row: Locator, name: str) -> int:
    return int(row.locator(f"[data-figure={name}]").inner_text().split()[0])


def test_the_pools_page_shows_what_the_backend_runs(
    window: Window, product: Product, fight: dict[str, str]
) -> None:
    product.model("quiet-model", max_in_flight=3)
    page = window.open("/fairshare")
    assert product.runs(MODEL) == {"chatbot": 7, "api-batch": 1}
    row = page.locator(".pool-list li", has_text=MODEL)
    expect(row.locator(".sums")).to_contain_text("8 of 8 running")
    expect(row.locator(".sums")).to_contain_text("15 waiting, the oldest for")
    assert sorted(cells(row.locator(".slots")).values()) == [1, 7]
    expect(page.locator(".mode")).to_contain_text("Local")
    expect(page.locator(".mode")).to_contain_text("enforces the configured limits by itself")
    idle = page.get_by_role("row", name="quiet-model")
    expect(idle).to_contain_text("Idle")


def test_a_pools_page_shows_groups_tenants_and_keys_against_their_share(
    window: Window, product: Product, fight: dict[str, str]
) -> None:
    page = window.open(f"/fairshare?pool={MODEL}")
    runs = product.runs(MODEL)
    for name, tenant_id in fight.items():
        row = page.locator(f'[data-tenant="{tenant_id}"]')
        assert figure(row, "in_flight") == runs[name]
    expect(page.locator("#in-flight")).to_contain_text(f"{sum(runs.values())} of 8 slots")
    expect(page.locator("#queued")).to_have_text("15")
    assert figure(page.locator('[data-group="chat"]'), "in_flight") == 7
    assert figure(page.locator('[data-group="api"]'), "queued") == 5
    chat = page.locator(f'[data-tenant="{fight["chatbot"]}"]')
    expect(chat).to_contain_text("7.3")
    expect(chat.locator(".badge")).to_have_count(1)
    expect(chat.locator(".badge")).to_have_text("Pool full")
    expect(page.locator("[data-key]")).to_have_count(2)
    expect(page.locator(".next-line li")).to_have_count(5)
    expect(page.locator(".next-line li").first).to_contain_text("Group score")
    expect(page.locator(".u-legend").first).to_contain_text("chat")


def test_a_weight_changed_on_one_page_shows_its_effect_on_the_other(
    window: Window, new_window: OpenWindow, product: Product, fight: dict[str, str]
) -> None:
    pool = window.open(f"/fairshare?pool={MODEL}")
    weights = new_window().open("/groups")
    weights.get_by_label("Pool").select_option(MODEL)
    weights.get_by_label("Groups that count").select_option("busy")
    split = weights.locator('[data-group="api"]')
    expect(split.locator("span").nth(1)).to_have_text("1")
    weights.get_by_label("Weight of api").fill("500")
    expect(split.locator("span").nth(3)).to_have_text("4")
    weights.get_by_role("button", name="Save weights").click()
    expect(weights.get_by_role("status")).to_contain_text("Saved")
    # The page that is open follows by itself: the group is below its share now.
    tenant = pool.locator(f'[data-tenant="{fight["api-batch"]}"]')
    expect(tenant.locator("td").nth(3)).to_have_text("4")
    expect(tenant.locator(".badge")).to_have_text("Below share")
    expect(pool.locator(".next-line b").first).to_have_text("api-batch")
    product.api.patch("/groups/api", json={"weight": 50})
    expect(tenant.locator("td").nth(3)).to_have_text("0.7")


def test_bars_follow_the_live_state_without_loading_the_page_again(
    window: Window, product: Product, fight: dict[str, str]
) -> None:
    product.model("filling", max_in_flight=5)
    _, key = product.tenant("filler", group="chat")
    product.ask(1, "filler", key, "filling")
    page = window.open("/fairshare")
    bar = page.locator('[data-bar="filling"]')
    expect(bar.locator("i.free")).to_have_count(4)
    page.evaluate("window.stayed = true")
    product.ask(2, "filler", key, "filling")
    expect(bar.locator("i.free")).to_have_count(2)
    assert page.evaluate("window.stayed") is True


def test_the_overview_counts_what_runs_over_all_pools(
    window: Window, product: Product, fight: dict[str, str]
) -> None:
    page = window.open("/")
    live = product.get("/fairshare/live")
    running = page.locator(".figures dd").first
    expect(running).to_contain_text(re.compile(rf"^{live['in_flight']} of"))
    expect(page.locator(".figures dd").nth(1)).to_have_text(str(live["queued"]))


def test_the_replicas_page_shows_this_one(window: Window, product: Product) -> None:
    page = window.open("/replicas")
    (replica,) = product.get("/replicas")["items"]
    row = page.get_by_role("row", name=replica["instance"])
    expect(row).to_contain_text("Local")


def test_a_replica_that_is_gone_is_told_and_policy_is_shown_all_the_same(window: Window) -> None:
    page = window.open("/fairshare?replica=gone")
    expect(page.get_by_role("alert")).to_contain_text("No live state.")
    expect(page.get_by_role("alert")).to_contain_text("gone")
    expect(page.get_by_role("row", name=MODEL)).to_contain_text("not known")


def test_what_affinity_did_is_counted_on_the_pools_page(window: Window, product: Product) -> None:
    model = product.model("agents", max_in_flight=2)
    product.api.put(
        f"/models/{model['id']}/session-affinity",
        json={"enabled": True, "hold_ms": 60_000, "max_held_percent": 100},
    )
    _, key = product.tenant("agent", group="chat")
    for _ in range(3):
        product.step("agent", key, "agents", session="loop")
    page = window.open("/fairshare?pool=agents")
    (pool,) = (one for one in product.get("/fairshare/live")["pools"] if one["model"] == "agents")
    assert (pool["held"], pool["affinity"]["hold"], pool["affinity"]["redeem"]) == (1, 2, 1)
    expect(page.locator("#held")).to_have_text("1")
    expect(page.locator("[data-bar=agents] i.held")).to_have_count(1)
    expect(page.locator("#affinity")).to_contain_text(re.compile("Slots held\\s*2"))
    expect(page.locator("#affinity")).to_contain_text(re.compile("Held slots taken\\s*1"))


def test_a_long_name_makes_a_pools_page_no_wider(window: Window, product: Product) -> None:
    name = "research-" + "W" * 90
    product.make("/groups", name=name)
    product.model("wide", max_in_flight=2)
    _, key = product.tenant("wide-tenant", group=name)
    product.ask(1, "wide-tenant", key, "wide")
    page = window.open("/fairshare?pool=wide")
    expect(page.locator(".u-label", has_text=name)).to_be_visible()
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 320")
