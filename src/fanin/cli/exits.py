"""The exit codes of every command, in one place. ``docs/cli.md`` lists them."""

from __future__ import annotations

OK = 0
FAILED = 1
"""The job failed, more parts failed than tolerated, the ``--then`` command failed, ``check`` found
something, or an output is not what its part wrote or could not be reached."""
USAGE = 2
"""The command line is wrong, or the call was refused. Nothing was changed."""
UNAVAILABLE = 3
"""The database did not answer, after all retries. The same command can be said again."""
INTERRUPTED = 130
"""Ended by Ctrl-C or SIGTERM."""
