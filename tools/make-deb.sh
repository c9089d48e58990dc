#!/usr/bin/env bash
# make-deb.sh BUILD VERSION DIR - a Debian package of the program in BUILD, written to DIR.
set -euo pipefail

build=$1 version=$2 out=$3
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

STRIP=1 tools/install.sh "$build" /usr "$work/tree"
gzip -9n "$work"/tree/usr/share/man/man1/*.1
sed -i 's|^\(share/man/.*\.1\)$|\1.gz|' "$work/tree/usr/share/miles/installed-files"

# What the program itself links to; MPI is loaded only if it is there.
mkdir -p "$work/debian" "$work/tree/DEBIAN"
printf 'Source: miles-c\n\nPackage: miles-c\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O tree/usr/bin/miles 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$work/tree/DEBIAN/control" <<EOF
Package: miles-c
Version: $version
Architecture: $arch
Maintainer: The miles.c authors <miles.c@localhost>
Section: science
Priority: optional
Depends: $depends
Suggests: openmpi-bin, libopenmpi3, python3
Installed-Size: $(du -sk "$work/tree/usr" | cut -f1)
Description: reinforcement-learning post-training of language models
 One program with rollout engine, trainer, RL loop, checkpoints and servers.
 Rollout and training compute the same log-probabilities, bit for bit.
EOF
deb=$out/miles-c_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$work/tree" "$deb" >/dev/null
echo "$deb"
