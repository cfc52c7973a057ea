"""The registered models as one picture, replaced whole when they change."""

from __future__ import annotations

from collections.abc import Sequence

from shared.policy import ModelPolicy


class Catalogue:
    """Enabled models, found by name or alias in one step. Never changes once made."""

    def __init__(self, models: Sequence[ModelPolicy] = ()) -> None:
        self.enabled = tuple(model for model in models if model.enabled)
        self._by_name = {alias: model for model in self.enabled for alias in model.aliases}
        # The database keeps all names distinct; should it ever not, a model's own name wins.
        self._by_name.update((model.name, model) for model in self.enabled)

    def find(self, name: str) -> ModelPolicy | None:
        """The enabled model of this name or alias."""
        return self._by_name.get(name)
