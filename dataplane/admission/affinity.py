"""Session affinity as it is in force for a model."""

from __future__ import annotations

from shared.policy import AffinityPolicy, ModelPolicy


def in_force(model: ModelPolicy, gateway: AffinityPolicy) -> AffinityPolicy | None:
    """What the model sets, else the gateway; None: it is off, or of no use.

    It is of no use over several endpoints, for a session would not reach the same one twice.
    """
    affinity = model.affinity.resolve(gateway)
    is_spread = sum(endpoint.enabled for endpoint in model.endpoints) > 1
    return affinity if affinity.enabled and not is_spread else None
