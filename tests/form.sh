#!/usr/bin/env bash
# Checks the form of what is here, which needs nothing that runs: rustfmt, clippy for every version of PostgreSQL, rustdoc, what
# cargo-deny says of dependencies, whether modules import each other in a circle, and whether all parts have one version.
source "$(dirname "$0")/../scripts/environment.sh"

say "Checking that all parts have one version"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
others=$(
  grep -E '^version *=' ./*/Cargo.toml ./*/*/Cargo.toml ./*/*/*/Cargo.toml 2> /dev/null || true
  grep -H '^default_version' pg_ext/transship.control
  grep -H '^__version__' container_templates/python/transship_server/__init__.py
  grep -H -m 1 '^  <version>' container_templates/java/pom.xml
  grep -H -m 1 '^## ' CHANGELOG.md
  grep -rEoI '"transship-[a-z]+/[^"{]+"' container_templates docs
)
if wrong=$(grep -vwF "$version" <<< "$others"); then
  printf 'The workspace has version %s, and elsewhere it is another:\n%s\n' "$version" "$wrong" >&2
  exit 1
fi
[ "$(wc -l <<< "$others")" -ge 10 ] || { printf 'Too few places have a version:\n%s\n' "$others" >&2; exit 1; }
# PostgreSQL gets there from the first version, by one script after the other.
compgen -G "pg_ext/transship--*--$version.sql" > /dev/null || { echo "No script updates the extension to $version." >&2; exit 1; }

say "Checking that no modules of the protocol's crates, the server core and the manager import each other in a circle"
crates=(container_manager container_templates/core shared_tables)
for manifest in udf_protocol/*/Cargo.toml; do [ ! -e "$manifest" ] || crates+=("$(dirname "$manifest")"); done
tests/cycles.py "${crates[@]}"

say "Checking form: rustfmt and clippy"
cargo fmt --check
cargo clippy --quiet --workspace --all-targets -- --deny warnings
say "Checking the documentation of the crates"
# Of private items too, so links to them lead somewhere.
export RUSTDOCFLAGS="--deny warnings --allow rustdoc::private_intra_doc_links"
# The Rust template's crate has the name of the extension's library, so cargo does not document both at once.
cargo doc --quiet --workspace --exclude transship --no-deps --document-private-items
cargo doc --quiet --package transship --no-deps --document-private-items
say "Checking licences and sources of what the crates depend on"
"$ROOT/scripts/python.sh" venv-deny
PATH=$ROOT/target/venv-deny/bin:$PATH cargo deny --log-level error check bans licenses sources
"$ROOT/tests/pgrx_bindings.sh"
