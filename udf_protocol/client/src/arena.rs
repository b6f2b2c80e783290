//! Memory into which an engine writes the columns of a batch in place: a segment that the container maps, where there is
//! one (`docs/protocol.md` §7), or the process's own. It is used again once nobody looks at what it holds.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow_buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};
use nix::fcntl::posix_fallocate;
use udf_codec::columns::Region;

use crate::folder::Folder;
use crate::segment::{Segment, has_room};

/// Arenas that are kept for later batches, at most: more than a window's.
const MOST_KEPT: usize = 12;
/// How many times as large as what is asked for an arena may be.
const MOST_SPARE: usize = 4;

/// What one batch's columns lie in. Nobody writes to it any more.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    /// How often a server was told where it lies, and has not said that it looks at it no more.
    lent: AtomicUsize,
}

#[derive(Debug)]
enum Memory {
    Own(MutableBuffer),
    Shared { map: MmapMut, segment: Segment },
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        match self {
            Memory::Own(buffer) => buffer,
            Memory::Shared { map, .. } => map,
        }
    }
}

/// What keeps an arena for those who look at its bytes.
struct Keeper(Arc<Arena>);

impl AsRef<[u8]> for Keeper {
    fn as_ref(&self) -> &[u8] {
        self.0.memory.as_ref()
    }
}

impl Arena {
    /// Its bytes, where they lie. Who looks at a part of them keeps the arena from being written.
    pub fn buffer(self: &Arc<Arena>) -> Buffer {
        Bytes::from_owner(Keeper(self.clone())).into()
    }

    /// Where it lies.
    pub(crate) fn region(&self) -> Region {
        Region::of(self.memory.as_ref())
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.memory.as_ref().len()
    }

    /// The segment that it is.
    pub(crate) fn segment(&self) -> Option<&Segment> {
        match &self.memory {
            Memory::Shared { segment, .. } => Some(segment),
            Memory::Own(_) => None,
        }
    }

    /// Notes that a server will look at it. It is not written again before the server says that it does so no more, which one
    /// that fails, or whose answer nobody awaits, never does.
    pub(crate) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a server has answered, and looks at it no more.
    pub(crate) fn give_back(&self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An arena that is being written, by one thread.
#[derive(Debug)]
pub struct Writer(Memory);

impl Writer {
    /// Memory of the process's own, of at least so many bytes.
    pub fn own(bytes: usize) -> Writer {
        Writer(Memory::Own(MutableBuffer::from_len_zeroed(bytes)))
    }

    /// A segment in a replica's folder of segments.
    fn shared(directory: &Folder, bytes: usize) -> io::Result<Writer> {
        if !has_room(directory, bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let segment = Segment::create(directory, Segment::FOR_CALLS)?;
        // Memory that is promised now cannot be missing when it is written, which would end the process.
        posix_fallocate(&segment.file, 0, i64::try_from(bytes).map_err(io::Error::other)?)?;
        let map = map(&segment.file, bytes)?;
        Ok(Writer(Memory::Shared { map, segment }))
    }

    /// Its bytes, which begin where every value may.
    pub fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(buffer) => buffer,
            Memory::Shared { map, .. } => map,
        }
    }

    /// Ends the writing.
    pub fn finish(self) -> Arc<Arena> {
        Arc::new(Arena { memory: self.0, lent: AtomicUsize::new(0) })
    }
}

#[allow(unsafe_code)]
fn map(file: &File, bytes: usize) -> io::Result<MmapMut> {
    // SAFETY: nobody writes to the file but through this map, and nobody shortens it: it belongs to this user, and others may
    // only read it (docs/protocol.md §7.6).
    unsafe { MmapOptions::new().len(bytes).populate().map_mut(file) }
}

/// The arenas of a session.
#[derive(Debug, Default)]
pub struct Arenas(Mutex<Vec<Arc<Arena>>>);

impl Arenas {
    /// One of at least so many bytes: a segment in `directory`, if one is given and there is room for it.
    pub fn writer(&self, directory: Option<&Folder>, bytes: usize) -> Writer {
        let mut kept = self.0.lock().expect("no holder panics");
        let is_free = |arena: &Arc<Arena>| Arc::strong_count(arena) == 1;
        if directory.is_some_and(|directory| !has_room(directory, 0)) {
            kept.retain(|arena| !is_free(arena) || arena.segment().is_none());
        }
        let lies_there = |arena: &Arc<Arena>| arena.segment().map(Segment::directory) == directory;
        // A much larger one is left to the calls that need it.
        let fits = |arena: &Arc<Arena>| (bytes..=bytes.saturating_mul(MOST_SPARE)).contains(&arena.size());
        let mut found = None;
        while found.is_none()
            && let Some(place) = kept.iter().position(|arena| is_free(arena) && lies_there(arena) && fits(arena))
        {
            // Only now nobody else can say anything of it: another thread may lose it, still lent, while this one looks for it.
            found = Arc::into_inner(kept.swap_remove(place)).filter(|arena| arena.lent.load(Ordering::Relaxed) == 0);
        }
        if found.is_none() && kept.len() >= MOST_KEPT {
            kept.retain(|arena| !is_free(arena));
        }
        match (found, directory) {
            (Some(arena), _) => Writer(arena.memory),
            (None, Some(directory)) => Writer::shared(directory, bytes).unwrap_or_else(|_| Writer::own(bytes)),
            (None, None) => Writer::own(bytes),
        }
    }

