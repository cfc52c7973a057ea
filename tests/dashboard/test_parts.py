"""Forms, bars, previews and how figures are written."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.dashboard import forms, rendering, words
from controlplane.dashboard.api import Refused
from controlplane.dashboard.forms import Form, Takes
from controlplane.dashboard.live import CELLS, Live, bar, colours
from controlplane.dashboard.pages.groups import Part, cut
from dataplane.scheduler.effects import AffinityEvent
from shared.live_state import Cause

FIELDS = {
    "name": Takes.TEXT,
    "weight": Takes.WHOLE,
    "headroom": Takes.NUMBER,
    "enabled": Takes.FLAG,
    "aliases": Takes.LINES,
    "allowed": Takes.OPTIONAL_LINES,
    "expires_at": Takes.MOMENT,
    "capacity.source": Takes.OPTIONAL_TEXT,
}


def test_what_is_blank_takes_its_default() -> None:
    assert forms.to_json(FIELDS, {}) == {
        "name": "",
        "weight": None,
        "headroom": None,
        "enabled": False,
        "aliases": [],
        "allowed": None,
        "expires_at": None,
        "capacity": {"source": None},
    }


def test_a_form_shows_what_the_api_gave_and_gives_it_back() -> None:
    thing = {
        "name": "a",
        "weight": 100,
        "headroom": 1.5,
        "enabled": True,
        "aliases": ["b", "c"],
        "allowed": ["d"],
        "expires_at": "2030-01-31T12:00:00Z",
        "capacity": {"source": "dns"},
    }
    assert forms.to_json(FIELDS, forms.to_text(FIELDS, thing)) == thing


def test_a_field_that_was_left_alone_keeps_what_a_form_does_not_show() -> None:
    thing: dict[str, Any] = {
        "name": "a",
        "aliases": [" b", "c"],
        "allowed": [],
        "expires_at": "2030-01-31T12:00:00.250000Z",
        "capacity": None,
    }
    fields = {name: takes for name, takes in FIELDS.items() if name.partition(".")[0] in thing}
    shown = forms.to_text(fields, thing)
    # As browsers send it: lines end in two characters, and seconds that are zero are left out.
    sent = {**shown, "aliases": " b\r\nc", "expires_at": "2030-01-31T12:00"}
    assert forms.to_json(fields, sent, thing) == {**thing, "capacity": {"source": None}}
    changed = {**sent, "allowed": "d", "expires_at": "2030-01-31T12:00:01", "aliases": ""}
    given = forms.to_json(fields, changed, thing)
    assert (given["allowed"], given["aliases"]) == (["d"], [])
    assert given["expires_at"] == "2030-01-31T12:00:01Z"


@pytest.mark.parametrize("text", ["ten", "1.5", "nan", "9" * 5000, "1 0"])
def test_what_is_no_number_goes_to_the_api_as_it_is(text: str) -> None:
    assert forms.to_json({"weight": Takes.WHOLE}, {"weight": text}) == {"weight": text}


@pytest.mark.parametrize("text", ["nan", "inf", "1e999"])
def test_numbers_that_json_does_not_have_go_as_text(text: str) -> None:
    assert forms.to_json({"headroom": Takes.NUMBER}, {"headroom": text}) == {"headroom": text}


def refused(*errors: tuple[str, str]) -> Refused:
    fields = [{"field": name, "detail": detail} for name, detail in errors]
    return Refused({"status": 422, "detail": "in short", "errors": fields})


def test_errors_stand_at_their_fields() -> None:
    form = Form({"weight": "0"}).refused(
        refused(("weight", "is low"), ("aliases.1", "is taken"), ("capacity.source", "is odd")),
        FIELDS,
    )
    assert form.values == {"weight": "0"}
    assert form.errors == {"weight": "is low", "aliases": "is taken", "capacity.source": "is odd"}
    assert form.problem is None


def test_errors_of_what_is_not_shown_are_told_all_the_same() -> None:
    assert Form().refused(refused(("mode", "is odd")), FIELDS).problem == "mode is odd"
    assert Form().refused(refused(), FIELDS).problem == "in short"


def pool(size: int, held: int = 0, **running: int) -> Any:
    groups = [{"name": name, "in_flight": number} for name, number in sorted(running.items())]
    return {"model": "m", "size": size, "held": held, "groups": groups}


def test_a_bar_has_one_cell_a_slot_by_group() -> None:
    full = pool(8, held=1, api=1, chat=5)
    assert bar(full, colours([full])).cells == ["g0", *["g1"] * 5, "held", "free"]


def test_more_than_fits_is_counted_and_not_drawn() -> None:
    shrunk = bar(pool(2, api=3, chat=1), {"api": 0, "chat": 1})
    assert (shrunk.cells, shrunk.over) == (["g0", "g0"], 2)


def test_a_cell_of_a_large_pool_stands_for_several_slots() -> None:
    large = bar(pool(100_000, api=50_000), {"api": 0})
    assert len(large.cells) <= CELLS
    assert large.slots_each == 782
    assert large.cells.count("g0") == pytest.approx(len(large.cells) / 2, abs=1)


def test_an_empty_pool_has_no_cells() -> None:
    assert bar(pool(0), {}).cells == []


def test_groups_beyond_the_colours_share_the_last() -> None:
    many = {"groups": [{"name": f"{number:02}"} for number in range(12)]}
    assert list(colours([many]).values()) == [*range(8), 8, 8, 8, 8]


def test_a_preview_tells_slots_before_and_after() -> None:
    assert cut(8, {"chatbot": 500, "api": 50}, {"api": 500}) == [
        Part("chatbot", 500, 7, 4),
        Part("api", 500, 1, 4),
    ]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (rendering.count, 12345, "12,345"),
        (rendering.count, None, "–"),
        (rendering.short, 8600, "8.6k"),
        (rendering.short, 999_999, "1M"),
        (rendering.short, 0, "0"),
        (rendering.short, 12.345, "12.3"),
        (rendering.decimal, 7.0, "7"),
        (rendering.decimal, 6.66, "6.7"),
        (rendering.milliseconds, 340, "340 ms"),
        (rendering.milliseconds, 1234, "1.2 s"),
        (rendering.milliseconds, 62_000, "1 min 02 s"),
        (rendering.milliseconds, 3_600_000, "1 h 00 min"),
        (rendering.milliseconds, 50 * 3_600_000, "2 d 2 h"),
        (rendering.sentence, "no replica is live", "No replica is live."),
        (rendering.sentence, "Redis: it is away.", "Redis: it is away."),
        (rendering.when, "2026-11-30T12:00:00+02:00", "2026-11-30 10:00:00"),
    ],
)
def test_figures_are_written_short(write: Any, value: Any, text: str) -> None:
    assert write(value) == text


def state(**fields: Any) -> Live:
    told = {"scope": "replica", "replicas": 1, "mode": "local", "pools": [], **fields}
    told = {"replicas_reporting": told["replicas"], **told}
    return Live({"scope_reason": None, "source_reason": None, **told})


def test_counts_of_one_gateway_out_of_several_are_marked() -> None:
    assert state(replicas=3).on_one_of_several
    assert not state().on_one_of_several
    assert not state(replicas=3, scope="cluster").on_one_of_several
    assert not Live(None, "Redis is away").on_one_of_several


def notes(live: Live) -> str:
    environment = rendering.Templates("0")._environment
    told = environment.get_template("macros.html").make_module().live_notes(live)  # type: ignore[attr-defined]
    return " ".join(str(told).split())


def test_the_mode_is_told_in_words_with_what_follows_from_it() -> None:
    assert "configured limits hold for the fleet" in notes(state(mode="shared", scope="cluster"))
    alone = notes(state(mode="fallback", replicas=3, scope_reason="mode fallback: <each>"))
    assert "each replica enforces its part of every limit" in alone
    assert "those on this gateway, one of 3" in alone
    assert "Mode fallback: &lt;each&gt;." in alone
    assert "does not know the mode" in notes(state(mode="of tomorrow"))


def test_replicas_that_live_and_tell_nothing_are_missed() -> None:
    some = notes(state(mode="shared", scope="cluster", replicas=3, replicas_reporting=2))
    assert "Only 2 of 3 replicas are counted" in some
    assert "Only" not in notes(state(mode="shared", scope="cluster", replicas=3))


def test_where_nobody_answers_the_reason_is_told() -> None:
    assert "No live state.</strong> Redis is away" in notes(Live(None, "Redis is away"))


def test_every_cause_and_event_of_the_api_has_a_name() -> None:
    assert set(words.CAUSES) == set(Cause)
    assert set(words.AFFINITY) == set(AffinityEvent)
