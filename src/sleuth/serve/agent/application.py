"""The agent over HTTP: questions as OpenAI's clients send them, a page for people, figures for operators."""

from collections.abc import Collection

from fastapi import FastAPI, Response

from sleuth import __version__
from sleuth.agent.episode import Agent
from sleuth.http.middleware import BearerAuth, MetricsMiddleware, RequestCheck
from sleuth.http.responses import add_problem_handlers
from sleuth.serve.agent import playground, problems
from sleuth.serve.agent.admission import Admission
from sleuth.serve.agent.desk import Desk
from sleuth.serve.agent.terms import Facts, Terms

CHAT, MODELS, HEALTH, METRICS = "/v1/chat/completions", "/v1/models", "/health", "/metrics"


def application(
    agent: Agent, facts: Facts, terms: Terms, *, token: str | None = None, names: Collection[str] = ()
) -> FastAPI:
    """The server of an agent; `names` as in the retrieval server: with a token it may be called by any."""
    desk = Desk(agent, facts, terms, Admission(terms.places, terms.wait))
    app = FastAPI(title="Sleuth agent", version=__version__, openapi_url=None, lifespan=desk.lifespan)
    app.add_api_route(CHAT, desk.chat, methods=["POST"], response_class=Response)
    app.add_api_route(MODELS, desk.models, methods=["GET"], response_class=Response)
    app.add_api_route(f"{MODELS}/{{name:path}}", desk.model, methods=["GET"], response_class=Response)
    app.add_api_route(HEALTH, desk.health, methods=["GET"], response_class=Response)
    app.add_api_route(METRICS, desk.figures, methods=["GET"], response_class=Response)
    for path in sorted(playground.PATHS):
        app.add_api_route(path, playground.answer, methods=["GET"], response_class=Response)
    add_problem_handlers(app, problems.problem, hint="; questions go to /v1/chat/completions")
    if token:
        app.add_middleware(BearerAuth, token=token, public_paths=playground.PATHS | {HEALTH}, respond=problems.problem)
    app.add_middleware(RequestCheck, names=None if token else names, respond=problems.problem)
    app.add_middleware(MetricsMiddleware, metrics=desk.metrics, paths=frozenset({CHAT, MODELS, HEALTH, METRICS, "/"}))
    return app
