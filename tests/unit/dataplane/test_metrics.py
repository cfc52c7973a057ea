"""What Prometheus is told."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dataplane.metrics import FleetFigures, Metrics, PoolFigures
from shared.policy import UNROUTED


def metrics(registered: Iterable[str] = ("m1", "m2"), **options: Any) -> Metrics:
    names = frozenset(registered)
    return Metrics(is_registered=names.__contains__, **{"pools": tuple, **options})


def finish(of: Metrics, model: str | None = "m1", **figures: Any) -> None:
    plain: dict[str, Any] = {
        "admission": "fast",
        "status": 200,
        "queue_secs": 0.0,
        "first_byte_secs": 0.2,
        "duration_secs": 1.5,
        "input_tokens": 10,
        "output_tokens": 20,
    }
    of.request_finished(model, **{**plain, **figures})


def value(of: Metrics, name: str, **labels: str) -> float | None:
    return of.registry.get_sample_value(name, labels)


def test_a_finished_request_is_counted_by_model_admission_and_status() -> None:
    of = metrics()
    finish(of)
    finish(of)
    finish(of, admission="queued")
    finish(of, "m2", admission="rejected", status=503)
    name = "obleth_requests_total"
    assert value(of, name, model="m1", admission="fast", status="200") == 2
    assert value(of, name, model="m1", admission="queued", status="200") == 1
    assert value(of, name, model="m2", admission="rejected", status="503") == 1


def test_times_and_tokens_are_summed_by_model() -> None:
    of = metrics()
    finish(of, queue_secs=0.5)
    finish(of, queue_secs=1.0, first_byte_secs=None)
    assert value(of, "obleth_queue_wait_seconds_sum", model="m1") == 1.5
    assert value(of, "obleth_queue_wait_seconds_count", model="m1") == 2
    assert value(of, "obleth_time_to_first_byte_seconds_count", model="m1") == 1
    assert value(of, "obleth_request_seconds_sum", model="m1") == 3.0
    assert value(of, "obleth_input_tokens_total", model="m1") == 20
    assert value(of, "obleth_output_tokens_total", model="m1") == 40


def test_upstream_attempts_repairs_and_lost_usage_are_counted() -> None:
    of = metrics()
    of.upstream_attempted("m1", "answered")
    of.upstream_attempted("m1", "answered")
    of.upstream_attempted("m1", "unreachable")
    of.repaired("unknown_release")
    of.usage_dropped(3)
    attempts = "obleth_upstream_attempts_total"
    assert value(of, attempts, model="m1", outcome="answered") == 2
    assert value(of, attempts, model="m1", outcome="unreachable") == 1
    assert value(of, "obleth_repairs_total", kind="unknown_release") == 1
    assert value(of, "obleth_usage_rows_dropped_total") == 3


def test_repairs_are_told_from_the_start_so_that_the_first_is_an_increase() -> None:
    of = metrics()
    name = "obleth_repairs_total"
    assert [value(of, name, kind=kind) for kind in ("reclaimed", "reasserted")] == [0, 0]


def test_calls_to_the_books_are_counted_and_timed_by_script() -> None:
    of = metrics()
    of.slots_called("claim", "answered", 0.002)
    of.slots_called("claim", "unavailable", 0.25)
    of.slots_called("release", "answered", 0.001)
    calls, secs = "obleth_slot_calls_total", "obleth_slot_call_seconds"
    assert value(of, calls, script="claim", outcome="answered") == 1
    assert value(of, calls, script="claim", outcome="unavailable") == 1
    assert value(of, f"{secs}_sum", script="claim") == 0.252
    assert value(of, f"{secs}_count", script="release") == 1


def test_whatever_names_clients_send_there_is_one_series_for_them_all() -> None:
    of = metrics()
    finish(of)
    known = len(of.exposition("")[0])
    names = random.Random(1)
    for _ in range(100_000):
        finish(of, names.randbytes(names.randrange(4, 200)).hex(), status=404)
        of.upstream_attempted(names.randbytes(8).hex(), "answered")
    for odd in (None, "", "(unrouted)", 'a"b\n', "\ud800", "M1"):
        finish(of, odd, status=404)
    requests = "obleth_requests_total"
    assert value(of, requests, model=UNROUTED, admission="fast", status="404") == 100_006
    assert len(of.exposition("")[0]) < known + 10_000


def test_a_deleted_models_counts_stay_and_never_fall() -> None:
    names = {"m1"}
    of = Metrics(is_registered=names.__contains__, pools=tuple)
    finish(of)
    names.clear()
    finish(of)
    assert value(of, "obleth_requests_total", model="m1", admission="fast", status="200") == 2


def test_gauges_show_what_is_so_when_they_are_asked_for() -> None:
    pools = [PoolFigures("m1", size=8, in_flight=7, queued=3, held=1)]
    fleet = FleetFigures()
    of = metrics(pools=lambda: pools, fleet=lambda: fleet)
    for name, figure in (("pool_size", 8), ("in_flight", 7), ("queue_depth", 3), ("held_slots", 1)):
        assert value(of, f"obleth_{name}", model="m1") == figure
    modes = ("shared", "fallback", "split", "local")
    assert [value(of, "obleth_fairshare_mode", mode=mode) for mode in modes] == [0, 0, 0, 1]
    assert value(of, "obleth_fairshare_replicas") == 1
    pools.clear()
    assert value(of, "obleth_heartbeat_age_seconds") is None
    fleet = FleetFigures("shared", 3, 7.5)
    assert value(of, "obleth_heartbeat_age_seconds") == 7.5
    assert value(of, "obleth_in_flight", model="m1") is None
    assert [value(of, "obleth_fairshare_mode", mode=mode) for mode in modes] == [1, 0, 0, 0]
    assert value(of, "obleth_fairshare_replicas") == 3


def test_making_the_metrics_asks_nobody_for_anything() -> None:
    def not_yet() -> list[PoolFigures]:
        raise AssertionError("asked before everything was there")

    metrics(pools=not_yet)


def test_endpoints_are_counted_by_health_at_the_scrape() -> None:
    known = {("m1", "healthy"): 2, ("m1", "unhealthy"): 1}
    of = metrics(endpoints=lambda: known)
    assert value(of, "obleth_endpoints", model="m1", health="healthy") == 2
    known.clear()
    assert value(of, "obleth_endpoints", model="m1", health="healthy") is None


def test_two_sets_of_metrics_in_one_process_do_not_meet() -> None:
    first, second = metrics(), metrics()
    finish(first)
    labels = {"model": "m1", "admission": "fast", "status": "200"}
    assert value(first, "obleth_requests_total", **labels) == 1
    assert value(second, "obleth_requests_total", **labels) is None


def test_what_affinity_does_is_counted_by_model_and_event() -> None:
    of = metrics()
    for model, event in (("m1", "hold"), ("m1", "hold"), ("m1", "redeem"), ("gone", "expire")):
        of.affinity_happened(model, event)
    name = "obleth_fairshare_affinity_total"
    assert value(of, name, model="m1", event="hold") == 2
    assert value(of, name, model="m1", event="redeem") == 1
    assert value(of, name, model=UNROUTED, event="expire") == 1


def test_what_is_exposed_can_be_read_back() -> None:
    of = metrics(pools=lambda: [PoolFigures("m1", 8, 7, 3, 0)])
    finish(of)
    body, media_type = of.exposition("text/html")
    families = {one.name: one for one in text_string_to_metric_families(body.decode())}
    assert media_type.startswith("text/plain")
    ours = {name for name in families if name.startswith("obleth_")}
    assert ours == {
        "obleth_requests",
        "obleth_queue_wait_seconds",
        "obleth_time_to_first_byte_seconds",
        "obleth_request_seconds",
        "obleth_in_flight",
        "obleth_queue_depth",
        "obleth_held_slots",
        "obleth_pool_size",
        "obleth_input_tokens",
        "obleth_output_tokens",
        "obleth_fairshare_mode",
        "obleth_endpoints",
        "obleth_fairshare_replicas",
        "obleth_fairshare_affinity",
        "obleth_repairs",
        "obleth_upstream_attempts",
        "obleth_usage_rows_dropped",
        "obleth_slot_calls",
        "obleth_slot_call_seconds",
    }
    assert not any(name.endswith("_created") for name in families)
    assert all(families[name].documentation for name in ours)


def test_openmetrics_is_given_to_whoever_asks_for_it() -> None:
    of = metrics()
    finish(of)
    body, media_type = of.exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert media_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_the_combinations_of_one_model_stay_few() -> None:
    of = metrics()
    for admission, status in itertools.product(("fast", "queued", "rejected"), (200, 429, 503)):
        finish(of, admission=admission, status=status)
    body = of.exposition("")[0].decode()
    assert sum(line.startswith("obleth_requests_total{") for line in body.splitlines()) == 9
