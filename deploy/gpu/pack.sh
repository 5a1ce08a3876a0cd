#!/usr/bin/env bash
# Packs what a GPU machine without a network lacks into two folders small enough to carry there.
#
#   bash deploy/gpu/pack.sh [FOLDER]     from the project's root; .gpu if not said; some minutes
#
# FOLDER/1 holds all packages but the largest and half of that one, FOLDER/2 the other half. There:
#   bash FOLDER/1/unpack.sh              everything but FlashAttention-4
#   bash FOLDER/2/unpack.sh              FlashAttention-4 too
#   . /tmp/chunkmesh-site/env.sh         in every shell that uses them
set -euo pipefail
here=$(dirname "$0")
out=${1:-.gpu}
part_bytes=44000000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() { # FOLDER LIST
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any \
    --dest "$work/wheels/$1" --requirement "$2"
  mkdir -p "$work/$1"
  for wheel in "$work/wheels/$1"/*.whl; do python3 -m zipfile -e "$wheel" "$work/$1"; done
}

# Wheels hold copies where libraries were links; stripping instead would break their alignment.
slim() {
  rm -rf "$1"/libucx/{bin,include,share} "$1"/{libucxx,librmm,ucxx}/include
  find "$1" \( -name '*.a' -o -name '*perftest*' \) -delete
  python3 "$here/link_copies.py" "$1"
}

rm -rf "$out/1" "$out/2"
mkdir -p "$out/1" "$out/2"
fetch site "$here/packages.txt"
fetch kernels "$here/kernel-packages.txt"
slim "$work/site"
slim "$work/kernels"
tar cf - -C "$work/site" . | xz -T0 -6 > "$out/1/site.tar.xz"
tar cf - -C "$work/kernels" . | xz -T0 -3 | split -b "$part_bytes" - "$work/kernels.part."
mv "$work/kernels.part.aa" "$out/1/"
mv "$work"/kernels.part.* "$out/2/"
cp "$here/unpack.sh" "$out/1/"
cp "$here/unpack.sh" "$out/2/"
du -sh "$out/1" "$out/2"
