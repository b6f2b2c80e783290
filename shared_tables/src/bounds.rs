//! How large a segment may be, and how it is cut.

/// Rows of every record batch of a segment but the last one.
pub const ROWS_PER_BATCH: usize = 65_536;
/// Most rows of a segment: 64 batches. They bound the memory and the time that the build of its index takes.
pub const MOST_ROWS: usize = 64 * ROWS_PER_BATCH;
/// Most bytes of a segment: 512 MiB.
pub const MOST_BYTES: u64 = 1 << 29;
/// Most columns of a segment, which are as many as PostgreSQL's tables have; and most fields, with those that lie in columns. They bound the
/// time in which dictionaries find their columns.
pub const MOST_TABLE_COLUMNS: usize = 1_600;
pub const MOST_FIELDS: usize = 16_384;
/// Where the schema has the positions of the key's columns.
pub const KEY_METADATA: &str = "transship:key";
