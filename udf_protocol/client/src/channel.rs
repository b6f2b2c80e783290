//! Messages between a client and a process of the manager's, the store of results or a decoder of files: whole or not at all.
//!
//! A socket of type SEQPACKET keeps messages apart. A short one is in its datagram. A long one is in memory that its sender has
//! sealed, whose descriptor comes with the datagram: it does not change or shrink any more, and is read through the descriptor,
//! so that neither side maps the other's memory. Such a datagram is as long as the longest other, so that the bound on a socket's
//! unread bytes bounds the memory that waits there as well.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};

/// Longest message of either side.
pub const MOST_BYTES: usize = 16 << 20;
/// Longest message that is sent in a datagram.
const MOST_INLINE_BYTES: usize = 16 << 10;
/// First bytes of datagrams.
const INLINE: u8 = 0;
const SEALED: u8 = 1;
const WITH_FILE: u8 = 2;
/// What follows the length of sealed memory.
const PADDING: [u8; MOST_INLINE_BYTES - 8] = [0; MOST_INLINE_BYTES - 8];

/// All seals but that of future writes, which the seal of writes includes.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// A datagram's first byte, the others, and the descriptor that came with it.
type Datagram = (u8, Vec<u8>, Option<OwnedFd>);

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        Channel(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Connects to a socket beside the manager's, given the manager's and what the socket's name has behind it. Reading and writing do
    /// not wait.
    ///
    /// # Errors
    /// If nobody listens there, or another user than the manager's: where anybody may make a socket of that name, as in /tmp, messages
    /// could be anybody's. If too many clients wait to connect.
    pub fn connect_beside(manager: &Path, suffix: &str) -> io::Result<Channel> {
        let channel = Channel::connect(&path_beside(manager, suffix))?;
        if fs::symlink_metadata(manager)?.uid() == channel.peer()? {
            Ok(channel)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Connects to a socket, and does not wait: a server with no room for a connection is as good as none. Reading and writing do not
    /// wait either.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel(socket))
    }

    /// Sends a message of at most [`MOST_BYTES`].
    ///
    /// # Errors
    /// If it is longer, if the other side is gone, or, on a socket that does not wait, if it reads too slowly.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() <= MOST_INLINE_BYTES {
            return self.send_datagram(&[IoSlice::new(&[INLINE]), IoSlice::new(bytes)], None);
        }
        if bytes.len() > MOST_BYTES {
            return Err(malformed("message too long"));
        }
        let memory = memfd_create(c"transship-message", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut memory = File::from(memory);
        memory.write_all(bytes)?;
        io::Seek::rewind(&mut memory)?;
        fcntl_add_seals(&memory, SEALS)?;
        let length = (bytes.len() as u64).to_le_bytes();
        let parts = [IoSlice::new(&[SEALED]), IoSlice::new(&length), IoSlice::new(&PADDING)];
        self.send_datagram(&parts, Some(memory.as_fd()))
    }

    /// Sends a short message with an open file.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_with_file(&self, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
        if bytes.len() > MOST_INLINE_BYTES {
            return Err(malformed("message too long"));
        }
        self.send_datagram(&[IoSlice::new(&[WITH_FILE]), IoSlice::new(bytes)], Some(file))
    }

    /// Receives a message that came with an open file; none at the end of the connection.
    ///
    /// # Errors
    /// As [`Self::receive`], or if there is no file.
    pub fn receive_with_file(&self) -> io::Result<Option<(Vec<u8>, OwnedFd)>> {
        match self.receive_datagram()? {
            None => Ok(None),
            Some((WITH_FILE, bytes, Some(file))) => Ok(Some((bytes, file))),
            Some(_) => Err(malformed("not a message with a file")),
        }
    }

    /// Bounds what it has sent and the other side has not read: a few of the longest messages.
    ///
    /// # Errors
    /// If the socket does not take it.
    pub fn bound_unread(&self) -> io::Result<()> {
        Ok(set_socket_send_buffer_size(&self.0, 2 * MOST_INLINE_BYTES)?)
    }

    /// The user of the other side: of who connected, or of who began to listen.
    ///
    /// # Errors
    /// If the socket does not know.
    pub fn peer(&self) -> io::Result<u32> {
        Ok(socket_peercred(&self.0)?.uid.as_raw())
    }

    fn send_datagram(&self, parts: &[IoSlice<'_>], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptor
            .iter()
            .all(|descriptor| control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor))))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = rustix::net::sendmsg(&self.0, parts, &mut control, SendFlags::NOSIGNAL)?;
        if sent == parts.iter().map(|part| part.len()).sum::<usize>() {
            Ok(())
        } else {
            Err(malformed("message cut off"))
        }
    }

    /// Receives a message; none at the end of the connection.
    ///
    /// # Errors
    /// If what came is no message, or, on a socket that does not wait, if nothing came.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        match self.receive_datagram()? {
            None => Ok(None),
            Some((INLINE, bytes, None)) => Ok(Some(bytes)),
            Some((SEALED, bytes, Some(memory))) => {
                let length = bytes.first_chunk().ok_or_else(|| malformed("length cut off"))?;
                let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|length| *length <= MOST_BYTES);
                let length = length.ok_or_else(|| malformed("message too long"))?;
                read_sealed(memory, length).map(Some)
            }
            Some(_) => Err(malformed("not a message")),
        }
    }

    fn receive_datagram(&self) -> io::Result<Option<Datagram>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = vec![0; 1 + MOST_INLINE_BYTES];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)?;
        // Dropping the others closes them.
        let descriptor = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut found) => found.next(),
            _ => None,
        });
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(malformed("message cut off"));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        buffer.truncate(received.bytes);
        Ok(Some((buffer.remove(0), buffer, descriptor)))
    }
}

