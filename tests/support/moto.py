"""A server that speaks S3, started once in a process, with an empty bucket."""

from __future__ import annotations

import atexit
import urllib.request
from functools import cache

BUCKET = "fanin-test"


@cache
def s3_server() -> dict[str, str]:
    """The environment with which the clouds' tools reach it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    atexit.register(server.stop)
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
