"""Error responses, in the format of the OpenAI API.

{"error": {"message": a sentence, "type": …, "param": the field or null, "code": …}}
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from chumoku.errors import BusyError, ChumokuError, LengthError, UsageError

# The directories of an absolute Unix or Windows path; URL paths of this server do not match.
ABSOLUTE_PATH = re.compile(r"""(?<![\w.~/\\])(?:[A-Za-z]:)?[/\\](?!v1/|lab/)(?:[^\s/\\'"]+[/\\])+([^\s/\\'"]*)""")
log = logging.getLogger("chumoku.server")
TYPES = {401: "authentication_error", 403: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """An error response: any handler may raise it, and the app sends it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def remove_paths(error: Exception) -> str:
    """The error's message with file names instead of absolute paths, which clients must not see."""
    return ABSOLUTE_PATH.sub(r"\1", str(error))


def busy_error(message: str, seconds: int = 1) -> RequestError:
    """Status 429 with a Retry-After header."""
    return RequestError(429, message, headers={"Retry-After": str(max(1, seconds))})


def to_request_error(error: Exception, *, param: str | None = None, task: str = "a request") -> RequestError:
    """Convert an exception: a UsageError becomes 400; an unexpected error is logged and becomes 500."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, BusyError):
        return busy_error(remove_paths(error))
    if isinstance(error, LengthError):
        return RequestError(400, remove_paths(error), param=param, code="context_length_exceeded")
    if isinstance(error, UsageError):
        return RequestError(400, remove_paths(error), param=param)
    log.error("%s failed", task, exc_info=error)
    if isinstance(error, ChumokuError):
        return RequestError(500, remove_paths(error), code="engine_failure")
    # Messages of other libraries may contain paths and addresses, so they are not sent.
    return RequestError(500, "The model failed while processing this request. Try again.", code="engine_failure")
