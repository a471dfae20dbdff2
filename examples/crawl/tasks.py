"""The crawl as a fanin app: a part is a page, and adds the pages that it links to.

Workers find this app as ``examples.crawl.tasks:app``; FANIN_URL is the database.
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections import Counter
from urllib.parse import urljoin, urlsplit

import fanin

app = fanin.App(os.environ.get("FANIN_URL", "sqlite:///crawl.db"))


@app.task(attempts=5, backoff=0.1, lease="10s")
def visit(url: str) -> list[str]:
    """Fetch a page, add those of the same site that it links to, and give them back.

    The key of a part is its URL, so a page that was seen is left out. The links come with this part's own commit: an
    attempt that dies here adds nothing, and the next one adds what it would have added.
    """
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    found = [urljoin(url, link) for link in re.findall(r'href="([^"]+)"', text)]
    links = [link for link in found if urlsplit(link).netloc == urlsplit(url).netloc]
    fanin.current().spawn(links)
    return links


@app.task
def rank(pages: fanin.Joined[list[str]]) -> list[tuple[str, int]]:
    """The ten pages that are linked to most often."""
    counts = Counter(link for links in pages for link in links)
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
