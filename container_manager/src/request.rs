//! Reads the requests of a connection: short ones at once, longer ones as far as their user has memory for them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use udf_client::control::MAX_LINE_BYTES;

/// A request has so long from its first byte to its last, or as far as it is short, and again from there.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer requests of a user have a bounded length together, and so have longer responses.
pub(crate) const SHORT_BYTES: usize = 16 << 10;
/// What a permit stands for.
pub(crate) const PERMIT_BYTES: usize = 1 << 10;
/// The permits of the longest request.
pub(crate) const MOST_PERMITS: u32 = (MAX_LINE_BYTES as usize / PERMIT_BYTES) as u32;
/// Between two looks at whether a connection is closed from which the next request has come already.
const HANG_UP_INTERVAL: Duration = Duration::from_millis(100);

/// Reads the line of a request, of at most [`MAX_LINE_BYTES`]; a long one with permits for its length. None at the end of the
/// stream, or if the client does not wait for them.
pub(crate) async fn read_request(
    reader: &mut BufReader<OwnedReadHalf>,
    long_requests: &Arc<Semaphore>,
) -> std::io::Result<Option<(String, Option<OwnedSemaphorePermit>)>> {
    // Whoever has a lease may say nothing for as long as it likes.
    if reader.fill_buf().await?.is_empty() {
        return Ok(None);
    }
    let (mut line, mut permits) = (Vec::new(), None);
    read_piece(reader, &mut line, SHORT_BYTES).await?;
    if line.len() == SHORT_BYTES && !line.ends_with(b"\n") {
        permits = tokio::select! {
            biased;
            permits = long_requests.clone().acquire_many_owned(MOST_PERMITS) => permits.ok(),
            () = hung_up(reader.get_ref().as_ref()) => return Ok(None),
        };
        read_piece(reader, &mut line, MAX_LINE_BYTES as usize).await?;
        if let Some(permits) = &mut permits {
            // Until it was read, it could have been the longest.
            drop(permits.split(permits.num_permits().saturating_sub(line.len().div_ceil(PERMIT_BYTES))));
        }
    }
    let invalid = |fact: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, fact);
    if line.pop() != Some(b'\n') {
        return Err(invalid("line too long or cut off"));
    }
    let line = String::from_utf8(line).map_err(|_| invalid("line is not UTF-8"))?;
    Ok(Some((line, permits)))
}

/// Reads on to the end of the line, or until it has `most` bytes.
async fn read_piece(reader: &mut BufReader<OwnedReadHalf>, line: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    let mut rest = reader.take((most - line.len()) as u64);
    tokio::time::timeout(REQUEST_TIMEOUT, rest.read_until(b'\n', line)).await??;
    Ok(())
}

/// Waits until the other end is closed. One that only sends no more may wait for its answer.
pub(crate) async fn hung_up(stream: &UnixStream) {
    let is_closed = || {
        let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
        let is_polled = poll(&mut polled, PollTimeout::ZERO).is_ok();
        is_polled && polled[0].revents().is_some_and(|found| found.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
    };
    // This does not wait where the next request is there already.
    while stream.ready(Interest::READABLE).await.is_ok() && !is_closed() {
        tokio::time::sleep(HANG_UP_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn connection() -> (BufReader<OwnedReadHalf>, UnixStream) {
        let (served, client) = UnixStream::pair().unwrap();
        (BufReader::new(served.into_split().0), client)
    }

    #[tokio::test]
    async fn a_long_request_keeps_permits_for_its_length() {
        let of_user = Arc::new(Semaphore::new(MOST_PERMITS as usize));
        let (mut reader, mut client) = connection();
        client.write_all(format!("{}\n", "x".repeat(20 << 10)).as_bytes()).await.unwrap();
        let (line, permits) = read_request(&mut reader, &of_user).await.unwrap().unwrap();
        assert_eq!((line.len(), of_user.available_permits()), (20 << 10, MOST_PERMITS as usize - 21));
        drop(permits);
        client.write_all(b"x\n").await.unwrap();
        assert!(read_request(&mut reader, &of_user).await.unwrap().unwrap().1.is_none());
        assert_eq!(of_user.available_permits(), MOST_PERMITS as usize);
    }

    #[tokio::test]
    async fn nobody_waits_for_permits_whose_client_is_gone() {
        let (mut reader, mut client) = connection();
        client.write_all(&[b'x'; 20 << 10]).await.unwrap();
        let of_user = Arc::new(Semaphore::new(0));
        let read = tokio::spawn(async move { read_request(&mut reader, &of_user).await });
        tokio::time::sleep(HANG_UP_INTERVAL * 3).await;
        assert!(!read.is_finished());
        drop(client);
        assert!(read.await.unwrap().unwrap().is_none());
    }
}
