#!/usr/bin/env bash
# Fetches the source of the PostgreSQL that PG_CONFIG names, from Debian's source package of the nearest version that Debian still
# has, builds the libraries of its test suites, and prints where it lies.  core_source.sh MAJOR SUITE fetches only: that version,
# from that Debian suite.
#
# A mirror may lack what its index names. Then comes the release below, whose hash is that of Debian's signed description: the tests
# differ between the releases of a major version by what was mended in it.
source "$(dirname "$0")/../scripts/environment.sh"
declare -A spare=([17]="17.11 dd27f2b3c59e73ed14aa3324901242bf69a032a6347805f274e6260322d42979")
"$ROOT/scripts/packages.sh" dpkg-dev bzip2 xz-utils gcc >&2

major=${1:-$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')}
place=$PRIVATE/core
mkdir -p "$place/apt/parts" "$place/apt/lists/partial"
if ! compgen -G "$place/postgresql-$major.*/src/test/regress/regress.c" > /dev/null; then
  say "Fetching the source of PostgreSQL $major"
  rm -rf "$place/apt/lists" && mkdir -p "$place/apt/lists/partial"
  sed -e 's/^Types: deb$/Types: deb-src/' ${2:+-e "s/^Suites:.*/Suites: $2/" -e '/^$/,$d'} /etc/apt/sources.list.d/debian.sources > "$place/apt/parts/src.sources"
  options=(-o "Dir::Etc::SourceList=$place/apt/none" -o "Dir::Etc::SourceParts=$place/apt/parts" -o "Dir::State::lists=$place/apt/lists" \
    -o Acquire::Check-Valid-Until=false)
  touch "$place/apt/none"
  (
    cd "$place"
    apt-get "${options[@]}" --quiet=2 update
    for version in $(apt-cache "${options[@]}" showsrc "postgresql-$major" | sed -n 's/^Version: //p' | sort --version-sort --reverse); do
      apt-get "${options[@]}" --quiet=2 source --download-only "postgresql-$major=$version" && break
    done
    if ! compgen -G "postgresql-${major}_*.orig.tar.bz2" > /dev/null; then
      read -r release hash <<< "${spare[$major]:?No source of PostgreSQL $major is at hand}"
      mirror=$(sed -n 's/^URIs: *//p' apt/parts/src.sources | head -n 1)
      python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' \
        "$mirror/pool/main/p/postgresql-$major/postgresql-${major}_$release.orig.tar.bz2" fetched \
        && echo "$hash  fetched" | sha256sum --check && mv fetched "postgresql-${major}_$release.orig.tar.bz2"
    fi
    tar --extract --file "$(ls "postgresql-${major}"_*.orig.tar.bz2 | tail -n 1)"
  ) > "$ROOT/target/core_source.log" 2>&1 || { tail -n 20 "$ROOT/target/core_source.log" >&2; exit 1; }
fi
[ $# = 0 ] || exit 0
cd "$place/postgresql-$major".*/
includes=$("$PG_CONFIG" --includedir-server)
if [ ! -e src/test/regress/regress.so ]; then
  say "Building the suite's library"
  gcc -shared -fPIC -O1 -I"$includes" -o src/test/regress/regress.so src/test/regress/regress.c >&2
fi
chown -R "$SERVER_USER" .
echo "$PWD"
