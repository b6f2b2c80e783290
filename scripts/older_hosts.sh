# Sourced by the scripts that link for hosts and images with an older C library than this machine's, by zig's linker.
glibc=2.28

# check_needs FILE: fails unless FILE needs nothing but the C library, and none that is newer; sets `newest` and `needed`.
check_needs() {
  local file=$1 name
  newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  [ "$(printf '%s\n%s\n' "$newest" $glibc | sort -V | tail -n 1)" = $glibc ] || { echo "$file needs glibc $newest." >&2; exit 1; }
  needed=$(readelf --dynamic "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
  for name in $needed; do
    case $name in
      libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*.so.*) ;;
      *) echo "$file needs $name." >&2; exit 1 ;;
    esac
  done
}

# link_for_older_hosts ARCHIVE EXPORTED LINKED OPTION...: makes a stripped shared object LINKED of what rustc put into ARCHIVE. What EXPORTED
# does not name, a list of names as a linker's version script has it, stays inside, and what nobody calls is left out, as where rustc links.
link_for_older_hosts() {
  local archive=$1 exported=$2 linked=$3
  shift 3
  "$ROOT/scripts/packages.sh" python3-venv binutils
  "$ROOT/scripts/python.sh" venv-zig
  echo "{ global: $exported local: *; };" > "$linked.exported"
  "$ROOT/target/venv-zig/bin/python" -m ziglang cc -target "$(uname -m)-linux-gnu.$glibc" -shared -o "$linked.whole" "$@" \
    -Wl,--version-script="$linked.exported" -Wl,--gc-sections -Wl,--eh-frame-hdr -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lunwind -lpthread -ldl -lm
  strip --strip-unneeded -o "$linked" "$linked.whole"
  rm "$linked.whole" "$linked.exported"
  check_needs "$linked"
}

# exports_are FILE SORTED: fails unless FILE exports what SORTED, a file, lists.
exports_are() {
  diff <(nm --dynamic --defined-only "$1" | sed 's/.* //; s/@.*//' | sort) "$2" >&2 || { echo "$1 exports something else." >&2; exit 1; }
}
