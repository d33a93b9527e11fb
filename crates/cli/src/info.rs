//! `farside info`: prints the fabrics with their capabilities, the default fabric and why, and the clusters running on
//! this machine.

use farside::durable::{self, FolderReport};
use farside_base::{Capabilities, FlushScope};
use farside_command::fabrics::{self, Found};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes};
use farside_command::rdma;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cluster with nodes on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Running {
    cluster: String,
    /// Number of its nodes that listen on this machine.
    nodes: usize,
    /// Number of members, from its coordinator; `None` if that does not answer.
    members: Option<usize>,
    /// Maximum number of members.
    members_max: Option<usize>,
}

/// Timeout of a coordinator's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Prints fabrics and running clusters.
pub(crate) fn run(mut folders: Vec<PathBuf>, output: Output) -> Result<(), Failure> {
    if folders.is_empty() {
        folders = vec![PathBuf::from("."), std::env::temp_dir()];
    }
    let reports: Vec<_> = folders.iter().map(|folder| durable::inspect_folder(folder)).collect();
    let found = fabrics::all();
    // An unusable folder of names is reported below, with a remedy.
    let names = farside_fabric_shm::listening();
    let unknown = names.as_ref().err().map(ToString::to_string);
    let mut running = clusters(&names.unwrap_or_default());
    ask_members(&found, &mut running);
    let (chosen, reason) = choice(&found);
    output.value(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "fabrics": found.iter().map(fabric_value).collect::<Vec<_>>(),
        "chosen": chosen,
        "reason": reason,
        "clusters": running,
        "clusters_unknown": unknown,
        "durable": folders.iter().zip(&reports).map(durable_value).collect::<Vec<_>>(),
    }));
    for fabric in &found {
        output.line(fabric_text(fabric));
    }
    output.line(format!("chosen: {} ({reason})", chosen.unwrap_or("none")));
    if let Some(reason) = unknown {
        output.line(format!("running clusters of this user: not known: {reason}"));
    } else if running.is_empty() {
        output.line("running clusters of this user: none");
    }
    for one in &running {
        output.line(one.text());
    }
    for (folder, report) in folders.iter().zip(&reports) {
        output.line(durable_text(folder, report));
    }
    Ok(())
}

fn durable_value((folder, report): (&PathBuf, &Result<FolderReport, farside::Error>)) -> Value {
    match report {
        Ok(report) => json!({
            "folder": folder,
            "medium": format!("{:?}", report.promise.medium),
            "survives_process": report.promise.survives_process,
            "survives_power": report.promise.survives_power,
            "mapped_as_persistent_memory": report.mapping.to_string(),
            "persistence_domain": report.domain.as_ref().map(ToString::to_string),
        }),
        Err(error) => json!({ "folder": folder, "error": error.to_string() }),
    }
}

fn durable_text(folder: &Path, report: &Result<FolderReport, farside::Error>) -> String {
    let report = match report {
        Ok(report) => report,
        Err(error) => return format!("durable log in {}: not known: {error}", folder.display()),
    };
    let mut lines = vec![
        format!("durable log in {}: {}", folder.display(), report.promise),
        format!("  mapped as persistent memory: {}", report.mapping),
    ];
    if let Some(domain) = &report.domain {
        lines.push(format!("  persistence domain: {domain}"));
        lines.push("  commits without a system call: --persistent-memory with --state".to_owned());
    }
    lines.join("\n")
}

impl Running {
    fn text(&self) -> String {
        match (self.members, self.members_max) {
            (Some(members), Some(most)) => {
                format!("running: {}, members {members} of {most}", self.cluster)
            }
            _ => format!(
                "running: {}, {} nodes; members unknown: its coordinator does not answer",
                self.cluster, self.nodes
            ),
        }
    }
}

