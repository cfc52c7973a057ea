"""One request to a page: who asks, what their form says, the API in their name, the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from controlplane.admin_auth import Role
from controlplane.dashboard.api import Api
from controlplane.dashboard.rendering import Templates
from controlplane.dashboard.sessions import Session, Sessions

THEMES: Final = ("light", "dark")
NOTICES: Final = {
    "saved": "Saved. It applies to the next request.",
    "created": "Created.",
    "deleted": "Deleted.",
    "unchanged": "Nothing was different.",
}
"""What a page says after a change, by the name that its address carries."""


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    session: Session
    sessions: Sessions
    api: Api
    templates: Templates
    form: Mapping[str, str] = field(default_factory=dict)
    """What was sent."""

    @property
    def may_write(self) -> bool:
        return self.session.role is Role.ADMIN

    @property
    def by_htmx(self) -> bool:
        """Whether a part of the page is exchanged instead of the page."""
        return "hx-request" in self.request.headers

    def query(self, name: str) -> str:
        return self.request.query_params.get(name, "")

    def path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        return value

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """A page, or one again with what is wrong with its form."""
        theme = self.request.cookies.get("obleth_theme", "")
        html = self.templates.render(
            template,
            here=self.request.url.path,
            role=self.session.role,
            may_write=self.may_write,
            form_token=self.sessions.form_token(self.session),
            query=self.request.query_params,
            theme=theme if theme in THEMES else "",
            notice=NOTICES.get(self.query("notice")),
            **context,
        )
        return HTMLResponse(html, status)

    def go(self, path: str, notice: str | None = None) -> Response:
        """To another page, after a change."""
        if notice is not None:
            path += ("&" if "?" in path else "?") + f"notice={notice}"
        return go(self.request, path)


Page = Callable[[Visit], Awaitable[Response]]
"""What answers a visit."""


def go(request: Request, path: str) -> Response:
    """Send the browser to another page of ours, also when only part of a page was asked for."""
    if "hx-request" in request.headers:
        return Response(status_code=200, headers={"HX-Redirect": path})
    return RedirectResponse(path, 303)
