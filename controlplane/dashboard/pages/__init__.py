"""What is answered on each path, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from controlplane.dashboard.pages import (
    endpoints,
    fairshare,
    groups,
    keys,
    models,
    overview,
    records,
    tenants,
)
from controlplane.dashboard.visit import Page

PAGES: Final[Sequence[tuple[str, Mapping[str, Page]]]] = (
    ("/", {"GET": overview.show}),
    ("/fairshare", {"GET": fairshare.show}),
    ("/fairshare/bars", {"GET": fairshare.bars}),
    ("/fairshare/history", {"GET": fairshare.history}),
    ("/groups", {"GET": groups.show_all, "POST": groups.change_all}),
    ("/groups/{name:path}", {"GET": groups.show, "POST": groups.change}),
    ("/split", {"POST": groups.preview}),
    ("/tenants", {"GET": tenants.show_all}),
    ("/tenants/new", {"GET": tenants.show_new, "POST": tenants.create}),
    ("/tenants/{id}", {"GET": tenants.show, "POST": tenants.change}),
    ("/tenants/{id}/keys", {"GET": keys.show_new, "POST": keys.create}),
    ("/keys", {"GET": keys.show_all}),
    ("/keys/{id}", {"GET": keys.show, "POST": keys.change}),
    ("/models", {"GET": models.show_all}),
    ("/models/new", {"GET": models.show_new, "POST": models.create}),
    ("/models/{id}", {"GET": models.show, "POST": models.change}),
    ("/models/{id}/session-affinity", {"POST": models.set_affinity}),
    ("/models/{id}/endpoints/new", {"GET": endpoints.show_new, "POST": endpoints.create}),
    ("/models/{id}/endpoints/{endpoint}", {"GET": endpoints.show, "POST": endpoints.change}),
    ("/replicas", {"GET": fairshare.replicas}),
    ("/usage", {"GET": records.usage}),
    ("/usage/requests", {"GET": records.requests}),
    ("/usage/sums.csv", {"GET": records.sums_file}),
    ("/usage/requests.csv", {"GET": records.requests_file}),
    ("/audit", {"GET": records.audit}),
    ("/settings", {"GET": records.settings}),
)
