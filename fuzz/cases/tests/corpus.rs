//! Replays the committed inputs: what fuzzers found once, and what gets them deep. Then some that are made of them, the same in
//! each run: FUZZ_INPUTS says how many of each case, FUZZ_SEED which, FUZZ_CASE of which case alone. One test, since memory is measured.

use std::fs;
use std::path::Path;

#[test]
fn inputs_break_nothing() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("it is a number"));
    let (count, seed) = (number("FUZZ_INPUTS").unwrap_or(300), number("FUZZ_SEED").unwrap_or(1));
    let mut bytes = 0;
    let wanted = std::env::var("FUZZ_CASE").ok();
    for (name, _) in fuzz_cases::CASES {
        if wanted.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let mut inputs: Vec<_> = fs::read_dir(corpus.join(name))
            .unwrap_or_else(|cause| panic!("{name}: {cause}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        let mut committed = Vec::new();
        for input in inputs {
            let read = fs::read(&input).unwrap();
            bytes += read.len();
            // A failure names its case; this names the input.
            println!("{}", input.display());
            fuzz_cases::run(name, &read);
            committed.push(read);
        }
        let mut random = Random(seed);
        for round in 0..count {
            let input = random.made_of(&committed);
            // What ends the process says how to come back: FUZZ_SEED, and the input itself.
            fuzz_cases::note(format!("input {round} of seed {seed}, {} bytes: {}", input.len(), input.escape_ascii()));
            fuzz_cases::run(name, &input);
        }
        fuzz_cases::note(String::new());
    }
    assert!(bytes < 1 << 20, "the corpus has {bytes} bytes");
    // Inputs of a case that there is not would never be replayed.
    for folder in fs::read_dir(&corpus).unwrap() {
        let name = folder.unwrap().file_name();
        assert!(fuzz_cases::CASES.iter().any(|(known, _)| **known == *name), "{name:?}");
    }
}

/// Numbers that are no better than they must be (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    /// One of these with some of its bytes changed, pieces of it repeated or left out, or put behind another.
    fn made_of(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        input.truncate(16 << 10);
        for _ in 0..=self.below(6) {
            let place = self.below(input.len());
            let end = place + self.below(input.len().saturating_sub(place).min(64));
            match self.below(6) {
                0 => drop(input.drain(place..end)),
                1 => {
                    let piece = input[place..end].repeat(1 + self.below(8));
                    input.splice(place..place, piece);
                }
                2 => {
                    let other = &inputs[self.below(inputs.len())];
                    let start = self.below(other.len());
                    input.truncate(place);
                    input.extend(&other[start..other.len().min(start + (4 << 10))]);
                }
                3 => (0..8).for_each(|_| input.push(self.below(256) as u8)),
                _ if input.is_empty() => {}
                4 => input[place] ^= 1 << self.below(8),
                _ => input[place] = self.below(256) as u8,
            }
        }
        input
    }
}
