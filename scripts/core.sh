#!/usr/bin/env bash
# Links the server core, which cargo has built, as images get it: target/core/libtransship_core.so, without debug information, for glibc
# 2.28. The objects are those of target/release; only the linker is another.
source "$(dirname "$0")/environment.sh"
source "$ROOT/scripts/older_hosts.sh"
objects=$BUILD/libtransship_core.a library=$ROOT/target/core/libtransship_core.so

for source in "$objects" scripts/{core,older_hosts,python}.sh; do [ "$library" -nt "$source" ] || changed=yes; done
[ -n "${changed:-}" ] || exit 0
say "Linking the server core for glibc $glibc"
mkdir -p "$ROOT/target/core"
work=$(mktemp -d "$ROOT/target/core/XXXXXX")
trap 'rm -rf "$work"' EXIT
link_for_older_hosts "$objects" 'transship_*;' "$work/libtransship_core.so"
# The header is what programs are compiled against.
grep -oE '\btransship_[a-z0-9_]+\(' container_templates/core/include/transship_core.h | tr -d '(' | sort -u > "$work/declared"
exports_are "$work/libtransship_core.so" "$work/declared"
# An image that is being built keeps the file that it opened.
mv "$work/libtransship_core.so" "$library"
