"""Make one thumbnail: `python thumb.py PICTURE WIDTH TARGET`. The program that `fanin map` runs for each photo."""

from __future__ import annotations

import sys

from PIL import Image


def main() -> None:
    picture, width, target = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with Image.open(picture) as image:
        image.thumbnail((width, image.height))
        image.convert("RGB").save(target)


if __name__ == "__main__":
    main()
