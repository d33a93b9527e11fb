//! Figures 3 to 7 of 003, from calls in virtual time.

use super::{CallScene, NFP6000, NICS, SimSite};
use farside::Error;
use farside::call::{PlaceModel, Prices};

/// A chart: its axis labels and lines.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Number of the figure in the paper.
    pub number: u32,
    /// Title of the chart.
    pub title: &'static str,
    /// The label of the horizontal axis.
    pub across: &'static str,
    /// The label of the vertical axis.
    pub up: &'static str,
    /// The lines of the chart.
    pub lines: Vec<FigureLine>,
}

/// A line of a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct FigureLine {
    /// The site and the adapter.
    pub name: String,
    /// Points (x, y).
    pub points: Vec<(f64, f64)>,
}

/// The prices of Figure 7 (003 §5.1): cores by time, the network by bytes, and a core of an adapter at a quarter of a
/// host's. Chosen, since the paper has no numbers.
pub const PRICES: Prices =
    Prices { latency: 0.0, client_core: 1.0, nic_core: 0.25, host_core: 1.0, network: 4.0 };

/// Lengths of the lists, in nodes.
const NODES: [u64; 11] = [1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128];
/// Sizes of the buffers, in bytes.
const BYTES: [u64; 11] = [
    1 << 10,
    1 << 11,
    1 << 12,
    1 << 13,
    1 << 14,
    1 << 15,
    1 << 16,
    1 << 17,
    1 << 18,
    1 << 19,
    1 << 20,
];
/// Numbers of accesses of Figure 7.
pub(super) const ACCESSES: [u64; 4] = [1, 8, 32, 128];

/// Returns all figures. Deterministic.
///
/// # Errors
/// As [`CallScene::new`].
pub fn figures() -> Result<Vec<Figure>, Error> {
    let [latency, bytes] = scans()?;
    let [hash_latency, hash_bytes] = hashes()?;
    Ok(vec![
        Figure {
            number: 3,
            title: "model: search of a list of n nodes, latency",
            across: "nodes",
            up: "us",
            lines: latency,
        },
        Figure {
            number: 4,
            title: "model: search of a list of n nodes, bytes through the network",
            across: "nodes",
            up: "bytes",
            lines: bytes,
        },
        Figure {
            number: 5,
            title: "model: hash of a buffer, latency",
            across: "bytes of the buffer",
            up: "us",
            lines: hash_latency,
        },
        Figure {
            number: 6,
            title: "model: hash of a buffer, bytes through the network",
            across: "bytes of the buffer",
            up: "bytes",
            lines: hash_bytes,
        },
        Figure {
            number: 7,
            title: "model: latency against cost of N accesses",
            across: "cost",
            up: "us",
            lines: costs()?,
        },
    ])
}

/// Returns the lines of a chart: calls per adapter, and one-sided requests once.
fn series() -> Vec<(String, super::Nic, SimSite)> {
    let mut all = vec![(SimSite::Client.to_string(), NFP6000, SimSite::Client)];
    all.extend(NICS.map(|nic| (format!("call, {}", nic.name), nic, SimSite::Nic)));
    all
}

fn scans() -> Result<[Vec<FigureLine>; 2], Error> {
    lines(&NODES, |scene, nodes| scene.counted(|scene| scene.search(nodes)))
}

fn hashes() -> Result<[Vec<FigureLine>; 2], Error> {
    lines(&BYTES, |scene, bytes| scene.counted(|scene| scene.checksum(bytes)))
}

/// Returns latency and bytes of a call of each size.
fn lines(
    sizes: &[u64],
    call: impl Fn(&mut CallScene, u64) -> Result<super::Counted, Error>,
) -> Result<[Vec<FigureLine>; 2], Error> {
    let mut all = [Vec::new(), Vec::new()];
    for (name, nic, place) in series() {
        let mut scene = CallScene::new(&nic, Prices::LATENCY)?;
        scene.pin(Some(place));
        let mut points = [Vec::new(), Vec::new()];
        for size in sizes {
            let counted = call(&mut scene, *size)?;
            points[0].push((*size as f64, counted.took_ns as f64 / 1e3));
            points[1].push((*size as f64, counted.network_bytes() as f64));
        }
        for (lines, points) in all.iter_mut().zip(points) {
            lines.push(FigureLine { name: name.clone(), points });
        }
    }
    Ok(all)
}

/// Returns cost and latency at each site, for each number of accesses.
fn costs() -> Result<Vec<FigureLine>, Error> {
    let mut all = Vec::new();
    for place in SimSite::ALL {
        let mut scene = CallScene::new(&NFP6000, PRICES)?;
        scene.pin(Some(place));
        let mut points = Vec::new();
        for accesses in ACCESSES {
            let counted = scene.counted(|scene| scene.search(accesses))?;
            // The network bytes are the counted ones, not those of the model of the site.
            let model = scene.model(place);
            let network_bytes = counted.network_bytes();
            let model = PlaceModel { call_bytes: network_bytes, access_bytes: 0, ..model };
            let cost = model.cost(counted.took_ns as f64, accesses, &PRICES);
            points.push((cost, counted.took_ns as f64 / 1e3));
        }
        all.push(FigureLine { name: place.to_string(), points });
    }
    Ok(all)
}

impl Figure {
    /// Returns the first x value at which the line of this name is below the one-sided one, if any.
    pub fn crossover(&self, name: &str) -> Option<f64> {
        let base = self.lines.iter().find(|line| line.name == SimSite::Client.to_string())?;
        let line = self.lines.iter().find(|line| line.name.ends_with(name))?;
        let mut both = base.points.iter().zip(&line.points);
        both.find(|(base, line)| line.1 < base.1).map(|(base, _)| base.0)
    }
}