    /// Keeps an arena for a later batch, once nobody looks at it.
    pub fn keep(&self, arena: &Arc<Arena>) {
        let mut kept = self.0.lock().expect("no holder panics");
        if kept.len() < MOST_KEPT {
            kept.push(arena.clone());
        }
    }

    /// Lets all go but for segments of so many bytes together, those that were kept last.
    pub fn shrink(&self, most: usize) {
        let mut left = most;
        let mut kept = self.0.lock().expect("no holder panics");
        for place in (0..kept.len()).rev() {
            match left.checked_sub(kept[place].size()).filter(|_| kept[place].segment().is_some()) {
                Some(rest) => left = rest,
                None => drop(kept.remove(place)),
            }
        }
    }

    /// Lets all go.
    pub fn clear(&self) {
        self.0.lock().expect("no holder panics").clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(arenas: &Arenas, directory: Option<&Folder>, value: u8) -> (Arc<Arena>, Buffer) {
        let mut writer = arenas.writer(directory, 100);
        assert_eq!(writer.bytes().as_ptr().align_offset(8), 0);
        writer.bytes()[..100].fill(value);
        let arena = writer.finish();
        arenas.keep(&arena);
        let buffer = arena.buffer().slice_with_length(40, 60);
        (arena, buffer)
    }

    #[test]
    fn an_arena_is_written_again_once_nobody_looks_at_it() {
        let folder = tempfile::tempdir().unwrap();
        let seen = || std::fs::read_dir(folder.path()).unwrap().count();
        let there = Folder::named(folder.path());
        for directory in [None, Some(&there)] {
            let arenas = Arenas::default();
            let (first, first_buffer) = write(&arenas, directory, 1);
            let (second, second_buffer) = write(&arenas, directory, 2);
            assert_eq!((first_buffer.as_slice(), second_buffer.as_slice()), (&[1; 60][..], &[2; 60][..]));
            assert_eq!(
                (first.region().offset_of(&first_buffer), first.region().offset_of(&second_buffer)),
                (Some(40), None)
            );
            // A buffer alone keeps what it looks at.
            let address = first_buffer.as_ptr();
            drop(first);
            let (_, third_buffer) = write(&arenas, directory, 3);
            assert_eq!(first_buffer.as_slice(), &[1; 60]);
            drop((first_buffer, third_buffer));
            // Two are free now. What a server looks at is not.
            second.lend();
            drop((second, second_buffer));
            let again: Vec<_> = (4..7).map(|value| write(&arenas, directory, value)).collect();
            assert_eq!(again.iter().filter(|(_, buffer)| buffer.as_ptr() == address).count(), 1);
            (4..7).zip(&again).for_each(|(value, (_, buffer))| assert_eq!(buffer.as_slice(), &[value; 60]));
            if directory.is_some() {
                assert_eq!(seen(), 3);
            }
            drop(again);
            arenas.clear();
            assert_eq!(seen(), 0);
        }
    }

    #[test]
    fn a_session_that_waits_keeps_few_segments() {
        let folder = tempfile::tempdir().unwrap();
        let there = Folder::named(folder.path());
        let seen = || std::fs::read_dir(folder.path()).unwrap().count();
        let arenas = Arenas::default();
        let kept: Vec<_> = (0..4).map(|value| write(&arenas, Some(&there), value)).collect();
        let address = kept[3].1.as_ptr();
        drop((write(&arenas, None, 5), kept));
        arenas.shrink(250);
        assert_eq!((seen(), arenas.0.lock().unwrap().len()), (2, 2));
        assert!(arenas.0.lock().unwrap().iter().any(|arena| arena.buffer()[40..].as_ptr() == address));
        // Another lease of the same replica has other segments.
        let of_another = Folder::leased(folder.path(), None, "0123".to_string());
        drop(write(&arenas, Some(&of_another), 1));
        assert_eq!(seen(), 3);
        arenas.shrink(99);
        assert_eq!(seen(), 0);
    }

    #[test]
    fn an_arena_that_another_thread_loses_while_it_is_lent_is_not_written_again() {
        let arenas = Arenas::default();
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Arc<Arena>>(2);
        let other = std::thread::spawn(move || receiver.into_iter().for_each(|arena| arena.lend()));
        for _ in 0..100_000 {
            let mut writer = arenas.writer(None, 64);
            // New memory is empty.
            assert_eq!(writer.bytes()[0], 0);
            writer.bytes()[0] = 1;
            let arena = writer.finish();
            arenas.keep(&arena);
            sender.send(arena).unwrap();
        }
        drop(sender);
        other.join().unwrap();
    }

    #[test]
    fn an_arena_is_written_again_once_it_was_given_back_as_often_as_it_was_lent() {
        let arenas = Arenas::default();
        for (lent, given_back, is_again) in [(1, 1, true), (2, 1, false), (2, 2, true), (1, 0, false)] {
            arenas.clear();
            let (arena, buffer) = write(&arenas, None, 7);
            (0..lent).for_each(|_| arena.lend());
            (0..given_back).for_each(|_| arena.give_back());
            drop((arena, buffer));
            assert_eq!(arenas.writer(None, 100).bytes()[0] == 7, is_again);
        }
    }

    #[test]
    fn arenas_of_several_sizes_are_kept_and_not_too_many() {
        let arenas = Arenas::default();
        let take = |bytes: usize| {
            let mut writer = arenas.writer(None, bytes);
            let address = writer.bytes().as_ptr();
            arenas.keep(&writer.finish());
            address
        };
        let (small, large) = (take(1000), take(100_000));
        // By turns, as two functions of a query ask for them.
        for _ in 0..3 {
            assert_eq!((take(900), take(90_000)), (small, large));
        }
        for i in 0..2 * MOST_KEPT {
            take(1 << i);
        }
        assert!(arenas.0.lock().unwrap().len() <= MOST_KEPT);
    }

    #[test]
    fn without_a_folder_for_segments_the_memory_is_the_process_own() {
        let arenas = Arenas::default();
        let (arena, buffer) = write(&arenas, Some(&Folder::named("/nowhere")), 9);
        assert!(arena.segment().is_none());
        assert_eq!(buffer.as_slice(), &[9; 60]);
    }
}
