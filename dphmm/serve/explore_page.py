"""``dphmm explore``: a page on this machine that shows a policy graph at work.

The page may show a private recording. It is served on 127.0.0.1 only, to a browser that opened the printed address with
its token, and not under another host name, which a site could point to this machine.
"""

from __future__ import annotations

import asyncio
import json
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from secrets import compare_digest, token_urlsafe
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dphmm.errors import DphmmError, MissingDependencyError
from dphmm.jobs.explore.explored_user import NUM_STEPS, NumSteps
from dphmm.jobs.explore.explorer import Explorer
from dphmm.jobs.explore.paper_example import PaperExample, build_examples
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.model.loading import Model
from dphmm.plots.basemap import (
    MAX_EXTRACT_POINTS,
    Basemap,
    add_credit,
    build_basemap,
    compute_bounding_box,
    encode_basemap,
    get_states_credit,
)
from dphmm.random import derive_seed
from dphmm.readers.synthetic_city import build_city
from dphmm.serve.demo import bind_local_port, build_city_basemap
from dphmm.serve.page import STATIC, TEXTS, SecurityHeaders, choose_language, fill_template, make_static_routes
from dphmm.serve.requests import EXCEPTION_HANDLERS, read_object
from dphmm.space.grid import Box
from dphmm.validation import Integers, SeedOrGenerator, check_arguments

try:
    import uvicorn
except ImportError:
    raise MissingDependencyError("uvicorn", "serve") from None

# Texts of `drawing.js` and its controls, which the page of the relay has too.
_DRAWING_KEYS = (
    *("no_zones", "zone_numbered", "zone_name", "show", "show_named", "remove", "remove_named"),
    *("by_corners", "corners_hint", "corner", "corner_undo", "corner_close"),
)
# Language → texts of the page by key.
EXPLORE_TEXTS: Mapping[str, Mapping[str, str]] = {
    language: {**texts, **{key: TEXTS[language][key] for key in _DRAWING_KEYS}}
    for language, texts in json.loads((STATIC / "explore.json").read_text(encoding="utf-8")).items()
}

_HOST = "127.0.0.1"
_CLOSED = "Open the address that 'dphmm explore' printed: it contains the token of this page.\n"
_MAP_MARGIN = 0.1
_START_TIMEOUT_S = 30.0
_NUM_PANELS = 2
_MAX_PANELS = 64  # panels of all open pages of which the latest request is remembered


class _Superseded(Exception):
    """A newer request of the same panel makes this one unnecessary."""


class _Paused(Exception):
    """Another request waits, and is answered between two timesteps of this one."""


