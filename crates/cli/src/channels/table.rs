//! Prints the table of all channels: Table 2 of paper 001, as measured here.

use farside::channel::table::{Column, DEVIATIONS, MEASURED, PAPER, Row};
use farside::channel::{Family, Kind};
use farside_command::output::{Output, Table};
use serde::Serialize;
use serde_json::{Map, Value, json};

const COLUMNS: usize = 12;

/// Column heads, as in Table 2.
const HEADS: [&str; COLUMNS] = [
    "channel",
    "# HRT",
    "# requests send",
    "recv",
    "blocking recv",
    "zero-copy send",
    "recv",
    "variable size",
    "memory 1:N",
    "N:1",
    "requests",
    "in order",
];

/// A cell that differs from the paper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Deviation {
    channel: &'static str,
    column: Column,
    paper: String,
    measured: String,
    reason: &'static str,
}

/// Prints the table, with the reason for each cell that differs from the paper.
pub(super) fn print(output: Output) {
    let deviations = deviations(&MEASURED, &PAPER, DEVIATIONS);
    output.value(&json!({
        "channels": MEASURED.iter().map(value).collect::<Vec<_>>(),
        "deviations": deviations,
    }));
    output.line(text(&MEASURED, &deviations));
    output.line("");
    output.line(
        "HRT: half round trips; yes/no: depends on the second channel; measured on the simulated fabric",
    );
    for (number, deviation) in deviations.iter().enumerate() {
        let Deviation { channel, column, paper, reason, .. } = deviation;
        let column = column.replace('_', " ");
        output.line(format!("*{} {channel}, {column}: {paper} in the paper; {reason}", number + 1));
    }
}

/// Returns the cells of a row with the names of their fields, in column order.
fn cells(row: &Row) -> [(Column, String); COLUMNS - 1] {
    [
        ("half_round_trips", row.half_round_trips.to_string()),
        ("sender_requests", row.sender_requests.to_string()),
        ("receiver_requests", row.receiver_requests.to_string()),
        ("blocking", row.blocking.to_string()),
        ("zero_copy_send", row.zero_copy_send.to_string()),
        ("zero_copy_receive", row.zero_copy_receive.to_string()),
        ("variable_size", row.variable_size.to_string()),
        ("memory_one_to_many", row.memory_one_to_many.to_string()),
        ("memory_many_to_one", row.memory_many_to_one.to_string()),
        ("requests", row.requests.to_string()),
        ("order", row.order.to_string()),
    ]
}

/// Returns the cells that differ from the paper, in table order.
fn deviations(
    measured: &[Row],
    paper: &[Row],
    reasons: &[(Kind, Column, &'static str)],
) -> Vec<Deviation> {
    let mut found = Vec::new();
    for (ours, theirs) in measured.iter().zip(paper) {
        for ((column, ours_text), (_, theirs_text)) in cells(ours).into_iter().zip(cells(theirs)) {
            if ours_text == theirs_text {
                continue;
            }
            let reason =
                reasons.iter().find(|(kind, named, _)| *kind == ours.kind && *named == column);
            found.push(Deviation {
                channel: ours.kind.name(),
                column,
                paper: theirs_text,
                measured: ours_text,
                // Tested: every deviation has a reason.
                reason: reason.map_or("", |(_, _, reason)| reason),
            });
        }
    }
    found
}

fn value(row: &Row) -> Value {
    let mut map = Map::new();
    map.insert("channel".to_owned(), row.kind.name().into());
    map.insert("family".to_owned(), row.kind.family().to_string().into());
    map.insert("sentence".to_owned(), row.kind.sentence().into());
    map.extend(cells(row).map(|(column, text)| (column.to_owned(), text.into())));
    Value::Object(map)
}

fn text(measured: &[Row], deviations: &[Deviation]) -> String {
    let mut table = Table::new(HEADS);
    let mut family: Option<Family> = None;
    for row in measured {
        if family != Some(row.kind.family()) {
            family = Some(row.kind.family());
            let mut line = [const { String::new() }; COLUMNS];
            line[0] = row.kind.family().to_string();
            table.row(line);
        }
        let mut line = [const { String::new() }; COLUMNS];
        line[0] = format!("  {}", row.kind.name());
        for (cell, (column, text)) in line[1..].iter_mut().zip(cells(row)) {
            let mark = deviations
                .iter()
                .position(|one| one.channel == row.kind.name() && one.column == column);
            *cell = match mark {
                Some(number) => format!("{text}*{}", number + 1),
                None => text,
            };
        }
        table.row(line);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::channel::table::Count;

    #[test]
    fn every_channel_has_a_line_in_its_family() {
        let text = text(&PAPER, &[]);
        assert_eq!(text.lines().count(), 1 + 6 + 20);
        for kind in Kind::ALL {
            assert_eq!(text.matches(&format!("\n  {} ", kind.name())).count(), 1, "{kind}");
        }
    }

    #[test]
    fn deviating_cell_is_marked_and_explained() {
        let mut ours = PAPER;
        ours[1].half_round_trips = Count::AtLeast(7);
        let reasons = [(Kind::SendShared, "half_round_trips", "it is slow")];
        let found = deviations(&ours, &PAPER, &reasons);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].paper.as_str(), found[0].reason), ("1", "it is slow"));
        assert!(text(&ours, &found).contains(">=7*1"));
    }

    #[test]
    fn every_deviation_has_a_reason() {
        let found = deviations(&MEASURED, &PAPER, DEVIATIONS);
        assert!(found.iter().all(|one| !one.reason.is_empty()), "{found:?}");
        assert_eq!(found.len(), DEVIATIONS.len());
    }
}
