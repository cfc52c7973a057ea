"""The live pages of a fleet: all replicas together, and what is said while Redis is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenWindow
from tests.dashboard.fleet import FleetProduct


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProduct]:
    with FleetProduct(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def is_the_clusters(page: Page) -> None:
    expect(page.locator(".mode")).to_contain_text("Shared")
    expect(page.locator(".sums")).to_contain_text("4 of 4 running")
    expect(page.locator("main")).not_to_contain_text("this gateway")


def is_one_replicas(page: Page, product: FleetProduct) -> None:
    expect(page.locator(".mode")).to_contain_text("Fallback")
    expect(page.locator(".mode")).to_contain_text("Redis is away")
    expect(page.get_by_role("heading", level=1)).to_contain_text("on this gateway")
    expect(page.locator("main")).to_contain_text(product.replicas[0].name)
    expect(page.locator(".sums")).to_contain_text("3 of 2 running")


def test_with_redis_away_pages_show_the_answering_replica_and_recover(
    new_window: OpenWindow, product: FleetProduct
) -> None:
    first, second = product.replicas
    product.ask(first, "a", 3)
    product.ask(second, "b", 1)
    open_before = new_window().open("/fairshare")
    is_the_clusters(open_before)
    product.stop_redis()
    is_one_replicas(open_before, product)
    window = new_window()
    page = window.open("/replicas")
    expect(page.get_by_role("alert")).to_contain_text("what they last said")
    expect(page.get_by_role("row", name=first.name)).to_be_visible()
    for path in ("/", "/fairshare?pool=model", "/fairshare"):
        window.open(path)
        expect(page.get_by_role("heading", level=1)).to_contain_text("on this gateway")
        expect(page.locator(".mode")).to_contain_text("Redis is away")
    is_one_replicas(page, product)
    assert window.barriers() == []
    product.start_redis()
    for each in (open_before, page):
        is_the_clusters(each)