/// Queries the coordinator of each cluster for its members and their maximum.
fn ask_members(found: &[Found], running: &mut [Running]) {
    let shared_memory = found.iter().find(|fabric| fabric.name == "shm");
    let Some(Ok(fabric)) = shared_memory.map(|found| &found.fabric) else {
        return;
    };
    for one in running {
        if let Ok(occupancy) = farside::occupancy(&**fabric, &one.cluster, ANSWER_TIMEOUT) {
            (one.members, one.members_max) = (Some(occupancy.members), Some(occupancy.members_max));
        }
    }
}

fn choice(found: &[Found]) -> (Option<&'static str>, String) {
    match found.iter().find(|fabric| fabric.name == "shm").map(|fabric| &fabric.fabric) {
        Some(Ok(_)) => {
            let reason = "for nodes on one machine, shared memory supports one-sided access";
            (Some("shm"), reason.to_owned())
        }
        Some(Err(failure)) => (None, format!("{failure}; see farside doctor")),
        None => (None, "built without a fabric between processes".to_owned()),
    }
}

/// Returns the capabilities, by the names used in errors and requirements.
fn capabilities(has: &Capabilities) -> Vec<(&'static str, String)> {
    let yes = |does: bool| (if does { "yes" } else { "no" }).to_owned();
    vec![
        ("write", yes(has.write)),
        ("read", yes(has.read)),
        ("atomics", format!("{:?}", has.atomics).to_lowercase()),
        ("extended_atomics", yes(has.extended_atomics)),
        ("atomic_write", yes(has.atomic_write)),
        ("flush", format!("{:?}", has.flush).to_lowercase()),
        ("visible_by", has.flush_way(FlushScope::Visible).name().to_owned()),
        ("persistent_by", has.flush_way(FlushScope::Persistent).name().to_owned()),
        ("own_memory", yes(has.own_memory)),
        ("protected", yes(has.protected)),
        ("send", yes(has.send)),
        ("immediate", yes(has.immediate)),
        ("shared_receive_queue", yes(has.shared_receive_queue)),
        ("message_order", yes(has.message_order)),
        ("byte_order", yes(has.byte_order)),
        ("words", format!("{:?}", has.words).to_lowercase()),
        ("completion_means_placed", yes(has.completion_means_placed)),
        ("one_sided", yes(has.one_sided)),
        ("loads", yes(has.loads)),
        ("sleep", yes(has.sleep)),
        ("receiver_not_ready", format!("{:?}", has.receiver_not_ready).to_lowercase()),
        ("inline_bytes_max", has.inline_bytes_max.to_string()),
        ("send_bytes_max", has.send_bytes_max.to_string()),
        ("transfer_bytes_max", bytes(has.transfer_bytes_max)),
        ("slices_max", has.slices_max.to_string()),
        ("outstanding_max", has.outstanding_max.to_string()),
        ("links_max", has.links_max.to_string()),
        ("region_bytes_max", bytes(has.region_bytes_max)),
        ("mirrored_regions", yes(has.mirrored_regions)),
        ("device_bytes_max", bytes(has.device_bytes_max)),
        ("device_words", yes(has.device_words)),
    ]
}

fn fabric_value(found: &Found) -> Value {
    let mut value = json!({ "name": found.name, "reach": found.reach });
    match &found.fabric {
        Ok(fabric) => {
            let has = capabilities(&fabric.capabilities());
            let has: serde_json::Map<_, _> =
                has.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
            value["usable"] = json!(true);
            value["capabilities"] = json!(has);
        }
        Err(failure) => {
            value["usable"] = json!(false);
            value["error"] = json!(failure);
        }
    }
    if let Some(choice) = &found.choice {
        value["choice"] = rdma::choice_value(choice);
    }
    if found.name == "verbs" {
        value["devices"] = found.devices.iter().map(rdma::device_value).collect();
    }
    value
}

