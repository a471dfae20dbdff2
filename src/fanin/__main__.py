"""``python -m fanin`` is the ``fanin`` command."""

import sys

from fanin.cli import main

if __name__ == "__main__":
    sys.exit(main())
