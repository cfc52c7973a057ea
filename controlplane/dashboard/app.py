"""The dashboard as an application of its own, behind which the API stays as it is.

Every page but the login asks for a session, every form for its token. Both are checked here, in
front of the pages, so that none can forget.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.admin_auth import READING, Role, Tokens
from controlplane.dashboard import forms
from controlplane.dashboard.api import Api, Refused
from controlplane.dashboard.login_limit import LoginLimit
from controlplane.dashboard.pages import PAGES
from controlplane.dashboard.rendering import Templates
from controlplane.dashboard.sessions import COOKIE, LIFE_SECS, Session, Sessions
from controlplane.dashboard.visit import Page, Visit, go

LOGOUT: Final = "/logout"
FORM_TOKEN: Final = "form_token"  # noqa: S105 - a field's name
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Our own files, nothing inline, no frames."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TOO_OLD: Final = "The form is not one of yours, or too old. Go back, load the page again and retry."
UNSAVED: Final = (
    "Your session has ended, and what you sent was not saved. Log in to come back to the page."
)
WRONG_TOKEN: Final = "This token opens nothing here."  # noqa: S105 - what is said of one


class Dashboard:
    """The pages over the API that `api` serves, for whoever has one of its tokens."""

    def __init__(
        self, api: ASGIApp, *, admin_token: str, viewer_token: str | None, version: str
    ) -> None:
        self._api = api
        self._tokens = Tokens(admin_token, viewer_token)
        self._secrets: Mapping[Role | None, str] = {
            None: "",
            Role.ADMIN: admin_token,
            Role.VIEWER: viewer_token or "",
        }
        self._sessions = Sessions(admin_token, viewer_token)
        self._limit = LoginLimit()
        self._templates = Templates(version)
        self.app = Starlette(
            routes=[
                Mount("/static", StaticFiles(packages=[("controlplane.dashboard", "static")])),
                Route("/login", self._login, methods=["GET", "POST"]),
                *(
                    Route(path, self._guarded(methods), methods=list(methods))
                    for path, methods in (*PAGES, (LOGOUT, {"POST": self._logout}))
                ),
            ],
            middleware=[Middleware(FixedHeaders)],
            exception_handlers={
                Refused: self._on_refusal,
                HTTPException: self._on_http_error,
                Exception: self._on_our_error,
            },
        )

    def _guarded(self, methods: Mapping[str, Page]) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint out of the pages for each method."""

        async def endpoint(request: Request) -> Response:
            session = self._session(request)
            if session is None or session.role is None:
                return self._to_login(request)
            sent: Mapping[str, str] = {}
            if request.method not in READING:
                sent = await self._checked_form(request, session)
            visit = self._visit(request, session, sent)
            return await methods["GET" if request.method == "HEAD" else request.method](visit)

        return endpoint

    async def _login(self, request: Request) -> Response:
        session = self._session(request)
        target = _inside(request.query_params.get("next", ""))
        if request.method in READING:
            if session is not None and session.role is not None:
                return go(request, target)
            told = UNSAVED if "unsaved" in request.query_params else None
            return self._ask(request, session or self._sessions.start(None), told)
        if session is None:
            return self._ask(request, self._sessions.start(None), TOO_OLD, 403)
        given = (await self._checked_form(request, session)).get("token", "")
        address = _address(request)
        wait = self._limit.wait_secs(address)
        if wait > 0:
            secs = str(round(wait + 0.5))
            told = f"Too many wrong tokens from your address. Try again in {secs} seconds."
            return self._ask(request, session, told, 429, {"Retry-After": secs})
        role = self._tokens.role(given.strip().encode("utf-8", "replace"))
        if role is None:
            self._limit.failed(address)
            return self._ask(request, session, WRONG_TOKEN, 401)
        return self._keep(request, self._sessions.start(role), go(request, target))

    def _ask(
        self,
        request: Request,
        session: Session,
        problem: str | None = None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The login page."""
        response = self._visit(request, session).page("login.html", status, problem=problem)
        response.headers.update(headers or {})
        return self._keep(request, session, response)

    async def _logout(self, visit: Visit) -> Response:
        response = go(visit.request, "/login")
        response.delete_cookie(COOKIE, path="/")
        return response

    def _keep(self, request: Request, session: Session, response: Response) -> Response:
        response.set_cookie(
            COOKIE,
            self._sessions.cookie(session),
            max_age=LIFE_SECS,
            httponly=True,
            samesite="lax",
            secure=_is_https(request),
        )
        return response

    def _session(self, request: Request) -> Session | None:
        return self._sessions.read(request.cookies.get(COOKIE))

    async def _checked_form(self, request: Request, session: Session) -> Mapping[str, str]:
        """What was sent, if it came from a page of this session. Raises HTTPException."""
        sent = await forms.read(request)
        token = sent.pop(FORM_TOKEN, "")
        if not _from_here(request) or not self._sessions.is_form_token(session, token):
            raise HTTPException(403, TOO_OLD)
        return sent

    def _visit(
        self, request: Request, session: Session, sent: Mapping[str, str] | None = None
    ) -> Visit:
        api = Api(self._api, self._secrets[session.role], _address(request))
        return Visit(request, session, self._sessions, api, self._templates, sent or {})

    def _to_login(self, request: Request) -> Response:
        if "application/json" in request.headers.get("accept", ""):
            return Response(status_code=401)
        if request.method in READING:
            page = _target(request.url.path, request.url.query)
            return go(request, "/login" if page == "/" else f"/login?next={quote(page)}")
        if request.url.path == LOGOUT:
            return go(request, "/login")
        form = urlsplit(request.headers.get("referer", ""))
        page = _inside(_target(form.path, form.query))
        return go(request, f"/login?next={quote(page)}&unsaved=")

    async def _on_refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return self._tell(request, error.status, error.detail)

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = "There is no such page." if error.status_code == 404 else error.detail
        return self._tell(request, error.status_code, told)

    async def _on_our_error(self, request: Request, error: Exception) -> Response:
        return self._tell(request, 500, "An error of ours; it has been logged.")

    def _tell(self, request: Request, status: int, detail: str) -> Response:
        session = self._session(request) or self._sessions.start(None)
        return self._visit(request, session).page("error.html", status, code=status, detail=detail)


class FixedHeaders:
    """ASGI middleware: the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"].startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["Cache-Control"] = "no-cache" if is_file else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _is_https(request: Request) -> bool:
    """Whether the browser came over TLS, here or to the proxy in front. Any proxy is believed: who
    claims it without need only keeps their own cookie from themselves."""
    told = request.headers.get("x-forwarded-proto", "")
    return "https" in (request.url.scheme, told.partition(",")[0].strip().lower())


def _target(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def _inside(target: str) -> str:
    """Where to go after login: a page of ours, or the first one."""
    path = urlsplit(target)
    ours = target.startswith("/") and not path.netloc and not path.scheme
    return target if ours and target.isprintable() and "\\" not in target else "/"


def _from_here(request: Request) -> bool:
    """Whether the browser says that a form came from this origin, as far as it says anything."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
