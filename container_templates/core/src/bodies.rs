//! Bodies of HTTP's requests and replies as other engines send and take them: compressed, and with a digest (`docs/dialects.md`).

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::GzEncoder;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap};
use md5::{Digest, Md5};
use udf_types::limits::MAX_MESSAGE_BYTES;

use crate::error::CallError;
use crate::json::unreadable;

/// Shorter replies are not worth the time.
const LEAST_PACKED_BYTES: usize = 1024;
/// Unpacked before one looks whether there is room for more.
const BYTES_AT_A_TIME: u64 = 1 << 20;
/// What gzip's form begins with; zlib's, which HTTP calls deflate, does not.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Bytes that the unpacked bodies of all requests may have together.
const MOST_UNPACKED_BYTES: usize = MAX_MESSAGE_BYTES;
/// Those that they have.
static UNPACKED: AtomicUsize = AtomicUsize::new(0);

/// A request's body as its client made it.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) bytes: Bytes,
    _room: Room,
}

/// Memory for a body, out of what all of them may have.
#[derive(Debug)]
struct Room {
    of_all: &'static AtomicUsize,
    bytes: usize,
}

impl Room {
    fn new(of_all: &'static AtomicUsize) -> Room {
        Room { of_all, bytes: 0 }
    }

    fn grow(&mut self, bytes: usize) -> Result<(), CallError> {
        self.bytes += bytes;
        match self.of_all.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_UNPACKED_BYTES {
            true => Err(CallError::new("busy", "the requests that were unpacked have more than 1 GiB together")),
            false => Ok(()),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether it takes time to find out what a request's body is.
pub(crate) fn is_packed(headers: &HeaderMap) -> bool {
    headers.contains_key("content-md5") || headers.contains_key(CONTENT_ENCODING)
}

/// The body as it was before it was compressed, if its digest is right. An error of kind `busy` says that others need the memory.
pub(crate) fn unpacked(headers: &HeaderMap, body: Bytes) -> Result<Unpacked, CallError> {
    let mut room = Room::new(&UNPACKED);
    Ok(Unpacked { bytes: unpacked_into(&mut room, headers, body)?, _room: room })
}

fn unpacked_into(room: &mut Room, headers: &HeaderMap, body: Bytes) -> Result<Bytes, CallError> {
    if let Some(digest) = headers.get("content-md5")
        && !is_digest_of(digest.as_bytes(), &body)
    {
        return Err(CallError::violation("the request does not match its Content-MD5"));
    }
    let Some(encoding) = headers.get(CONTENT_ENCODING) else { return Ok(body) };
    let encoding = String::from_utf8_lossy(encoding.as_bytes()).to_ascii_lowercase();
    match encoding.as_str() {
        "identity" => Ok(body),
        "gzip" | "x-gzip" | "deflate" if body.starts_with(&GZIP) => read_whole(room, GzDecoder::new(&*body)),
        "gzip" | "x-gzip" | "deflate" => read_whole(room, ZlibDecoder::new(&*body)),
        _ => Err(CallError::violation(format!("the request's content encoding {encoding} is unknown"))),
    }
}

fn read_whole(room: &mut Room, mut reader: impl Read) -> Result<Bytes, CallError> {
    let mut whole = Vec::new();
    loop {
        let read = reader.by_ref().take(BYTES_AT_A_TIME).read_to_end(&mut whole).map_err(unreadable)?;
        if read == 0 {
            return Ok(whole.into());
        }
        if whole.len() > MAX_MESSAGE_BYTES {
            return Err(CallError::violation("the request unpacks to more than 1 GiB"));
        }
        room.grow(read)?;
    }
}

/// Whether a header is the digest of a body (RFC 1864). Some write it in hexadecimal.
fn is_digest_of(header: &[u8], body: &[u8]) -> bool {
    let digest = Md5::digest(body);
    let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    header == BASE64.encode(digest).as_bytes() || header == hexadecimal.as_bytes()
}

/// Whether a client takes compressed replies.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().any(|value| String::from_utf8_lossy(value.as_bytes()).contains("gzip"))
}

/// A reply as it goes to a client that takes compressed ones, and whether it is.
pub(crate) fn packed(body: Vec<u8>) -> (Vec<u8>, bool) {
    if body.len() <= LEAST_PACKED_BYTES {
        return (body, false);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory fails only if there is none.
    match encoder.write_all(&body).and_then(|()| encoder.finish()) {
        Ok(packed) => (packed, true),
        Err(_) => (body, false),
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::ZlibEncoder;

    use super::*;

    fn read(headers: &[(&'static str, &str)], body: &[u8]) -> Result<Bytes, CallError> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        unpacked(&headers, Bytes::copy_from_slice(body)).map(|unpacked| unpacked.bytes)
    }

    #[test]
    fn all_bodies_together_have_a_limit() {
        static OF_ALL: AtomicUsize = AtomicUsize::new(0);
        let mut first = Room::new(&OF_ALL);
        first.grow(MOST_UNPACKED_BYTES - 100).unwrap();
        let (gzip, _) = packed(vec![7; 5000]);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        let read = |room: &mut Room| unpacked_into(room, &headers, gzip.clone().into());
        assert_eq!(read(&mut Room::new(&OF_ALL)).unwrap_err().kind, "busy");
        drop(first);
        let mut second = Room::new(&OF_ALL);
        assert_eq!(read(&mut second).unwrap(), vec![7; 5000]);
        assert_eq!(OF_ALL.load(Ordering::Relaxed), 5000);
        drop(second);
        assert_eq!(OF_ALL.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bodies_are_unpacked() {
        let text = "some text ".repeat(1000).into_bytes();
        let (gzip, is_packed) = packed(text.clone());
        assert!(is_packed && gzip.len() < 200);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        let zlib = zlib.finish().unwrap();
        for (encoding, body) in [("gzip", &gzip), ("X-GZIP", &gzip), ("deflate", &zlib), ("identity", &text)] {
            assert_eq!(read(&[("content-encoding", encoding)], body).unwrap(), text);
        }
        assert_eq!(read(&[], &text).unwrap(), text);
        assert_eq!(packed(b"short".to_vec()), (b"short".to_vec(), false));
        for (encoding, body) in [("gzip", &text), ("gzip", &gzip[..gzip.len() - 9].to_vec()), ("br", &text)] {
            assert_eq!(read(&[("content-encoding", encoding)], body).unwrap_err().kind, "protocol_violation");
        }
    }

    #[test]
    fn a_body_with_another_digest_is_refused() {
        for digest in ["XUFAKrxLKna5cZ2REBfFkg==", "5d41402abc4b2a76b9719d911017c592"] {
            assert!(read(&[("content-md5", digest)], b"hello").is_ok());
            assert!(read(&[("content-md5", digest)], b"hallo").is_err());
        }
    }
}
