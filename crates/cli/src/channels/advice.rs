//! Lists the channels that satisfy requirements on a fabric, and why the others do not.

use crate::settings::{ChannelAdvice, FabricName};
use farside::channel::table::measured;
use farside::channel::{Advice, Requirements, advise};
use farside_base::Capabilities;
use farside_command::fabrics;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table};
use farside_sim::fabric::{ADAPTIVE_ROUTING, EFA, INFINIBAND, ONE_RMA};
use serde_json::json;

/// Prints the suitable channels, best first, then the rejected ones with reasons.
pub(super) fn print(asked: &ChannelAdvice, output: Output) -> Result<(), Failure> {
    let has = capabilities(asked.fabric)?;
    let requirements = &asked.requirements;
    let advice = advise(requirements, &has);
    let fabric = asked.fabric.name();
    output.value(&json!({
        "fabric": fabric,
        "needs": requirements.needs.iter().map(|need| need.name()).collect::<Vec<_>>(),
        "fan_in": requirements.fan_in,
        "fan_out": requirements.fan_out,
        "message_bytes_max": requirements.message_bytes_max,
        "fitting": advice.candidates.iter().map(|candidate| json!({
            "channel": candidate.kind.name(),
            "family": candidate.kind.family().to_string(),
            "remarks": candidate.remarks,
        })).collect::<Vec<_>>(),
        "unfit": advice.rejections.iter().map(|rejection| json!({
            "channel": rejection.kind.name(),
            "family": rejection.kind.family().to_string(),
            "reasons": rejection.reasons,
        })).collect::<Vec<_>>(),
    }));
    output.line(format!("fabric {fabric}, {}", summary(requirements)));
    output.line("");
    output.line(fitting(&advice));
    output.line("");
    output.line(unfit(&advice));
    Ok(())
}

/// Returns the capabilities of a fabric: this machine's shared memory, or a simulated profile.
fn capabilities(fabric: FabricName) -> Result<Capabilities, Failure> {
    Ok(match fabric {
        FabricName::Shm => fabrics::shm()?.capabilities(),
        FabricName::Infiniband => INFINIBAND,
        FabricName::Adaptive => ADAPTIVE_ROUTING,
        FabricName::Efa => EFA,
        FabricName::OneRma => ONE_RMA,
    })
}

fn summary(requirements: &Requirements) -> String {
    let needs: Vec<&str> = requirements.needs.iter().map(|need| need.name()).collect();
    let needs = if needs.is_empty() { "none".to_owned() } else { needs.join(", ") };
    format!(
        "messages of at most {} B, {} to {}; needs: {needs}",
        requirements.message_bytes_max, requirements.fan_in, requirements.fan_out
    )
}

fn fitting(advice: &Advice) -> String {
    if advice.candidates.is_empty() {
        return "no channel fits".to_owned();
    }
    let mut table = Table::new(["fits, best first", "# HRT", "# requests", "remarks"]).left(3);
    for one in &advice.candidates {
        let row = measured(one.kind);
        table.row([
            format!("  {}", one.kind.name()),
            row.half_round_trips.to_string(),
            format!("{} + {}", row.sender_requests, row.receiver_requests),
            one.remarks.join("; "),
        ]);
    }
    table.text()
}

fn unfit(advice: &Advice) -> String {
    if advice.rejections.is_empty() {
        return "every channel fits".to_owned();
    }
    let mut table = Table::new(["does not fit", "because"]).left(1);
    for one in &advice.rejections {
        table.row([format!("  {}", one.kind.name()), one.reasons.join("; ")]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::channel::Need;

    #[test]
    fn advice_names_every_channel_once() {
        let requirements = Requirements::default().needs([Need::Blocking]).fan_in(64);
        let advice = advise(&requirements, &INFINIBAND);
        let text = format!("{}\n{}", fitting(&advice), unfit(&advice));
        assert_eq!(text.lines().count(), 22, "{text}");
        assert!(text.contains("its receiver must poll"), "{text}");
        assert!(summary(&requirements).contains("64 to 1; needs: blocking"));
    }

    #[test]
    fn fewer_capabilities_leave_fewer_channels() {
        let count = |fabric| {
            advise(&Requirements::default(), &capabilities(fabric).unwrap()).candidates.len()
        };
        let counts = [FabricName::Infiniband, FabricName::Adaptive, FabricName::OneRma].map(count);
        assert!(counts[0] > counts[1] && counts[1] > counts[2] && counts[2] > 0, "{counts:?}");
    }

    #[test]
    fn empty_lists_have_a_message() {
        let none = Advice::default();
        assert_eq!(
            (fitting(&none).as_str(), unfit(&none).as_str()),
            ("no channel fits", "every channel fits")
        );
    }
}
