//! The status page: HTML without scripts, in which everything that comes from elsewhere is text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::series;
use super::snapshot::Snapshot;

/// The page's style. The policy of `door` permits it by its hash, and nothing else.
pub(super) const STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:0 0 1.5em}th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid #ddd}\
th{font-weight:600}td.n{text-align:right}h1{font-size:1.4em}h2{font-size:1.1em;margin:0 0 .3em}.bad{color:#b00020;font-weight:600}";

/// Rows of a table, and characters of a cell, beyond which a page tells nobody more.
const MOST_ROWS: usize = 500;
const MOST_CHARACTERS: usize = 200;

/// The page of a moment, with the counters among the metrics that count what went wrong.
pub(super) fn render(snapshot: &Snapshot, metrics: &str) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Transship</title>");
    let _ = write!(page, "<meta http-equiv=\"refresh\" content=\"10\"><style>{STYLE}</style></head><body>");
    let _ = write!(page, "<h1>Transship {}, runtime {}</h1>", env!("CARGO_PKG_VERSION"), escape(&snapshot.runtime));
    table(&mut page, "Limits", &["resource", "now", "waiting", "limit"], limits(snapshot));
    table(&mut page, "Images", &["image", "replicas", "leases"], images(snapshot));
    let replicas = snapshot.replicas.iter().map(|replica| {
        let state = if replica.state == "silent" { bad(&replica.state) } else { text(&replica.state) };
        [text(&replica.name), text(&replica.image), state, number(replica.leases as u64), seconds(replica.age_s)].into()
    });
    table(&mut page, "Replicas", &["replica", "image", "state", "leases", "age"], replicas.collect());
    let circuits = snapshot.circuits.iter().map(|circuit| {
        let state = if circuit.state == "closed" { text(&circuit.state) } else { bad(&circuit.state) };
        [text(&circuit.image), state, number(u64::from(circuit.endings)), seconds(circuit.wait_s)].into()
    });
    let names = ["image", "circuit", "ended in a row", "next start in"];
    table(&mut page, "Images whose replicas ended by themselves", &names, circuits.collect());
    table(&mut page, "Errors since the start", &["metric", "labels", "count"], errors(metrics));
    page.push_str("<p>\"transship ps\" says how replicas ended, \"transship logs\" what they wrote. ");
    page.push_str("<a href=\"/metrics\">Metrics</a></p></body></html>\n");
    page
}

/// A row's cells, as HTML.
type Row = Vec<String>;

fn limits(snapshot: &Snapshot) -> Vec<Row> {
    let megabytes = |count: u64| if count == u64::MAX { text("none") } else { number_of(count, " MB") };
    vec![
        vec![
            text("containers"),
            number(snapshot.replicas.len() as u64),
            String::from("<td></td>"),
            number(snapshot.most_containers),
        ],
        vec![
            text("memory of containers, by their limits"),
            megabytes(snapshot.reserved_mb),
            String::from("<td></td>"),
            megabytes(snapshot.most_memory_mb),
        ],
        vec![text("leases"), number(snapshot.leases()), number(snapshot.leases_waiting), String::from("<td></td>")],
        vec![
            text("builds"),
            number(snapshot.builds_running),
            number(snapshot.builds_waiting),
            number(snapshot.most_builds),
        ],
    ]
}

fn images(snapshot: &Snapshot) -> Vec<Row> {
    let mut images: BTreeMap<&str, (BTreeMap<&str, u64>, u64)> = BTreeMap::new();
    for replica in &snapshot.replicas {
        let (states, leases) = images.entry(&replica.image).or_default();
        *states.entry(&replica.state).or_default() += 1;
        *leases += replica.leases as u64;
    }
    let row = |(image, (states, leases)): (&str, (BTreeMap<&str, u64>, u64))| {
        let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        vec![text(image), text(&states.join(", ")), number(leases)]
    };
    images.into_iter().map(row).collect()
}

/// The counters above zero of what went wrong.
fn errors(metrics: &str) -> Vec<Row> {
    let wrong = |series: &series::Series| {
        let of = |label: &str, values: &[&str]| {
            values.iter().any(|value| series.labels.ends_with(&format!("{label}=\"{value}\"")))
        };
        let is_wrong = match series.name.as_str() {
            "transship_lease_errors_total" => true,
            "transship_builds_total" => of("outcome", &["failed"]),
            "transship_replica_ends_total" => of("reason", &["ended", "silent", "start_failed", "resume_failed"]),
            _ => false,
        };
        is_wrong && series.value != "0"
    };
    let found = series::parse(metrics).into_iter().filter(wrong);
    found.map(|series| vec![text(&series.name), text(&series.labels), right(&escape(&series.value))]).collect()
}