class _Guard:
    """An application that answers only requests with the cookie of the page.

    The address with the token sets the cookie.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        # Browsers send a cookie to every port of a host: each page has its own name.
        cookie = f"dphmm-explore-{scope['server'][1]}"
        response: Response
        if self._is_token(request.query_params.get("token", "")) and request.url.path == "/":
            response = RedirectResponse("/", 303)  # the browser keeps the fragment and drops the token
            # Lax: a link to the page from another program opens it. Answers stay unreadable to other sites.
            response.set_cookie(cookie, self._token, httponly=True, samesite="lax")
        elif self._is_token(request.cookies.get(cookie, "")):
            await self._app(scope, receive, send)
            return
        else:
            response = PlainTextResponse(_CLOSED, 401)
        await response(scope, receive, send)

    def _is_token(self, text: str) -> bool:
        return compare_digest(text.encode(), self._token.encode())


class _ExplorePage:
    """The endpoints of the page. One computation runs at a time."""

    def __init__(self, explorer: Explorer, basemap: Basemap) -> None:
        self._explorer = explorer
        self._basemap = basemap
        # Built when the page first asks for one.
        self._examples: dict[str, PaperExample] = {}
        self._lock = asyncio.Lock()
        self._num_waiting = 0
        # Page and panel → number of the latest request, most recent last.
        self._latest: dict[tuple[int, int], int] = {}
        self._progress = (0, 0)
        # Whether the present computation is that of noise tables, which is not interrupted within a timestep.
        self._has_table = False
        self._uses_lock = asyncio.Lock()
        self._uses_progress = (0, 0)

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        posts = (self.view, self.neighbours, self.edge, self.policy, self.uses)
        gets = (self.scene, self.progress)
        return [
            Route("/", self.answer_page, methods=["GET"]),
            *(Route(f"/explore/{endpoint.__name__}", endpoint, methods=["GET"]) for endpoint in gets),
            *(Route(f"/explore/{endpoint.__name__}", endpoint, methods=["POST"]) for endpoint in posts),
        ]

    async def answer_page(self, request: Request) -> Response:
        """Answer the page, in the language of the browser. Errors of settings are in English."""
        language = choose_language(request)
        content = fill_template("explore.html", language, EXPLORE_TEXTS[language])
        return HTMLResponse(content, headers={"vary": "accept-language, cookie"})

    async def scene(self, request: Request) -> Response:
        """Answer what does not depend on settings, and the first settings of an example."""
        name = request.query_params.get("example", "")
        explorer = await self._find_explorer(name)
        content = {
            **explorer.describe(),
            "basemap": encode_basemap(Basemap() if name else self._basemap),
        }
        if name:
            example = self._examples[name]
            content |= {"step": example.step, "settings": example.settings}
        return JSONResponse(content)

    async def _find_explorer(self, name: Any) -> Explorer:
        """Return the explorer of an example. The user's own if the name is empty."""
        if name == "":
            return self._explorer
        if not self._examples:
            self._examples = await asyncio.to_thread(build_examples)
        if not isinstance(name, str) or name not in self._examples:
            raise HTTPException(400, f"example must be one of {', '.join(self._examples)}")
        return self._examples[name].explorer

    async def progress(self, _: Request) -> Response:
        """Answer the progress of the present computation, and if it is of noise tables."""
        names = ("done", "total", "uses_done", "uses_total")
        progress = dict(zip(names, (*self._progress, *self._uses_progress), strict=True))
        return JSONResponse({**progress, "has_table": self._has_table})

    async def view(self, request: Request) -> Response:
        """Answer the view of settings at a timestep.

        The answer is 409 if the panel of this page has requested another view since, by the numbers of the requests.
        """
        body = await read_object(request)
        fields, step, seed = _parse_request(body)
        explorer = await self._find_explorer(body.get("example", ""))
        before = None
        if body.get("before") is not None:
            if not isinstance(body["before"], dict):
                raise HTTPException(400, "before must be an object")
            fields_before, _, seed_before = _parse_request(body["before"])
            before = fields_before, seed_before
        page, panel, number = (_parse_integer(body, name, 2**53) for name in ("page", "panel", "number"))
        key = page, panel % _NUM_PANELS
        # An aborted request can arrive after the one that replaces it.
        self._latest[key] = max(self._latest.pop(key, 0), number)
        if len(self._latest) > _MAX_PANELS:
            del self._latest[next(iter(self._latest))]
        view = None
        while view is None:
            reports = count()

            def report(done: int, total: int, reports: Iterator[int] = reports) -> None:
                if self._latest.get(key, number) != number:
                    raise _Superseded
                self._progress = (done, total)
                if next(reports) and self._num_waiting:  # each turn computes at least one timestep
                    raise _Paused

            try:
                async with self._take_turn():
                    self._has_table = fields.get("mechanism") == "optimal"
                    view = await asyncio.to_thread(explorer.build_view, fields, step, seed, report, before)
            except _Paused:
                if await request.is_disconnected():  # the page was closed or loaded again
                    raise HTTPException(409, "the page is closed") from None
            except _Superseded:
                raise HTTPException(409, "a newer request replaces this one") from None
        return JSONResponse(view, 400 if "errors" in view else 200)

    @asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        """Wait until no other request computes. A long one makes way between two timesteps."""
        self._num_waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._num_waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    async def neighbours(self, request: Request) -> Response:
        """Answer the neighbours of a state."""
        body = await read_object(request)
        fields, step, seed = _parse_request(body)
        state = _parse_integer(body, "state", 2**31)
        explorer = await self._find_explorer(body.get("example", ""))
        async with self._take_turn():
            return JSONResponse(await asyncio.to_thread(explorer.list_neighbours, fields, step, state, seed))

    async def edge(self, request: Request) -> Response:
        """Answer the field of edges after adding or removing the edge between two states."""
        body = await read_object(request)
        fields, _, _ = _parse_request(body)
        first, second = (_parse_integer(body, name, 2**31) for name in ("first", "second"))
        explorer = await self._find_explorer(body.get("example", ""))
        try:
            async with self._take_turn():
                edges = await asyncio.to_thread(explorer.toggle_edge, fields, first, second)
        except DphmmError as problem:
            raise HTTPException(400, str(problem)) from None
        return JSONResponse({"edges": edges})

    async def uses(self, request: Request) -> Response:
        """Answer the rows of the table of uses. Views do not wait for its many releases."""
        body = await read_object(request)
        settings, seed = body.get("settings"), _parse_integer(body, "seed", 2**31)
        explorer = await self._find_explorer(body.get("example", ""))
        if not isinstance(settings, list) or not 1 <= len(settings) <= _NUM_PANELS:
            raise HTTPException(400, f"settings must be a list of one to {_NUM_PANELS} objects")
        if not all(isinstance(fields, dict) for fields in settings):
            raise HTTPException(400, "settings must be a list of objects")

        def report(done: int, total: int) -> None:
            self._uses_progress = (done, total)

        try:
            async with self._uses_lock:
                self._uses_progress = (0, 0)
                rows = await asyncio.to_thread(explorer.list_uses, settings, seed=seed, progress=report)
        except DphmmError as problem:
            raise HTTPException(400, str(problem)) from None
        return JSONResponse(rows)

    async def policy(self, request: Request) -> Response:
        """Answer the file of the policy."""
        body = await read_object(request)
        fields, _, _ = _parse_request(body)
        explorer = await self._find_explorer(body.get("example", ""))
        with TemporaryDirectory(prefix="dphmm-explore-") as folder:
            path = Path(folder, "policy.json")
            try:
                async with self._take_turn():
                    await asyncio.to_thread(explorer.write_policy, fields, path)
            except DphmmError as problem:
                raise HTTPException(400, str(problem)) from None
            return Response(path.read_bytes(), media_type="application/json")


