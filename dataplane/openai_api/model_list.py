"""`GET /v1/models`: the models a key may use, in one shape that both APIs' clients read."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from shared.policy import KeyPolicy, ModelPolicy


def allows(key: KeyPolicy, model: ModelPolicy) -> bool:
    """Whether a key may use a registered model."""
    allowed = key.tenant.allowed_models
    return allowed is None or model.name in allowed


def model_list(models: Iterable[ModelPolicy]) -> bytes:
    """The answer to `GET /v1/models`: OpenAI's fields, and Anthropic's beside them."""
    items = [_item(model) for model in sorted(models, key=lambda each: each.name)]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
    )


def one_model(model: ModelPolicy) -> bytes:
    """The answer to `GET /v1/models/{name}`."""
    return msgspec.json.encode(_item(model))


def _item(model: ModelPolicy) -> dict[str, Any]:
    created = _created_secs(model.id)
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "obleth",
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }


def _created_secs(model_id: str) -> int:
    """When a model was registered: its id begins with that moment. Other ids say nothing: 0."""
    try:
        parsed = uuid.UUID(model_id)
    except ValueError:
        return 0
    return (parsed.int >> 80) // 1000 if parsed.version == 7 else 0
