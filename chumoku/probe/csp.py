"""Content-Security-Policy: the hash by which a page allows an inline script or style."""

from __future__ import annotations

import base64
import hashlib


def csp_hash(text: str) -> str:
    """The source expression of an inline script or style with this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
