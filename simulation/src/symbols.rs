//! The functions of the C library that this program answers in its place.
//!
//! Client, manager, core, tokio and the standard library ask the kernel through these, so that none of them is changed to be
//! simulated. The linker prefers the program's own functions to those of the C library. What a function does not answer on the
//! thread of the simulation, and everything on another thread, goes to the kernel as always.
#![allow(unsafe_code, reason = "C functions are what they are")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::time::Duration;

use libc::{epoll_event, iovec, mode_t, size_t, sockaddr_un, socklen_t, ssize_t, timespec, ucred};

use crate::kernel::{self, Direction};

/// Sets `errno`, and gives what C functions give then.
fn fail<T: From<i8>>(errno: c_int) -> T {
    // SAFETY: the C library's `errno` of this thread is always there.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

/// The kernel's own answer.
macro_rules! ask_kernel {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are those of the function that asks, whose caller vouches for them as it would to the C library.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut timespec) -> c_int {
    let now = match clock {
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_RAW | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_BOOTTIME => {
            kernel::read_clock()
        }
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => kernel::read_wall_clock(),
        _ => None,
    };
    let Some(now) = now else { return ask_kernel!(SYS_clock_gettime, clock, time) as c_int };
    let now = timespec { tv_sec: now.as_secs() as i64, tv_nsec: i64::from(now.subsec_nanos()) };
    // SAFETY: the caller gives a place for the time.
    unsafe { time.write(now) };
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, size: size_t, flags: c_uint) -> ssize_t {
    if !kernel::is_simulated() {
        return ask_kernel!(SYS_getrandom, buffer, size, flags) as ssize_t;
    }
    if size > 0 {
        // SAFETY: the caller gives so much room, and bytes need not be initialised to be written.
        let room = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<std::mem::MaybeUninit<u8>>(), size) };
        room.iter_mut().for_each(|byte| _ = byte.write(kernel::random_byte()));
    }
    size as ssize_t
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpid() -> c_int {
    if kernel::is_simulated() { kernel::process_number() } else { ask_kernel!(SYS_getpid) as c_int }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, action: c_int, file: c_int, event: *mut epoll_event) -> c_int {
    let done = ask_kernel!(SYS_epoll_ctl, epoll, action, file, event) as c_int;
    if done == 0 && kernel::is_simulated() {
        if action == libc::EPOLL_CTL_DEL {
            kernel::forget_file(file);
        } else {
            // SAFETY: the kernel has read it.
            kernel::note_file(epoll, file, unsafe { (*event).u64 }, is_socket(file));
        }
    }
    done
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    if !kernel::is_simulated() || most <= 0 {
        // What glibc does, which works on every architecture.
        return ask_kernel!(SYS_epoll_pwait, epoll, events, most, timeout, std::ptr::null::<c_void>(), 8_usize)
            as c_int;
    }
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    let found = kernel::wait_for_events(epoll, most as usize, timeout);
    for (place, (flags, data)) in found.iter().enumerate() {
        // SAFETY: the caller gives room for `most` events, and there are no more.
        unsafe { events.add(place).write(epoll_event { events: *flags, u64: *data }) };
    }
    found.len() as c_int
}

/// What the kernel reports now of an epoll instance: flags and data.
pub fn events_now(epoll: c_int) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    loop {
        let mut events = [epoll_event { events: 0, u64: 0 }; 64];
        let count = ask_kernel!(
            SYS_epoll_pwait,
            epoll,
            events.as_mut_ptr(),
            events.len() as c_int,
            0 as c_int,
            std::ptr::null::<c_void>(),
            8_usize
        );
        let count = usize::try_from(count).unwrap_or(0);
        found.extend(events[..count].iter().map(|event| (event.events, event.u64)));
        if count < events.len() {
            return found;
        }
    }
}

/// Whether a descriptor can be read, or is closed.
pub fn is_readable(file: c_int) -> bool {
    let mut polled = libc::pollfd { fd: file, events: libc::POLLIN, revents: 0 };
    // SAFETY: one element, which is there.
    unsafe { libc::poll(&mut polled, 1, 0) > 0 }
}

fn is_socket(file: c_int) -> bool {
    kind_of(file) == libc::S_IFSOCK
}

fn is_regular(file: c_int) -> bool {
    kind_of(file) == libc::S_IFREG
}

