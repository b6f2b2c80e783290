//! The digest that names a segment, and a writer that computes it.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use udf_types::error::{Error, Result};

/// The BLAKE3 digest of a segment's bytes, which is its name in memory. Its text is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of whole bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The seed of the index of the segment that has this digest: its first 8 bytes, in little-endian order.
    pub fn seed(&self) -> u64 {
        let (first, _) = self.0.split_at(8);
        u64::from_le_bytes(first.try_into().expect("it has 8 bytes"))
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Digest> {
        let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match blake3::Hash::from_hex(text) {
            Ok(hash) if is_lower => Ok(Digest(hash.into())),
            _ => Err(Error::invalid_definition("a digest is not 64 hexadecimal digits in lower case")),
        }
    }
}

/// A writer that counts and digests what passes through it.
pub(crate) struct Tally<W> {
    pub(crate) out: W,
    pub(crate) bytes: u64,
    hasher: blake3::Hasher,
}

impl<W> Tally<W> {
    pub(crate) fn new(out: W) -> Tally<W> {
        Tally { out, bytes: 0, hasher: blake3::Hasher::new() }
    }

    /// The digest of all bytes so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest(self.hasher.finalize().into())
    }
}

impl<W: Write> Write for Tally<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written_and_in_no_other_form() {
        let digest = Digest::of(b"rows");
        let text = digest.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        assert_eq!(Digest::from(*digest.as_bytes()), digest);
        assert_eq!(text[..16], digest.seed().to_le_bytes().map(|byte| format!("{byte:02x}")).concat());
        for wrong in [&text[1..], &text.to_uppercase(), &format!("{text}0"), "", &"é".repeat(32)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tally_counts_what_its_writer_takes() {
        let mut tally = Tally::new(Vec::new());
        tally.write_all(b"ro").unwrap();
        tally.write_all(b"ws").unwrap();
        assert_eq!((tally.bytes, tally.digest(), tally.out), (4, Digest::of(b"rows"), b"rows".to_vec()));
    }
}
