//! Replays the committed inputs: what fuzzers found once, and what gets them deep. One test, since memory is measured.

use std::fs;
use std::path::Path;

#[test]
fn committed_inputs_break_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let mut bytes = 0;
    for (name, _) in fuzz_cases::CASES {
        let mut inputs: Vec<_> = fs::read_dir(corpus.join(name))
            .unwrap_or_else(|cause| panic!("{name}: {cause}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            let read = fs::read(&input).unwrap();
            bytes += read.len();
            // A failure names its case; this names the input.
            println!("{}", input.display());
            fuzz_cases::run(name, &read);
        }
    }
    assert!(bytes < 1 << 20, "the corpus has {bytes} bytes");
    // Inputs of a case that there is not would never be replayed.
    for folder in fs::read_dir(&corpus).unwrap() {
        let name = folder.unwrap().file_name();
        assert!(fuzz_cases::CASES.iter().any(|(known, _)| **known == *name), "{name:?}");
    }
}
