//! What the files of a store lie in, and what follows from that.

/// Memory or a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A file system in memory, whose files end with the host.
    Memory,
    /// A file system on disk. Bytes that were written may get lost on their way to the disk until they are synchronized, and reading them
    /// may fail later.
    Disk,
}

impl Medium {
    /// An eighth of the file system stays free for others, or so many bytes: in memory for the shared memory of parallel queries, and on disk
    /// for what a database writes until its next checkpoint.
    pub(crate) fn most_left_bytes(self) -> u64 {
        match self {
            Medium::Memory => 256 << 20,
            Medium::Disk => 2 << 30,
        }
    }

    /// What errors call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Medium::Memory => "the memory for shared tables",
            Medium::Disk => "the disk space for shared tables",
        }
    }

    /// What helps if the file system is full, and no setting does.
    pub(crate) fn full_hint(self) -> &'static str {
        match self {
            Medium::Memory => {
                "Free memory in the file system of the shared tables, most often /dev/shm, or make it larger."
            }
            Medium::Disk => "Free space in the file system of the server's data directory.",
        }
    }
}
