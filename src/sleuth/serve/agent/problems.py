"""Answers to requests that are not served, in OpenAI's form: a message, its type, the field and a code."""

from typing import Any

from starlette.responses import Response

from sleuth.http.responses import JSON, HttpProblem, encode_json

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class Denied(HttpProblem):
    """A request that is not served: `param` names the field at fault, `code` the fault, for programs."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, sentence, headers)
        self.param = param
        self.code = code


def told(error: HttpProblem) -> dict[str, Any]:
    """The body of a refusal."""
    param, code = (error.param, error.code) if isinstance(error, Denied) else (None, None)
    usual = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(error),
            "type": TYPES.get(error.status, usual),
            "param": param,
            "code": code or CODES.get(error.status),
        }
    }


def problem(error: HttpProblem) -> Response:
    """The response to a refused request."""
    return Response(encode_json(told(error)), error.status, error.headers, media_type=JSON)
