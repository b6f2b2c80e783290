//! Sealed segments of shared tables: a database keeps their bytes, and every process of the host reads one copy in memory.
//!
//! A *shared table* is a list of *segments*. A [`segment`] is an Arrow IPC file that never changes. The database holds its bytes;
//! the [`store`] holds a copy of them in a directory in memory or on disk, named after their digest, with a hash [`index`] over the
//! [`keys`] of its rows beside it. Processes map both files for reading, and find rows in them without a copy.
//!
//! A segment's journey: a [`segment::SegmentWriter`] writes it; the database keeps the bytes and their [`segment::Digest`]. A
//! process that needs the segment asks [`store::Store::get`], and where nobody has loaded it yet, gives the bytes to a
//! [`store::Incoming`], which checks them, builds the index and publishes both. Processes that need it meanwhile wait.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow_array::{ArrayRef, Int64Array, RecordBatch};
//! use shared_tables::keys::Probe;
//! use shared_tables::segment::SegmentWriter;
//! use shared_tables::store::{Begun, Store};
//!
//! let keys: ArrayRef = Arc::new(Int64Array::from(vec![30, 10, 30]));
//! let batch = RecordBatch::try_from_iter([("id", keys)]).unwrap();
//! let mut writer = SegmentWriter::new(Vec::new(), &batch.schema(), &[0])?;
//! writer.write(&batch)?;
//! let finished = writer.finish()?;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let store = Store::open(&folder.path().join("tables"), 1 << 20)?;
//! let segment = match store.begin(&finished.digest, finished.bytes)? {
//!     Begun::Incoming(mut incoming) => {
//!         incoming.append(&finished.out)?;
//!         incoming.finish()?
//!     }
//!     // Wait, and ask `get` again.
//!     Begun::Loading => unreachable!("nobody else uses this store"),
//! };
//!
//! let mut probe = Probe::default();
//! probe.push(|bytes| bytes.extend(30_i64.to_le_bytes()));
//! assert_eq!(*segment.find(&probe), [0, 2]);
//! # Ok::<(), udf_types::error::Error>(())
//! ```
#![deny(unsafe_code)]

// Arrow files and indexes are little-endian, and are read in place.
const _: () = assert!(cfg!(target_endian = "little"), "shared tables need a little-endian machine");

mod bounds;
mod checks;
mod decode;
pub mod dictionary;
mod digest;
mod directory;
mod error;
mod file;
pub mod index;
pub mod keys;
mod medium;
pub mod segment;
pub mod store;
pub mod table;
mod writer;