/// Whether a system call failed for want of descriptors: of this process, of the host, or of those that the kernel lets this user have
/// on their way to processes that do not take them.
pub fn lacks_descriptors(cause: &io::Error) -> bool {
    const LACKS: [i32; 3] = [nix::libc::EMFILE, nix::libc::ENFILE, nix::libc::ETOOMANYREFS];
    cause.raw_os_error().is_some_and(|code| LACKS.contains(&code))
}

/// The path of a socket beside the manager's.
pub fn path_beside(manager: &Path, suffix: &str) -> PathBuf {
    let mut path = manager.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Reads memory that its sender cannot change any more.
fn read_sealed(memory: OwnedFd, length: usize) -> io::Result<Vec<u8>> {
    // Only memory has seals: anything else, such as a pipe that never ends, is refused here.
    if !fcntl_get_seals(&memory)?.contains(SEALS) {
        return Err(malformed("message not sealed"));
    }
    let mut file = File::from(memory);
    // The descriptor's place is shared with its sender.
    io::Seek::rewind(&mut file)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn malformed(fact: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fact)
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (a.into(), b.into())
    }

    #[test]
    fn messages_of_any_length_arrive_whole() {
        let (a, b) = pair();
        for length in [0, 1, MOST_INLINE_BYTES, MOST_INLINE_BYTES + 1, 1 << 20] {
            let message: Vec<u8> = (0..length).map(|i| i as u8).collect();
            a.send(&message).unwrap();
            assert!(b.receive().unwrap() == Some(message), "{length}");
        }
        assert_eq!(b.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(a.send(&vec![0; MOST_BYTES + 1]).is_err());
        drop(a);
        assert_eq!(b.receive().unwrap(), None);
    }

    #[test]
    fn files_come_with_the_messages_that_say_so() {
        let (a, b) = pair();
        let (reader, _writer) = io::pipe().unwrap();
        a.send_with_file(b"x", reader.as_fd()).unwrap();
        assert!(b.receive_with_file().unwrap().is_some_and(|(bytes, _)| bytes == b"x"));
        a.send_with_file(b"x", reader.as_fd()).unwrap();
        assert!(b.receive().is_err());
        a.send(b"x").unwrap();
        assert!(b.receive_with_file().is_err());
        assert!(a.send_with_file(&[0; MOST_INLINE_BYTES + 1], reader.as_fd()).is_err());
        drop(a);
        assert!(b.receive_with_file().unwrap().is_none());
    }

    #[test]
    fn few_messages_wait_to_be_read() {
        let (a, _b) = pair();
        a.bound_unread().unwrap();
        let waiting = (0..1000).take_while(|_| a.send(&vec![1; MOST_INLINE_BYTES + 1]).is_ok()).count();
        assert!((1..8).contains(&waiting), "{waiting}");
        let (a, b) = pair();
        a.bound_unread().unwrap();
        a.send(&[2; MOST_INLINE_BYTES]).unwrap();
        assert_eq!(b.receive().unwrap(), Some(vec![2; MOST_INLINE_BYTES]));
    }

    #[test]
    fn memory_that_may_change_is_refused() {
        let (a, b) = pair();
        let unsealed = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        let half = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&half, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        for descriptor in [unsealed.as_fd(), half.as_fd(), pipe.as_fd()] {
            let parts = [IoSlice::new(&[SEALED]), IoSlice::new(&[0; 8])];
            a.send_datagram(&parts, Some(descriptor)).unwrap();
            assert!(b.receive().is_err());
        }
        // Shorter than it says, longer than may be, without a length, without a descriptor, or of another kind.
        let memory = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&memory, SEALS).unwrap();
        for (kind, length) in [(SEALED, &[1, 0, 0, 0, 0, 0, 0, 0][..]), (SEALED, &[255; 8]), (SEALED, &[]), (7, &[])] {
            a.send_datagram(&[IoSlice::new(&[kind]), IoSlice::new(length)], Some(memory.as_fd())).unwrap();
            assert!(b.receive().is_err());
        }
        a.send_datagram(&[IoSlice::new(&[SEALED]), IoSlice::new(&[0; 8])], None).unwrap();
        assert!(b.receive().is_err());
        a.send_datagram(&[IoSlice::new(&[0; 2 * MOST_INLINE_BYTES])], None).unwrap();
        assert!(b.receive().is_err());
        a.send(b"next").unwrap();
        assert_eq!(b.receive().unwrap().unwrap(), b"next");
    }
}
