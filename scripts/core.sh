#!/usr/bin/env bash
# Links the server core, which cargo has built, as images get it: target/core/libtransship_core.so, without debug information, for glibc
# 2.28. The objects are those of target/release; only the linker is another.
source "$(dirname "$0")/environment.sh"
source "$ROOT/scripts/older_hosts.sh"
objects=$BUILD/libtransship_core.a library=$ROOT/target/core/libtransship_core.so

for source in "$objects" scripts/{core,older_hosts,python}.sh; do [ "$library" -nt "$source" ] || changed=yes; done
[ -n "${changed:-}" ] || exit 0
"$ROOT/scripts/packages.sh" python3-venv binutils
"$ROOT/scripts/python.sh" venv-zig
say "Linking the server core for glibc $glibc"
mkdir -p "$ROOT/target/core"
work=$(mktemp -d "$ROOT/target/core/XXXXXX")
trap 'rm -rf "$work"' EXIT
# As rustc links a shared object: what the header does not name stays inside, and what nobody calls is left out.
echo '{ global: transship_*; local: *; };' > "$work/exports"
"$ROOT/target/venv-zig/bin/python" -m ziglang cc -target "$(uname -m)-linux-gnu.$glibc" -shared -o "$work/linked.so" \
  -Wl,--version-script="$work/exports" -Wl,--gc-sections -Wl,--eh-frame-hdr -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack \
  -Wl,--whole-archive "$objects" -Wl,--no-whole-archive -lunwind -lpthread -ldl -lm
strip --strip-unneeded -o "$work/libtransship_core.so" "$work/linked.so"
check_needs "$work/libtransship_core.so"
# The header is what programs are compiled against.
diff <(nm --dynamic --defined-only "$work/libtransship_core.so" | sed 's/.* //' | sort) \
  <(grep -oE '\btransship_[a-z0-9_]+\(' container_templates/core/include/transship_core.h | tr -d '(' | sort -u) >&2 || {
  echo "It exports something else than the header declares." >&2
  exit 1
}
# An image that is being built keeps the file that it opened.
mv "$work/libtransship_core.so" "$library"
