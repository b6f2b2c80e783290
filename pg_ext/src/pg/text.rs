//! Text between the database's encoding and UTF-8, which is what Rust and containers have.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};

use pgrx::pg_sys;

/// Bytes of UTF-8 that PostgreSQL's conversions may make of one (mb/pg_wchar.h, MAX_CONVERSION_GROWTH).
const MOST_GROWTH: usize = 4;

const UTF8: i32 = pg_sys::pg_enc::PG_UTF8 as i32;

/// Whether UTF-8 is stored as it is: the database has that encoding.
pub fn is_utf8() -> bool {
    encoding() == UTF8
}

/// Whether text of Rust's stands as it is: in a database of UTF-8, and in one that says nothing of its texts.
fn takes_utf8() -> bool {
    [UTF8, pg_sys::pg_enc::PG_SQL_ASCII as i32].contains(&encoding())
}

fn encoding() -> i32 {
    // SAFETY: reads a process-wide constant.
    unsafe { pg_sys::GetDatabaseEncoding() }
}

/// Text in the database's encoding as UTF-8. Raises an error if it is none: in SQL_ASCII anything may stand for text.
pub fn to_utf8(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && is_utf8()
    {
        return text.into();
    }
    let length = i32::try_from(bytes.len()).expect("a value is below 1 GB");
    // SAFETY: the bytes have the given length; the result is the same pointer or a new string that ends in NUL.
    unsafe {
        let converted = pg_sys::pg_server_to_any(bytes.as_ptr().cast(), length, UTF8);
        if std::ptr::eq(converted.cast::<u8>(), bytes.as_ptr()) {
            // A UTF-8 database may hold what is none, as after a restore of damaged data: no value is changed on its way.
            pg_sys::pg_verify_mbstr(UTF8, bytes.as_ptr().cast(), length, false);
            return String::from_utf8_lossy(bytes);
        }
        CStr::from_ptr(converted).to_string_lossy()
    }
}

/// As [`to_utf8`]; none if it is no text, or has a character that is not in UTF-8.
pub fn to_utf8_if_possible(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if takes_utf8() {
        return std::str::from_utf8(bytes).ok().map(Cow::from);
    }
    let Ok(size) = i32::try_from((bytes.len() + 1) * MOST_GROWTH) else { return Some(to_utf8(bytes)) };
    let (source, length) = (bytes.as_ptr().cast_mut(), size / MOST_GROWTH as i32 - 1);
    let mut room = vec![0; (bytes.len() + 1) * MOST_GROWTH];
    // SAFETY: a lookup in the catalogs. Source and room have these sizes; the source is not written. What is written ends in NUL.
    let done = unsafe {
        let conversion = pg_sys::FindDefaultConversionProc(encoding(), UTF8);
        if conversion == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::pg_do_encoding_conversion_buf(
            conversion,
            encoding(),
            UTF8,
            source,
            length,
            room.as_mut_ptr(),
            size,
            true,
        )
    };
    room.truncate(room.iter().position(|byte| *byte == 0).unwrap_or(room.len()));
    (done == length).then(|| String::from_utf8(room).ok()).flatten().map(Cow::from)
}

/// As [`to_utf8`], of a string of PostgreSQL's.
///
/// # Safety
/// `text` ends in NUL.
pub unsafe fn from_c(text: *const c_char) -> String {
    // SAFETY: the caller says so.
    to_utf8(unsafe { CStr::from_ptr(text) }.to_bytes()).into_owned()
}

/// UTF-8 as text in the database's encoding, palloc'd or the text itself. Raises an error if a character has none there.
pub fn to_server(text: &CStr) -> *mut c_char {
    let length = i32::try_from(text.to_bytes().len()).expect("a value is below 1 GB");
    // SAFETY: the text ends in NUL and has the given length.
    unsafe { pg_sys::pg_any_to_server(text.as_ptr(), length, UTF8) }
}

/// UTF-8 for an error's text in the database's encoding, with a mark for each character that there is none for, and for NUL.
pub fn to_server_or_marks(text: &str) -> CString {
    let text = text.replace('\0', if is_utf8() { "\u{fffd}" } else { "?" });
    let converted =
        if text.is_ascii() || takes_utf8() { text.into_bytes() } else { convert_or_mark(&text, encoding()).1 };
    CString::new(converted).unwrap_or_default()
}

/// UTF-8 that the database's encoding can hold, with the same marks.
pub fn with_marks(text: &str) -> Cow<'_, str> {
    if !text.contains('\0') && (text.is_ascii() || takes_utf8()) {
        return text.into();
    }
    // SAFETY: a CString ends in NUL.
    unsafe { from_c(to_server_or_marks(text).as_ptr()) }.into()
}

/// UTF-8 with a mark for each character that the client's encoding has none for: to send one would be an error.
pub fn that_client_reads(text: &str) -> Cow<'_, str> {
    // SAFETY: reads a variable of the process.
    let client = unsafe { pg_sys::pg_get_client_encoding() };
    if text.is_ascii() || [UTF8, pg_sys::pg_enc::PG_SQL_ASCII as i32, encoding()].contains(&client) {
        return text.into();
    }
    // Between two other encodings, PostgreSQL converts in its own way.
    if is_utf8() { convert_or_mark(text, client).0.into() } else { to_ascii(text).into() }
}

/// Text without what is not ASCII, which is text in every encoding.
pub fn to_ascii(text: &str) -> String {
    text.chars().map(|character| if character.is_ascii() && character != '\0' { character } else { '?' }).collect()
}

/// The text with a mark for each character that an encoding has none for, and the same in that encoding.
fn convert_or_mark(text: &str, encoding: i32) -> (String, Vec<u8>) {
    // SAFETY: looks at the transaction's state, and then into the catalogs.
    let conversion = unsafe {
        match pg_sys::IsTransactionState() {
            true => pg_sys::FindDefaultConversionProc(UTF8, encoding),
            false => pg_sys::InvalidOid,
        }
    };
    if conversion == pg_sys::InvalidOid {
        let text = to_ascii(text);
        return (text.clone(), text.into_bytes());
    }
    let (mut marked, mut converted) = (String::new(), Vec::new());
    let mut rest = text;
    while !rest.is_empty() {
        // It is given a fourth of this at most.
        let mut room = vec![0; (rest.len() + 2) * MOST_GROWTH];
        let (source, length) = (rest.as_ptr().cast_mut(), i32::try_from(rest.len()).unwrap_or(i32::MAX));
        let size = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: source and room have these sizes; the source is not written. What is written ends in NUL.
        let done = unsafe {
            let room = room.as_mut_ptr();
            pg_sys::pg_do_encoding_conversion_buf(conversion, UTF8, encoding, source, length, room, size, true)
        };
        converted.extend(room.iter().take_while(|byte| **byte != 0));
        let (held, refused) = rest.split_at_checked(usize::try_from(done).unwrap_or(0)).unwrap_or((rest, ""));
        marked.push_str(held);
        rest = refused;
        if let Some(refused) = rest.chars().next() {
            marked.push('?');
            converted.push(b'?');
            rest = &rest[refused.len_utf8()..];
        }
    }
    (marked, converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_every_encoding_has_a_mark_for_each_character_that_is_not_ascii() {
        assert_eq!(to_ascii("Grüße, 🚢\0!"), "Gr??e, ??!");
        assert_eq!(to_ascii(""), "");
    }
}
