//! The program of an image: the project's handler, served.

#[path = "../function/handler.rs"]
mod handler;

fn main() -> std::process::ExitCode {
    transship::main(handler::functions())
}