fn kind_of(file: c_int) -> mode_t {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: there is room for the answer, and all of its bytes may be zero.
    let found = unsafe {
        libc::fstat(file, found.as_mut_ptr());
        found.assume_init()
    };
    found.st_mode & libc::S_IFMT
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(file: c_int) -> c_int {
    if kernel::is_simulated() {
        kernel::forget_file(file);
    }
    ask_kernel!(SYS_close, file) as c_int
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(file: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    let most = kernel::cut(file, size);
    let none = std::ptr::null::<c_void>();
    let read = ask_kernel!(SYS_recvfrom, file, buffer, most, flags, none, none) as ssize_t;
    kernel::note_cut(file, size, most, read, Direction::In);
    read
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(file: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t {
    let most = kernel::cut(file, size);
    let none = std::ptr::null::<c_void>();
    let written = ask_kernel!(SYS_sendto, file, buffer, most, flags, none, 0 as socklen_t) as ssize_t;
    kernel::note_cut(file, size, most, written, Direction::Out);
    written
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
    if file == libc::STDERR_FILENO && kernel::is_simulated() {
        // SAFETY: the caller gives so many bytes.
        kernel::note_words(unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size) });
        return size as ssize_t;
    }
    // What the simulation itself prints may go to a file.
    if file > libc::STDERR_FILENO && kernel::is_disk_full() && is_regular(file) {
        return fail(libc::ENOSPC);
    }
    let most = kernel::cut(file, size);
    let written = ask_kernel!(SYS_write, file, buffer, most) as ssize_t;
    kernel::note_cut(file, size, most, written, Direction::Out);
    written
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    if file == libc::STDERR_FILENO && kernel::is_simulated() {
        let mut all = 0;
        for place in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the caller gives so many pieces, each of so many bytes.
            let piece = unsafe {
                let piece = *pieces.add(place);
                std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
            };
            kernel::note_words(piece);
            all += piece.len();
        }
        return all as ssize_t;
    }
    let mut size = 0;
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller gives so many pieces.
        size += unsafe { (*pieces.add(place)).iov_len };
    }
    let most = kernel::cut(file, size);
    if most == size {
        return ask_kernel!(SYS_writev, file, pieces, count) as ssize_t;
    }
    // SAFETY: the first piece is there, since there are bytes.
    let first = unsafe { *pieces };
    let most = most.min(first.iov_len).max(1);
    let written = match first.iov_len {
        0 => ask_kernel!(SYS_writev, file, pieces, count) as ssize_t,
        _ => ask_kernel!(SYS_write, file, first.iov_base, most) as ssize_t,
    };
    kernel::note_cut(file, size, most, written, Direction::Out);
    written
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    if kernel::is_disk_full() {
        return fail(libc::ENOSPC);
    }
    ask_kernel!(SYS_mkdirat, libc::AT_FDCWD, path, mode as c_uint) as c_int
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mount(
    source: *const c_char,
    target: *const c_char,
    kind: *const c_char,
    flags: c_ulong,
    data: *const c_void,
) -> c_int {
    if kernel::is_simulated() {
        return fail(libc::EPERM);
    }
    ask_kernel!(SYS_mount, source, target, kind, flags, data) as c_int
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    file: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    let done = ask_kernel!(SYS_getsockopt, file, level, name, value, size) as c_int;
    if done == 0 && level == libc::SOL_SOCKET && name == libc::SO_PEERCRED && kernel::is_simulated() {
        // SAFETY: the kernel has just written it.
        let credentials = unsafe { &mut *value.cast::<ucred>() };
        (credentials.uid, credentials.pid) = (kernel::user_of(&name_of_peer(file)), kernel::PEER_NUMBER);
    }
    done
}

/// The path at which the other end of a Unix socket is bound; empty if at none.
fn name_of_peer(file: c_int) -> String {
    // SAFETY: all of its bytes may be zero.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    // Its last byte stays zero.
    let mut size = (size_of::<sockaddr_un>() - 1) as socklen_t;
    // SAFETY: there is so much room, and a zero behind it.
    unsafe {
        let known: c_long = libc::syscall(libc::SYS_getpeername, file, &mut address, &mut size);
        if known < 0 { String::new() } else { CStr::from_ptr(address.sun_path.as_ptr()).to_string_lossy().into_owned() }
    }
}
