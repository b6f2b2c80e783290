//! What a session's process tells its parent, through a pipe.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use crate::session::JobOutcome;
use crate::table::Column;
use crate::types::ApiType;

/// An outcome on its way from a child: numbers as eight bytes, everything else behind its length.
pub fn write_outcome(pipe: OwnedFd, outcome: &Result<JobOutcome, String>) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(File::from(pipe));
    let number = |out: &mut dyn Write, number: i64| out.write_all(&number.to_le_bytes());
    let bytes = |out: &mut dyn Write, bytes: &[u8]| {
        out.write_all(&(bytes.len() as i64).to_le_bytes())?;
        out.write_all(bytes)
    };
    match outcome {
        Err(fact) => {
            number(&mut out, 0)?;
            bytes(&mut out, fact.as_bytes())?;
        }
        Ok(answer) => {
            number(&mut out, 1)?;
            number(&mut out, answer.results.rows as i64)?;
            number(&mut out, answer.results.columns.len() as i64)?;
            for column in &answer.results.columns {
                for value in [i64::from(column.ty.code), column.ty.size as i64, i64::from(column.ty.digits)] {
                    number(&mut out, value)?;
                }
                bytes(&mut out, &column.data)?;
                let lengths: Vec<u8> =
                    column.lengths.iter().flatten().flat_map(|length| length.to_le_bytes()).collect();
                bytes(&mut out, &lengths)?;
            }
            number(&mut out, answer.outputs.len() as i64)?;
            for (position, value) in &answer.outputs {
                number(&mut out, *position as i64)?;
                number(&mut out, i64::from(value.is_some()))?;
                bytes(&mut out, value.as_deref().unwrap_or_default())?;
            }
        }
    }
    out.flush()
}

/// Reads it; none if it was cut off.
pub fn read_outcome(bytes: &[u8]) -> Option<Result<JobOutcome, String>> {
    let mut rest = bytes;
    fn number(rest: &mut &[u8]) -> Option<i64> {
        let (first, tail) = rest.split_first_chunk::<8>()?;
        *rest = tail;
        Some(i64::from_le_bytes(*first))
    }
    fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let length = usize::try_from(number(rest)?).ok()?;
        let (first, tail) = rest.split_at_checked(length)?;
        *rest = tail;
        Some(first)
    }
    if number(&mut rest)? == 0 {
        return Some(Err(String::from_utf8_lossy(take(&mut rest)?).into_owned()));
    }
    let mut answer = JobOutcome::default();
    answer.results.rows = usize::try_from(number(&mut rest)?).ok()?;
    for _ in 0..number(&mut rest)? {
        let (code, size, digits) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let ty = ApiType { code: code as i16, size: size as u64, digits: digits as i16 };
        let mut column = Column::new("", ty, true);
        column.data = take(&mut rest)?.to_vec();
        let lengths = take(&mut rest)?.as_chunks::<4>().0.iter().map(|length| i32::from_le_bytes(*length));
        column.lengths = Some(lengths.collect());
        answer.results.columns.push(column);
    }
    for _ in 0..number(&mut rest)? {
        let (position, is_some) = (number(&mut rest)?, number(&mut rest)?);
        let value = take(&mut rest)?.to_vec();
        answer.outputs.push((position as usize, (is_some == 1).then_some(value)));
    }
    Some(Ok(answer))
}
