"""The page that asks for the API key: one form, which loads nothing else."""

from __future__ import annotations

from starlette.responses import Response

from chumoku.probe.csp import csp_hash

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, "Hiragino Sans", "Noto Sans JP", sans-serif }
body { margin: 20vh auto 0; max-width: 22rem; padding: 0 1rem; line-height: 1.6 }
h1 { font-size: 1.25rem; font-weight: 600 }
input, button { font: inherit; padding: .5rem .75rem; width: 100%; box-sizing: border-box; margin: .4rem 0 }
"""
SCRIPT = """
const form = document.querySelector("form"), message = document.querySelector("output");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = form.elements.key.value;
  try {
    const response = await fetch("/v1/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }),
    });
    if (response.ok) location.reload();
    else if (response.status === 429) message.textContent = "Too many tries. Wait a little. / しばらくお待ちください。";
    else if (response.status === 401) message.textContent = "This key is not correct. / API キーが違います。";
    else message.textContent = (await response.json()).error.message;
  } catch {
    message.textContent = "The server does not respond. / サーバーが応答しません。";
  }
});
"""
PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>chumoku</title><style>{STYLE}</style></head>
<body><h1>chumoku 注目</h1>
<form><label>The server's key / サーバーの API キー
<input name="key" type="password" autocomplete="off" autofocus required></label>
<button>Log in / ログイン</button></form><output role="alert"></output>
<script>{SCRIPT}</script></body></html>
"""

POLICY = (
    f"default-src 'none'; script-src '{csp_hash(SCRIPT)}'; style-src '{csp_hash(STYLE)}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def login_page() -> Response:
    headers = {"Content-Security-Policy": POLICY, "WWW-Authenticate": "Bearer"}
    return Response(PAGE.encode(), 401, headers, media_type="text/html; charset=utf-8")