fn table(page: &mut String, title: &str, names: &[&str], rows: Vec<Row>) {
    let _ = write!(page, "<h2>{}</h2><table><tr>", escape(title));
    for name in names {
        let _ = write!(page, "<th>{}</th>", escape(name));
    }
    page.push_str("</tr>\n");
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    for row in rows.into_iter().take(MOST_ROWS) {
        let _ = writeln!(page, "<tr>{}</tr>", row.concat());
    }
    page.push_str("</table>");
    if left_out > 0 {
        let _ = write!(page, "<p>{left_out} more are not shown.</p>");
    }
}

/// Cells. Text may be written from right to left, and then changes no cell but its own.
fn text(value: &str) -> String {
    format!("<td><bdi>{}</bdi></td>", escape(value))
}

fn bad(value: &str) -> String {
    format!("<td class=\"bad\">{}</td>", escape(value))
}

fn right(html: &str) -> String {
    format!("<td class=\"n\">{html}</td>")
}

fn number(value: u64) -> String {
    number_of(value, "")
}

fn number_of(value: u64, unit: &str) -> String {
    right(&format!("{value}{unit}"))
}

fn seconds(value: u64) -> String {
    number_of(value, " s")
}

/// Text as HTML shows it, in an element or an attribute; control characters as a mark.
fn escape(value: &str) -> String {
    let mut html = String::with_capacity(value.len());
    for (position, character) in value.chars().enumerate() {
        match character {
            _ if position == MOST_CHARACTERS => {
                html.push('…');
                break;
            }
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            character if character.is_control() => html.push('\u{fffd}'),
            character => html.push(character),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_client::control::{CircuitInfo, ReplicaInfo};

    const HOSTILE: &str = "</td><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\u{0}\u{1b}[2J\r\n";

    fn hostile() -> Snapshot {
        let replica = ReplicaInfo {
            name: HOSTILE.into(),
            image: HOSTILE.into(),
            digest: HOSTILE.into(),
            state: HOSTILE.into(),
            leases: 1,
            age_s: 1,
            holders: Vec::new(),
        };
        let circuit = CircuitInfo {
            image: HOSTILE.into(),
            digest: HOSTILE.into(),
            state: HOSTILE.into(),
            endings: 1,
            wait_s: 1,
            last: "the secret of a handler".into(),
        };
        Snapshot { runtime: HOSTILE.into(), replicas: vec![replica], circuits: vec![circuit], ..Snapshot::default() }
    }

    #[test]
    fn hostile_text_stays_text() {
        let metrics = "transship_lease_errors_total{kind=\"</td><script>alert(3)</script>\"} 1\n";
        let page = render(&hostile(), metrics);
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("secret"), "{page}");
        assert!(page.chars().all(|character| character == '\n' || !character.is_control()));
        assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("&lt;script&gt;alert(3)"));
        // Every tag is one of the page's own.
        for tag in page.split('<').skip(1) {
            let name: String = tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
            let own = [
                "", "html", "head", "meta", "title", "style", "body", "h1", "h2", "table", "tr", "th", "td", "bdi",
                "p", "a",
            ];
            let inside = tag.split('>').next().unwrap();
            assert!(own.contains(&name.as_str()) && !inside.contains(" on"), "{tag}");
        }
    }

    #[test]
    fn pages_are_bounded() {
        let replica = ReplicaInfo { image: "i".repeat(100_000), ..hostile().replicas.remove(0) };
        let snapshot = Snapshot { replicas: vec![replica; 20_000], ..Snapshot::default() };
        let page = render(&snapshot, "");
        assert!(page.len() < 1 << 20 && page.contains("<p>19500 more are not shown.</p>"), "{}", page.len());
    }

    #[test]
    fn what_went_wrong_is_shown() {
        let metrics = "transship_replica_ends_total{image=\"a:1\",reason=\"ended\"} 2\n\
                       transship_replica_ends_total{image=\"a:1\",reason=\"idle\"} 3\n\
                       transship_builds_total{outcome=\"failed\"} 0\n";
        let shown: Vec<Row> = errors(metrics);
        assert_eq!(shown.len(), 1);
        assert!(shown[0][1].contains("reason=&quot;ended&quot;") && shown[0][2].contains(">2<"));
    }
}
