"""The parts of GitHub's and GitLab's APIs that write comments, over TLS; a program that runs on a lab node.

    python3 _forges_api.py CERTIFICATE_WITH_KEY FOLDER

Keeps the comments in FOLDER/comments.json, and serves FOLDER/files. Only the standard library is used.
"""

from __future__ import annotations

import json
import ssl
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

GITHUB, GITLAB, FILES = "api.github.com", "gitlab.example", "files.example"
HOSTS = (GITHUB, GITLAB, FILES)
TOKEN = "token-of-the-job"  # noqa: S105 - of a played forge
USERS = {1: "github-actions[bot]", 2: "eve"}
MARK = "<!-- gpuprov plan -->"
PAGE = 30
"""GitHub's default size of a page."""
FIRST = [{"id": number, "user": 2, "body": f"{MARK}\nby somebody else"} for number in range(1, 131)]
"""Comments that exist already, on more than one page; they look like the Action's."""


class Forge(BaseHTTPRequestHandler):
    """Handler of requests to all hosts."""

    def __init__(self, folder: Path, *words: Any) -> None:
        self.folder = folder
        super().__init__(*words)

    @property
    def comments(self) -> list[dict[str, Any]]:
        """Return the comments, the oldest first."""
        path = self.folder / "comments.json"
        found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else FIRST
        return found

    def respond(self) -> None:
        """Answer a request of any method."""
        host, url = self.headers["Host"], urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if host == FILES:
            return self.answer(200, (self.folder / "files" / url.path.split("/")[-1]).read_bytes())
        github = host == GITHUB
        given = self.headers.get("Authorization", "") if github else self.headers.get("PRIVATE-TOKEN", "")
        if given.removeprefix("token ").removeprefix("Bearer ") != TOKEN:
            return self.answer(401, b'{"message": "Bad credentials"}')
        where = "/repos/o/fleet/issues" if github else "/api/v4/projects/1/merge_requests/5"
        if url.path == "/api/v4/user" and not github:
            return self.send(200, {"id": 1})
        if url.path not in (f"{where}/5/comments", f"{where}/notes"):
            if not url.path.startswith((f"{where}/comments/", f"{where}/notes/")):
                return self.answer(404, b'{"message": "Not Found"}')
            return self.write(int(url.path.split("/")[-1]), self.body(sent))
        return self.page(url.query) if self.command == "GET" else self.write(None, self.body(sent))

    do_GET = do_POST = do_PATCH = do_PUT = respond  # noqa: N815

    def body(self, sent: bytes) -> str:
        """Return the text of a comment that was sent: JSON to GitHub, a form to GitLab."""
        json_sent = self.headers["Host"] == GITHUB
        return str(json.loads(sent)["body"] if json_sent else parse_qs(sent.decode())["body"][0])

    def page(self, query: str) -> None:
        """Send a page of comments, and which is the next; the first are of another user."""
        asked = parse_qs(query)
        number, size = (
            int(asked.get(key, [str(least)])[0]) for key, least in (("page", 1), ("per_page", PAGE))
        )
        found, end = self.comments, number * size
        path = f"https://{self.headers['Host']}{self.path.split('?')[0]}?per_page={size}&page={number + 1}"
        more = end < len(found)
        headers = {"X-Next-Page": f"{number + 1 if more else ''}"}
        if more:
            headers["Link"] = f'<{path}>; rel="next"'
        self.send(200, [self.shown(each) for each in found[end - size : end]], headers)

    def write(self, number: int | None, text: str) -> None:
        """Add a comment, or change the one with this number."""
        found = self.comments
        if number is None:
            found.append({"id": len(found) + 1, "user": 1, "body": text})
        else:
            found[number - 1]["body"] = text
        (self.folder / "comments.json").write_text(json.dumps(found))
        self.send(201 if number is None else 200, self.shown(found[(number or 0) - 1]))

    def shown(self, comment: dict[str, Any]) -> dict[str, Any]:
        """Return a comment as both APIs show it."""
        user = {"id": comment["user"], "login": USERS[comment["user"]]}
        return {**comment, "user": user, "author": user}

    def send(self, code: int, document: Any, headers: dict[str, str] | None = None) -> None:
        """Send a document."""
        self.answer(
            code, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        """Send bytes."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve on port 443 until the process is ended."""
    certificate, folder = sys.argv[1:]
    server = ThreadingHTTPServer(("127.0.0.1", 443), partial(Forge, Path(folder)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
