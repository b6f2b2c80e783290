//! Metrics as rows, for people.

/// One value of Prometheus' text format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The metric's name.
    pub name: String,
    /// Its labels, as they are written between the braces.
    pub labels: String,
    /// Its value, as it is written.
    pub value: String,
}

/// The values of a text, without the single buckets of histograms.
pub fn parse(text: &str) -> Vec<Series> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.filter_map(|line| {
        // A label may contain spaces and braces; a value does not.
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        Some(Series { name: name.to_string(), labels: labels.to_string(), value: value.to_string() })
    });
    let mut all: Vec<Series> = series.filter(|series| !series.name.ends_with("_bucket")).collect();
    all.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
    all
}

/// A table with a line per value.
pub fn table(text: &str) -> String {
    let mut lines = vec![format!("{:<40} {:>16}  LABELS", "METRIC", "VALUE")];
    lines.extend(
        parse(text)
            .iter()
            .map(|Series { name, labels, value }| format!("{name:<40} {value:>16}  {labels}").trim_end().to_string()),
    );
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rows() {
        let text = "# HELP b x\n# TYPE b gauge\nb{image=\"a} 1 {\",x=\"\\\"\"} 2\na 1.5\nh_bucket{le=\"1\"} 3\nh_sum 2\nbroken\n";
        let found = parse(text);
        let names: Vec<&str> = found.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "h_sum"]);
        assert_eq!((found[1].labels.as_str(), found[1].value.as_str()), ("image=\"a} 1 {\",x=\"\\\"\"", "2"));
        let table = table("a 1\nb{x=\"y\"} 2\n");
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [vec!["METRIC", "VALUE", "LABELS"], vec!["a", "1"], vec!["b", "2", "x=\"y\""]]);
    }
}
