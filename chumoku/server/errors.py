"""What is said to a client whose request cannot be answered.

{"error": {"message": a sentence, "type": …, "param": the field or null, "code": …}}        as OpenAI's clients expect
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from chumoku.errors import BusyError, ChumokuError, LengthError, UsageError

# From an absolute path's beginning, in Unix or Windows, to its last part; those of this server's answers are none.
PLACE = re.compile(r"""(?<![\w.~/\\])(?:[A-Za-z]:)?[/\\](?!v1/|lab/)(?:[^\s/\\'"]+[/\\])+([^\s/\\'"]*)""")
log = logging.getLogger("chumoku.server")
TYPES = {401: "authentication_error", 403: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """An answer that is an error; whoever notices raises it, and the app sends it."""

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


def placeless(error: Exception) -> str:
    """What an error says, with files by their names alone: where they lie is nobody's business outside."""
    return PLACE.sub(r"\1", str(error))


def busy(message: str, seconds: int = 1) -> Refusal:
    return Refusal(429, message, headers={"Retry-After": str(max(1, seconds))})


def from_error(error: Exception, *, param: str | None = None, by: str = "a request") -> Refusal:
    """Our own errors as answers: what was asked wrongly is 400; what failed is 500, and is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BusyError):
        return busy(placeless(error))
    if isinstance(error, LengthError):
        return Refusal(400, placeless(error), param=param, code="context_length_exceeded")
    if isinstance(error, UsageError):
        return Refusal(400, placeless(error), param=param)
    log.error("%s failed", by, exc_info=error)
    if isinstance(error, ChumokuError):
        return Refusal(500, placeless(error), code="engine_failure")
    # What others raise may name files and addresses, which are nobody's business outside.
    return Refusal(500, "The model failed while it worked on this. Ask again.", code="engine_failure")
