//! What a decoder may ask of the kernel: to read what is open, to have memory, to send messages, to end. Anything else kills it.

use std::collections::BTreeMap;
use std::io::{Error, Result};

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// System calls that it may make, with any arguments.
const ALLOWED: [libc::c_long; 22] = [
    // Of files and sockets that are open.
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_sendmsg,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Locks, of its only thread.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    // Signals, which end it.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Who it is, when it is, and chance.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    // The end.
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Of `fcntl`: seals, copies of descriptors, and questions.
const ALLOWED_OF_FCNTL: [libc::c_int; 5] =
    [libc::F_ADD_SEALS, libc::F_GET_SEALS, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_GETFL];

/// Forbids this process everything else, for good.
///
/// # Errors
/// The kernel has no such filters, or none are known for this processor.
pub(super) fn lock_down() -> Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(Error::other)?;
    let rules = rules().map_err(Error::other)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture);
    let program: BpfProgram = filter.map_err(Error::other)?.try_into().map_err(Error::other)?;
    apply_filter(&program).map_err(Error::other)
}

fn rules() -> std::result::Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    // Of the numbered argument.
    let is = |argument: u8, operator: SeccompCmpOp, value: libc::c_uint| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, u64::from(value))
    };
    let has_none =
        |argument: u8, flags: libc::c_int| is(argument, SeccompCmpOp::MaskedEq(u64::from(flags.unsigned_abs())), 0);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.into_iter().map(|call| (call, Vec::new())).collect();
    let commands = ALLOWED_OF_FCNTL
        .into_iter()
        .map(|command| SeccompRule::new(vec![is(1, SeccompCmpOp::Eq, command.unsigned_abs())?]));
    rules.insert(libc::SYS_fcntl, commands.collect::<std::result::Result<_, _>>()?);
    // No memory becomes code, and all of it is the process's own: no limit counts what is shared.
    let is_own =
        SeccompRule::new(vec![has_none(2, libc::PROT_EXEC)?, has_none(3, libc::MAP_SHARED | libc::MAP_GROWSDOWN)?])?;
    rules.insert(libc::SYS_mmap, vec![is_own]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![has_none(2, libc::PROT_EXEC)?])?]);
    // Memory that is a file is that of long messages.
    let is_message = is(1, SeccompCmpOp::Eq, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
    rules.insert(libc::SYS_memfd_create, vec![SeccompRule::new(vec![is_message])?]);
    // Where memory ends, it ends itself.
    let aborts_itself = SeccompRule::new(vec![
        is(0, SeccompCmpOp::Eq, std::process::id())?,
        is(2, SeccompCmpOp::Eq, libc::SIGABRT.unsigned_abs())?,
    ])?;
    rules.insert(libc::SYS_tgkill, vec![aborts_itself]);
    Ok(rules)
}
