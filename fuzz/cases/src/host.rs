//! What SQL Server, and those who use it, hand to its extension, and files of libraries.

use std::fs;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use transship_mssql::fuzzing;

use crate::generate::{column, ty};
use crate::memory::{LIMIT, within};

pub fn script(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    within(LIMIT, || fuzzing::script(text));
}

/// The buffers of an Execute, and results as the host reads them.
pub fn host_columns(input: &[u8]) {
    let _: Result<()> = (|| {
        let u = &mut Unstructured::new(input);
        let code = *u.choose(&fuzzing::CODES)?;
        let (size, digits) = (u.int_in_range(0..=9000)?, u.int_in_range(-1..=40)?);
        let wanted = ty(u, 2)?;
        let rows = u.int_in_range(0..=40)?;
        let mut indicators = Vec::new();
        for _ in 0..rows {
            indicators.push(if u.ratio(1, 30)? { u.arbitrary()? } else { u.int_in_range(-1..=20)? });
        }
        let indicators = Some(indicators).filter(|_| u.ratio(7, 8).unwrap_or_default());
        let batch = u.int_in_range(1..=41)?;
        let results = column(u, &wanted, rows)?;
        within(4 * LIMIT, || fuzzing::write_results(code, size, digits, &wanted, &results));
        let data: &[u8] = u.arbitrary()?;
        within(4 * LIMIT, || {
            let read = fuzzing::read_column((code, size, digits), &wanted, rows, data, indicators.as_deref(), batch);
            for array in read {
                assert_eq!(array.data_type(), &wanted.data_type());
                array.to_data().validate_full().expect("what was accepted is valid");
            }
        });
        Ok(())
    })();
}

pub fn library(input: &[u8]) {
    let folder = tempfile::Builder::new().tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("there is room for a folder");
    let (archive, target) = (folder.path().join("archive.zip"), folder.path().join("project"));
    fs::write(&archive, input).expect("there is room for the archive");
    within(4 * LIMIT, || fuzzing::unpack_library(&archive, &target));
    let (mut files, mut bytes) = (0, 0);
    count(&target, &mut files, &mut bytes);
    assert!(files <= 20_000 && bytes <= 64 << 20, "{files} files of {bytes} bytes");
    let beside = fs::read_dir(folder.path()).expect("it is there").count();
    assert!(beside <= 2, "something lies beside the project");
}

fn count(folder: &Path, files: &mut usize, bytes: &mut u64) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let metadata = fs::symlink_metadata(entry.path()).expect("it is there");
        assert!(metadata.is_dir() || metadata.is_file(), "only files and folders are made");
        *files += 1;
        match metadata.is_dir() {
            true => count(&entry.path(), files, bytes),
            false => *bytes += metadata.len(),
        }
    }
}