fn fabric_text(found: &Found) -> String {
    let mut lines = vec![format!("fabric {}: {}", found.name, found.reach)];
    match &found.fabric {
        Ok(fabric) => {
            lines.push("  usable".to_owned());
            lines.extend(found.choice.iter().map(|choice| format!("  would use {choice}")));
            let has = capabilities(&fabric.capabilities());
            let parts: Vec<_> = has.iter().map(|(name, value)| format!("{name} {value}")).collect();
            lines.extend(parts.chunks(4).map(|some| format!("  {}", some.join(", "))));
            lines.extend(flush_lines(&fabric.capabilities()));
        }
        Err(failure) => lines.push(format!("  not usable: {failure}")),
    }
    let devices = found.devices.iter().flat_map(rdma::device_lines);
    lines.extend(devices.map(|line| format!("  device {line}")));
    lines.join("\n")
}

/// Describes how a WRITE is confirmed visible and persistent.
fn flush_lines(has: &Capabilities) -> [String; 2] {
    let way = |scope| has.flush_way(scope);
    [
        format!("  confirmation that a WRITE is visible: {}", way(FlushScope::Visible)),
        format!("  confirmation that a WRITE is persistent: {}", way(FlushScope::Persistent)),
    ]
}

/// Extracts the clusters from listening names: node `n` of cluster `c` listens at `farside.c.n-AGE`.
fn clusters(names: &[String]) -> Vec<Running> {
    let mut found: Vec<Running> = Vec::new();
    for name in names.iter().filter_map(|name| name.strip_prefix("farside.")) {
        let Some((cluster, node)) = name.rsplit_once('.') else {
            continue;
        };
        let number = node.split_once('-').and_then(|(number, _age)| number.parse::<u16>().ok());
        if number.is_none() {
            continue;
        }
        match found.iter_mut().find(|one| one.cluster == cluster) {
            Some(one) => one.nodes += 1,
            None => found.push(Running {
                cluster: cluster.to_owned(),
                nodes: 1,
                members: None,
                members_max: None,
            }),
        }
    }
    found.sort_by(|a, b| a.cluster.cmp(&b.cluster));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_extracted_from_names() {
        let names = [
            "farside.lab",
            "farside.lab.0-1",
            "farside.lab.12-1c",
            "farside.a.b.3-4",
            "foreign.0-1",
            "x",
        ];
        let expected = [("a.b", 1), ("lab", 2)].map(|(cluster, nodes)| (cluster.to_owned(), nodes));
        let found = clusters(&names.map(str::to_owned));
        let found: Vec<_> = found.into_iter().map(|one| (one.cluster, one.nodes)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn folders_are_described_with_their_mapping() {
        let folder = std::env::temp_dir();
        let report = durable::inspect_folder(&folder);
        let (text, value) = (durable_text(&folder, &report), durable_value((&folder, &report)));
        let is_mapped = value["mapped_as_persistent_memory"] == "yes, by MAP_SYNC";
        assert_eq!(value["medium"] == "PersistentMemory", is_mapped);
        assert_eq!(value["persistence_domain"].is_string(), is_mapped);
        assert_eq!(text.contains("persistence domain:"), is_mapped, "{text}");
        assert!(text.contains("\n  mapped as persistent memory: "), "{text}");
        let missing = folder.join("no such folder");
        let report = durable::inspect_folder(&missing);
        assert!(durable_text(&missing, &report).contains("not known: "));
        assert!(durable_value((&missing, &report))["error"].is_string());
    }

    #[test]
    fn every_fabric_is_described() {
        for found in fabrics::all() {
            let text = fabric_text(&found);
            assert!(text.contains(found.name));
            let says =
                text.contains("confirmation that a WRITE is persistent: the target's program");
            let kept = |has: Capabilities| has.flush == FlushScope::Persistent;
            assert_eq!(says, found.fabric.as_ref().is_ok_and(|one| !kept(one.capabilities())));
            assert_eq!(fabric_value(&found)["name"], found.name);
        }
    }
}