def _parse_request(body: Mapping[str, Any]) -> tuple[dict[str, Any], int, int]:
    fields = body.get("fields")
    if not isinstance(fields, dict):
        raise HTTPException(400, "fields must be an object")
    return fields, _parse_integer(body, "step", 2**31), _parse_integer(body, "seed", 2**31)


def _parse_integer(body: Mapping[str, Any], name: str, limit: int) -> int:
    value = body.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise HTTPException(400, f"{name} must be an integer from 0 to {limit - 1}")
    return value


def make_explore_app(explorer: Explorer, token: str, basemap: str | None = None) -> Starlette:
    """Return the application of the page.

    Parameters
    ----------
    explorer : Explorer
        The model and the user.
    token : str
        The token of the page's address.
    basemap : str, optional
        A background map of ``dphmm basemap``.

    Returns
    -------
    Starlette
        The application.

    Raises
    ------
    DphmmError
        If the background map cannot be used.
    """
    space = explorer.model.space
    ground = (
        build_city_basemap(build_city())
        if explorer.is_invented_city and basemap is None
        else build_basemap(basemap, compute_bounding_box(space, _MAP_MARGIN), MAX_EXTRACT_POINTS)
    )
    ground = add_credit(ground, get_states_credit(space))
    routes = [*_ExplorePage(explorer, ground).list_routes(), *make_static_routes()]
    middleware = [
        Middleware(SecurityHeaders, tiles=None),
        Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"], www_redirect=False),
        Middleware(_Guard, token=token),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers=EXCEPTION_HANDLERS)


class ExploreServer:
    """A page that is being served on this machine.

    Parameters
    ----------
    url : str
        The address, which contains the page's token.
    server : uvicorn.Server
        The server.
    thread : threading.Thread
        The thread that runs it.
    """

    def __init__(self, url: str, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.url = url
        self._server = server
        self._thread = thread

    def wait(self) -> None:
        """Serve until the process is interrupted or the server is closed."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(_START_TIMEOUT_S)

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'


@check_arguments
def explore(
    model: Model | None = None,
    *,
    town: str | None = None,
    bbox: Box | None = None,
    data: DataLike | None = None,
    user: str | None = None,
    num_steps: NumSteps = NUM_STEPS,
    rng: SeedOrGenerator | None = None,
    basemap: str | None = None,
    port: Annotated[int, Integers(0, 65535)] = 0,
    open_browser: bool = True,
) -> ExploreServer:
    """Serve a page on this machine that shows a policy at work, as ``dphmm explore``.

    Parameters
    ----------
    model : MarkovModel or str or Path, optional
        The model, or its file. Defaults to the invented city.
    town, bbox : optional
        A region instead of a model: the name of a town, or south, west, north and east in degrees.
    data : optional
        A recording, which is private and stays on this machine. Defaults to a user sampled from the model.
    user : str, optional
        The user of the recording, or a name for it if it has none. Defaults to the first one.
    num_steps : int
        The number of timesteps that are shown: the last ones of the recording.
    rng : int or numpy.random.Generator, optional
        Seed or generator of the sampled user. Defaults to 1.
    basemap : str, optional
        A background map of ``dphmm basemap``.
    port : int
        The port. Defaults to a free one.
    open_browser : bool
        Whether to open the page in the browser.

    Returns
    -------
    ExploreServer
        The page, which is served until it is closed or the process ends.

    Raises
    ------
    DphmmError
        If an argument is invalid, or the port is in use.
    """
    seed = None if rng is None else derive_seed(rng)
    explorer = Explorer.open(model, town=town, bbox=bbox, data=data, user=user, num_steps=num_steps, seed=seed)
    token = token_urlsafe(24)
    app = make_explore_app(explorer, token, basemap)
    listening = bind_local_port(port)  # a browser that is faster than the server waits
    url = f"http://{_HOST}:{listening.getsockname()[1]}/?token={token}"
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, server_header=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    if open_browser:
        webbrowser.open(url)
    return ExploreServer(url, server, thread)
