#!/bin/sh
# Makes sample photos, then a thumbnail of each, then an album of all: sh examples/thumbnails/run.sh [DIRECTORY]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
mkdir -p "${1:-thumbnails-demo}"
cd "${1:-thumbnails-demo}"
[ -d photos ] || "$python" "$here/photos.py" photos 60

# ImageMagick if it is here, else the small program beside this script, with Pillow.
if convert -version 2>/dev/null | grep -q '^Version: ImageMagick'; then
  shrink='convert {} -resize 400x {out}.jpg'
else
  shrink="'$python' '$here/thumb.py' {} 400 {out}.jpg"
fi

"$python" -m fanin map --outdir thumbs --then "'$python' -m zipfile -c album.zip {outs}" -- "$shrink" ::: photos/*.png

echo "$(ls thumbs | wc -l) thumbnails in $(pwd)/thumbs, all of them in $(pwd)/album.zip"
