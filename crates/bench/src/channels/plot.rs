//! SVG plots of latency and message rate over the message size, or of distributions.

use super::entry::{Entry, Payload};
use crate::plot::{Drawing, Failed, NAMES_WIDTH, name_lines};
use farside_command::failure::Failure;
use farside_command::result_file;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const WIDTH: u32 = 1500;
const HEIGHT: u32 = 760;

/// The points of a line: x and y.
type Points = Vec<(f64, f64)>;

/// Draws the entries and writes the file.
pub(super) fn draw(path: &Path, entries: &[Entry]) -> Result<(), Failure> {
    let text = svg(entries).map_err(|e| Failure::system(format!("drawing: {e}")))?;
    result_file::write(path, text.as_bytes())
}

fn svg(entries: &[Entry]) -> Result<String, Failed> {
    let drawn = drawn(entries);
    let each = entries.iter().any(|entry| entry.distribution.is_some());
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in &drawn {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut text = String::new();
    let whole = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
    whole.fill(&WHITE)?;
    let (panels, key) = whole.split_horizontally(WIDTH - NAMES_WIDTH);
    let (left, right) = panels.split_horizontally((WIDTH - NAMES_WIDTH) / 2);
    if each {
        let (shares, sums) = (shares(&drawn, &names, false), shares(&drawn, &names, true));
        panel(&left, "round trips, %, by us", "us", &names, &shares)?;
        panel(&right, "round trips, cumulative %, by us", "us", &names, &sums)?;
    } else {
        let latency = lines(&drawn, &names, |entry| Some(entry.latency_ns?.median / 1e3));
        panel(&left, "one way, us, median", BYTES, &names, &latency)?;
        let rate = lines(&drawn, &names, |entry| Some(entry.messages_per_second?.median / 1e6));
        panel(&right, "messages, millions a second, median", BYTES, &names, &rate)?;
    }
    name_lines(&key, &names)?;
    whole.present()?;
    drop((left, right, panels, key, whole));
    Ok(text)
}

const BYTES: &str = "bytes of a message";

fn panel(
    area: &Drawing<'_>,
    title: &str,
    across: &str,
    names: &[&str],
    lines: &BTreeMap<usize, Points>,
) -> Result<(), Failed> {
    let places = if across == BYTES { 0 } else { 2 };
    let lines: Vec<_> = lines.iter().map(|(number, points)| (*number, &**points)).collect();
    crate::plot::panel(area, title, (across, places), names.len(), &lines)
}

/// Returns the entries that are drawn, each with the name of its line: those with the form of the first entry, and
/// logged ones. Distributions have a line for each size.
fn drawn(entries: &[Entry]) -> Vec<(String, &Entry)> {
    let form = |entry: &Entry| (entry.payload, entry.wait);
    let logged = |entry: &Entry| entry.payload == Payload::Logged;
    let first = entries.first().map(form);
    let plain = entries.iter().filter(|entry| first == Some(form(entry)) || logged(entry));
    let name = |entry: &Entry| {
        let setting = entry.setting();
        let form = if entry.payload == Payload::Logged { "logged" } else { "" };
        let bytes = match &entry.distribution {
            Some(_) => format!("{} B", entry.message_bytes),
            None => String::new(),
        };
        let words = [entry.channel, &*setting, form, &*bytes];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    };
    plain.map(|entry| (name(entry), entry)).collect()
}

/// Returns the histogram of round trips as lines; with `sum`, the cumulative one.
fn shares(drawn: &[(String, &Entry)], names: &[&str], sum: bool) -> BTreeMap<usize, Points> {
    let mut lines = BTreeMap::new();
    for (name, entry) in drawn {
        let number = names.iter().position(|known| known == name);
        if let (Some(number), Some(distribution)) = (number, &entry.distribution) {
            let mut before = 0.0;
            let point = |(from_ns, share): &(f64, f64)| {
                before = if sum { before + share } else { *share };
                (from_ns / 1e3, before * 100.0)
            };
            let points: Points = distribution.buckets.iter().map(point).collect();
            lines.insert(number, points.into_iter().filter(|point| point.1 > 0.0).collect());
        }
    }
    lines
}

/// Returns the points of each line, by message size.
fn lines(
    drawn: &[(String, &Entry)],
    names: &[&str],
    measure: impl Fn(&Entry) -> Option<f64>,
) -> BTreeMap<usize, Points> {
    let mut lines: BTreeMap<usize, Points> = BTreeMap::new();
    for (name, entry) in drawn {
        let number = names.iter().position(|known| known == name);
        let value = measure(entry).filter(|value| *value > 0.0 && value.is_finite());
        if let (Some(number), Some(value)) = (number, value) {
            lines.entry(number).or_default().push((f64::from(entry.message_bytes), value));
        }
    }
    for points in lines.values_mut() {
        points.sort_by(|one, two| one.0.total_cmp(&two.0));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::super::window::Figure;
    use super::super::entry::Stream;
    use super::*;
    use crate::plot::color;
    use crate::settings::Pattern;
    use farside::channel::Kind;

    #[test]
    fn every_channel_has_its_own_line_and_colour() {
        let stream = Stream::of(&Figure::from_windows(vec![100.0], 1));
        let entries: Vec<Entry> = Kind::ALL
            .into_iter()
            .flat_map(|kind| {
                [8, 65_536]
                    .map(|bytes| Entry::new(kind, bytes, Pattern::OneToOne, 1).with_stream(stream))
            })
            .collect();
        let text = svg(&entries).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(Kind::ALL.iter().all(|kind| text.contains(kind.name())));
        let colors: std::collections::HashSet<_> = (0..20)
            .map(|number| {
                let HSLColor(hue, saturation, light) = color(number, 20);
                [hue, saturation, light].map(f64::to_bits)
            })
            .collect();
        assert_eq!(colors.len(), 20);
    }

    #[test]
    fn no_entries_give_an_empty_drawing() {
        assert!(svg(&[]).unwrap().contains("</svg>"));
    }
}
