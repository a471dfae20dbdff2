"""Make sample photos: `python photos.py DIRECTORY [COUNT]` writes COUNT pictures of hills (60), each its own."""

from __future__ import annotations

import colorsys
import math
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = (1200, 900)


def colour(hue: float, saturation: float, value: float) -> tuple[int, ...]:
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue % 1, saturation, value))


def hills(seed: int) -> Image.Image:
    chance = random.Random(seed)
    width, height = SIZE
    hue = chance.random()
    ramp = Image.linear_gradient("L").resize(SIZE)
    sky = Image.composite(
        Image.new("RGB", SIZE, colour(hue + 0.08, 0.35, 0.98)), Image.new("RGB", SIZE, colour(hue, 0.6, 0.75)), ramp
    )
    draw = ImageDraw.Draw(sky)
    x, y, radius = chance.randrange(100, width - 100), chance.randrange(80, height // 3), chance.randrange(40, 90)
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour(hue + 0.12, 0.15, 1))
    for layer in range(1, 6):
        base, swing, shift = height * (0.35 + 0.11 * layer), height * 0.09, chance.random() * 9
        ridge = [
            (x, base + swing * (math.sin(x / 170 + shift) + 0.4 * math.sin(x / 61 + 3 * shift)))
            for x in range(0, width + 10, 10)
        ]
        draw.polygon([*ridge, (width, height), (0, height)], fill=colour(hue + 0.5, 0.45, 0.8 - 0.12 * layer))
    return sky


def main() -> None:
    directory, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        hills(number).save(directory / f"hills-{number:03}.png", compress_level=1)


if __name__ == "__main__":
    main()
