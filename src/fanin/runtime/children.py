"""Child processes of ``mode="process"`` read the program's main module again, and must not do again what it does."""

from __future__ import annotations

import sys

from fanin.domain.errors import NotAllowedNow


def refuse_while_starting(what: str) -> None:
    """Raise `NotAllowedNow` in a child process that is still importing the program's main module.

    A script without ``if __name__ == "__main__":`` would else submit its jobs once more in every child.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        raise NotAllowedNow(
            f'{what}: this is a process for handlers of mode="process", which is importing the main module; '
            'put what the script does under  if __name__ == "__main__":'
        )
