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
