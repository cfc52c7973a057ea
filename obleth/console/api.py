"""The few questions that are asked of the Management API."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from controlplane.keys import secret
from obleth.failures import FAILED, WRONG_USE, Failed
from shared.live_state import LiveState

ANSWER_SECS = 10.0
_NO_TOKEN = "set OBLETH_VIEWER_TOKEN or OBLETH_ADMIN_TOKEN to a token of the control plane's"  # noqa: S105 - not one
_WRONG_TOKEN = f"the control plane does not know the token; {_NO_TOKEN}"


class Api:
    """A control plane's API. Every method raises `Failed`."""

    def __init__(self, url: str, token: str | None) -> None:
        if token is None:
            raise Failed(_NO_TOKEN, WRONG_USE)
        try:
            self._http = httpx.Client(
                base_url=f"{url.rstrip('/')}/api/v1",
                headers={"authorization": f"Bearer {token}"},
                timeout=ANSWER_SECS,
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Failed(f"{url} is no address: {error}", WRONG_USE) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def live(self) -> LiveState:
        try:
            return msgspec.json.decode(self._get("/fairshare/live", {}).content, type=LiveState)
        except ValueError as error:
            raise Failed(f"{self._http.base_url} answered something else: {error}") from None

    def explanation(self, key: str, model: str) -> dict[str, Any]:
        """`key` may be a secret, of which only the beginning is sent."""
        asked = secret.prefix(key) if key.startswith("sk-") else key
        answer = self._get("/fairshare/explain", {"key": asked, "model": model})
        try:
            told: dict[str, Any] = answer.json()
        except ValueError as error:
            raise Failed(f"{self._http.base_url} answered something else: {error}") from None
        return told

    def _get(self, path: str, params: dict[str, str]) -> httpx.Response:
        try:
            answer = self._http.get(path, params=params)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise Failed(f"{self._http.base_url} does not answer: {reason}") from None
        if answer.status_code == 401:
            raise Failed(_WRONG_TOKEN, WRONG_USE)
        if answer.status_code != 200:
            wrong_use = answer.status_code in (400, 403, 404, 422)
            raise Failed(_detail(answer), WRONG_USE if wrong_use else FAILED)
        return answer


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}"
