//! Linker flags of the shared object.

fn main() {
    // The host may unload the library while a thread of it is still ending.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
