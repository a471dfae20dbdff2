"""Count the words of a folder of texts by map, group and reduce, and compare with a plain count in one loop.

    python examples/wordcount/demo.py [FOLDER] [--corpus DIR] [--files N] [--batch N] [--url URL]

Exit status 0 if both counts are the same, 1 if not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SUFFIXES = ("", ".txt", ".md", ".rst", ".html", ".py")
FEWEST = 100
BYTES_MAX = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("wordcount-demo"))
    parser.add_argument("--corpus", type=Path, help="a folder of texts (default: this machine's documentation)")
    parser.add_argument("--files", type=int, default=2_000, help="at most so many")
    parser.add_argument("--batch", type=int, default=25, help="files of one part")
    parser.add_argument("--url")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FANIN_URL"] = options.url or f"sqlite:///{folder / 'wordcount.db'}"
    if options.url:
        os.environ.setdefault("FANIN_OUTPUTS", str(folder / "outputs"))
    corpus = (options.corpus or some_corpus()).resolve()
    if min(options.files, options.batch) < 1:
        parser.error("--files and --batch: give numbers from 1")
    paths = list(islice(texts(corpus), options.files))
    if not paths:
        parser.error(f"there are no texts ({', '.join(SUFFIXES[1:])}) in {corpus}")
    return compare(corpus, [str(path) for path in paths], options.batch)


def some_corpus() -> Path:
    """The documentation on this machine, or else the sources of Python's own library."""
    for data in os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":"):
        if len(list(islice(texts(Path(data) / "doc"), FEWEST))) == FEWEST:
            return Path(data) / "doc"
    return Path(sysconfig.get_path("stdlib"))


def texts(corpus: Path) -> Iterator[Path]:
    """The files that are texts by their names, and can be read."""
    for folder, folders, names in os.walk(corpus):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink() and is_readable(path):
                yield path


def is_readable(path: Path) -> bool:
    """Whether this user may read it, and it is not so large that it is hardly prose."""
    return os.access(path, os.R_OK) and path.stat().st_size <= BYTES_MAX


def compare(corpus: Path, paths: list[str], batch: int) -> int:
    from examples.wordcount.tasks import plan, words

    batches = [paths[first : first + batch] for first in range(0, len(paths), batch)]
    began = time.monotonic()
    run = plan(batches, key_of(paths, batch)).start(run=True)
    top = run.result("most")
    counted = dict(pair for sums in run.job("add_up").results() for pair in sums.items())
    took = time.monotonic() - began
    print(f"{len(paths)} files of {corpus} in {len(batches)} parts, {took:.1f} s")
    print(f"{sum(counted.values())} words, {len(counted)} different ones; most often:")
    for word, times in top:
        print(f"  {times} {word}")
    plain = Counter(word for path in paths for word in words(path))
    same = counted == plain
    print("same counts as in one loop" if same else "NOT the same counts as in one loop")
    return 0 if same else 1


def key_of(paths: list[str], batch: int) -> str:
    """The same files, unchanged, are the same flow: started again, it goes on where it was."""
    digest = hashlib.sha256(str(batch).encode())
    for path in paths:
        found = os.stat(path)
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return f"wordcount-{digest.hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(main())
