//! Bounds that both sides of the protocol know.

/// Largest message that a peer may send, in bytes: the largest value PostgreSQL can hold.
pub const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Longest error text that is taken from a server, in bytes.
pub const MAX_ERROR_BYTES: usize = 16 << 10;

/// Deepest nesting of arrays, ranges and composite types.
pub const MAX_DEPTH: usize = 16;

/// Longest text that a user writes in TOML, in bytes: a function's body, with its inline code, or a project's manifest. While
/// such a text is read it may take a hundred times as much memory.
pub const MAX_TOML_BYTES: usize = 1 << 20;
