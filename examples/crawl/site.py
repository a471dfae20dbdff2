"""A site to crawl, made by arithmetic: every page links to a few others, many times over, and notes who has asked.

The links of page n follow from n, so that a test knows what there is. A page can be reached by many ways: that is what
makes a crawl visit pages twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINKS = 8


def links_of(page: int, pages: int) -> list[int]:
    """Two pages further down, which no other page leads to, and some that are anywhere."""
    down = [child for child in (2 * page + 1, 2 * page + 2) if child < pages]
    return down + [(page * 7919 + 104_729 * n) % pages for n in range(LINKS - len(down))]


class Site:
    """``pages`` pages on a port of this host. ``asked``: how often each was asked for."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.asked: Counter[int] = Counter()
        lock = threading.Lock()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = int(self.path.removeprefix("/page/"))
                with lock:
                    site.asked[page] += 1
                links = "".join(f'<a href="/page/{link}">{link}</a>\n' for link in links_of(page, site.pages))
                body = f"<title>Page {page}</title>\n{links}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: there are thousands."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Site]:
        thread = threading.Thread(target=self._server.serve_forever, name="site", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
