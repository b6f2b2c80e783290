//! How much the errors of rows may say: every row of a batch may have one (`docs/errors.md`, "Errors of single rows").

/// Longest error of one row, in characters.
const MOST: usize = 4096;
/// Once the errors of a batch have so many characters together, each further one has at most [`FEW`].
const MOST_IN_ALL: usize = 1 << 20;
const FEW: usize = 256;

/// The errors of a batch.
#[derive(Debug)]
pub struct RowTexts {
    left: usize,
}

impl RowTexts {
    /// Those of a batch without any yet.
    pub fn new() -> RowTexts {
        RowTexts { left: MOST_IN_ALL }
    }

    /// What of the next error is told.
    pub fn cut<'a>(&mut self, text: &'a str) -> &'a str {
        let most = if self.left > 0 { MOST } else { FEW };
        let (count, end) = match text.char_indices().nth(most) {
            Some((end, _)) => (most, end),
            None => (text.chars().count(), text.len()),
        };
        self.left = self.left.saturating_sub(count);
        &text[..end]
    }
}

impl Default for RowTexts {
    fn default() -> RowTexts {
        RowTexts::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_cut_at_characters_and_the_more_the_more_there_are() {
        let mut texts = RowTexts::new();
        assert_eq!([texts.cut(""), texts.cut("no")], ["", "no"]);
        let long = "é".repeat(MOST + 1);
        let lengths: Vec<usize> = (0..300).map(|_| texts.cut(&long).chars().count()).collect();
        assert_eq!(lengths[..256], [MOST; 256]);
        assert_eq!(lengths[256..], [FEW; 44]);
        assert_eq!(texts.cut("no"), "no");
    }
}
