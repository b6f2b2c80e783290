//! Images as labels: a bounded number of names of a bounded length.

use std::collections::HashSet;
use std::sync::Mutex;

/// So many images have series of their own. Each has about 25.
const MOST_IMAGES: usize = 200;
const MOST_CHARACTERS: usize = 128;
/// The label of all further images together.
const OTHER: &str = "other";

/// The images that have series of their own: the first ones of this manager.
#[derive(Debug, Default)]
pub(super) struct ImageLabels(Mutex<HashSet<String>>);

impl ImageLabels {
    /// The label of an image.
    pub(super) fn label(&self, image: &str) -> String {
        let name: String = image.chars().take(MOST_CHARACTERS).collect();
        let mut known = self.0.lock().expect("no holder panics");
        if known.contains(&name) {
            return name;
        }
        if known.len() >= MOST_IMAGES {
            return OTHER.to_string();
        }
        known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_number_and_length() {
        let labels = ImageLabels::default();
        assert_eq!(labels.label(&"é".repeat(1000)).chars().count(), MOST_CHARACTERS);
        let all: HashSet<String> = (0..10_000).map(|number| labels.label(&format!("i:{number}"))).collect();
        assert_eq!(all.len(), MOST_IMAGES);
        assert!(all.contains("i:0") && all.contains(OTHER));
        assert_eq!((labels.label("i:0").as_str(), labels.label("i:9999").as_str()), ("i:0", OTHER));
    }
}
