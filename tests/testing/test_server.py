"""The private server of a torture: started from this machine's programs, crashed, and gone afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fanin.domain.errors import BadOption
from fanin.stores import open_store
from fanin.testing.torture import server
from fanin.testing.torture.ground import SchemaGround
from tests.protocol.helpers import claim, make


def has_programs() -> bool:
    return bool(list(Path("/usr/lib/postgresql").glob("[0-9]*/bin/postgres")) or shutil.which("postgres"))


def test_a_private_server_keeps_what_was_acknowledged_when_it_crashes() -> None:
    if not has_programs():
        with pytest.raises(BadOption, match="no PostgreSQL programs here"), server.private_server():
            pass
        return
    with server.private_server() as private:
        ground = SchemaGround(private.url)
        ground.create()
        store = open_store(ground.url)
        make(store, 3)
        private.crash()
        assert len(claim(store)) == 3
        store.close()
        folder = private.folder
    assert not os.path.exists(folder)


def test_without_programs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(server, "PACKAGED", str(tmp_path))
    with pytest.raises(BadOption, match="install the package postgresql, or use --url"):
        server.find_programs()
