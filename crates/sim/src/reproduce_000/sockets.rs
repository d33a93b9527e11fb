//! NUMA: Tables II and III of 000 §III-D.

use super::scene::{Batch, NextBatch, Request, Setup, Verb, latency, stream};
use crate::fabric::{CONNECTX3_IB, E5_2640_V2, SocketPlacement};
use crate::paper_figure::{Claim, PaperFigure};
use farside_fabric::FabricError;
use std::rc::Rc;

/// Socket of the adapter (000 §III), and the other one.
const OWN: u8 = 1;
const ALT: u8 = 0;

/// Placements of core and memory at one end, in the order of Table III.
const ENDS: [(&str, u8, u8); 4] = [
    ("own core, own memory", OWN, OWN),
    ("own core, alt memory", OWN, ALT),
    ("alt core, own memory", ALT, OWN),
    ("alt core, alt memory", ALT, ALT),
];

/// Microseconds of READ and WRITE, then millions a second of both: rows are the requester's placements, columns the
/// responder's, as [`ENDS`].
const TABLE_3: [[[f64; 4]; 4]; 4] = [
    [
        [1.78, 0.93, 6.17, 7.06],
        [1.78, 0.94, 6.13, 7.06],
        [1.92, 1.06, 3.11, 4.76],
        [1.97, 1.17, 3.13, 4.76],
    ],
    [
        [1.79, 0.93, 6.15, 7.06],
        [1.79, 0.94, 6.15, 7.14],
        [1.94, 1.07, 3.11, 4.76],
        [1.97, 1.17, 3.11, 4.76],
    ],
    [
        [2.06, 1.07, 6.15, 7.06],
        [2.06, 1.08, 6.15, 7.06],
        [2.20, 1.20, 3.11, 3.36],
        [2.24, 1.31, 3.11, 3.19],
    ],
    [
        [2.16, 1.17, 6.15, 7.06],
        [2.16, 1.19, 6.15, 7.06],
        [2.30, 1.32, 3.17, 3.30],
        [2.34, 1.43, 3.13, 3.19],
    ],
];

const fn placement((_, core, memory): (&str, u8, u8)) -> SocketPlacement {
    SocketPlacement { port: 0, port_socket: OWN, thread_socket: core, memory_socket: memory }
}

/// Returns Table II: local memory, from which parameters come.
pub(super) fn memory() -> PaperFigure {
    let local_ns = E5_2640_V2.miss_ns as f64;
    let remote_ns = local_ns + CONNECTX3_IB.sockets.crossing_ns as f64;
    let claims = vec![
        Claim::new("local socket", "ns", local_ns, 92.0).input(),
        Claim::new("remote socket", "ns", remote_ns, 162.0).input(),
        Claim::new("local socket, copies", "GB/s", E5_2640_V2.copy_bytes_per_ns as f64, 3.7)
            .input(),
    ];
    PaperFigure {
        id: "II",
        title: "Memory of both sockets",
        claims,
        remarks: vec!["The bandwidth of a core to the other socket, 2.27 GB/s, is not modelled."],
        ..PaperFigure::default()
    }
}

/// Why the rate of a cell deviates.
const LABELS: &str = "The paper's rate falls where the responder's core is on the other socket; the responder's core takes no part in one-sided requests, so in the model it falls where the memory is.";

/// Returns Table III: 16 placements.
pub(super) fn placements() -> Result<PaperFigure, FabricError> {
    let mut claims = Vec::new();
    for (row, client) in ENDS.into_iter().enumerate() {
        for (column, server) in ENDS.into_iter().enumerate() {
            let (client_at, server_at) = (placement(client), placement(server));
            let setup = Setup { client: client_at, server: server_at, ..Setup::new(8) };
            let paper = TABLE_3[row][column];
            for (number, (verb, what)) in
                [(Verb::Read, "READ"), (Verb::Inline, "WRITE")].into_iter().enumerate()
            {
                let next: NextBatch = Rc::new(move |_, _| Batch {
                    list: vec![Request::new(verb, 0, 32, 0)],
                    units: 1,
                    prepare_ns: 0,
                });
                let name = format!("{what}: {} -> {}", client.0, server.0);
                let (us, rate) = (latency(&setup, &next)?, stream(&setup, 8, &next)?);
                let claim = Claim::new(&name, "us", us, paper[number]);
                claims.push(claim.because(LATENCY));
                let claim = Claim::new(&name, "M/s", rate, paper[2 + number]);
                claims.push(claim.because(if column == 0 { LOCAL } else { LABELS }));
            }
        }
    }
    let model = |cell: usize| claims[cell].model;
    let (read_us, read_rate) = (model(60) / model(0) - 1.0, 1.0 - model(61) / model(1));
    claims.push(Claim::new("worst over best, READ latency", "+", read_us, 0.31));
    claims.push(Claim::new("worst under best, READ rate", "-", read_rate, 0.49));
    Ok(PaperFigure {
        id: "III",
        title: "Placements of core and memory: requester -> responder, 32 B, port on socket 1",
        claims,
        remarks: vec![
            "7.06 M/s, 4.76 M/s and 3.11 M/s are inputs of the profile.",
            "WRITEs are inline, so the requester's memory does not matter to them.",
        ],
        ..PaperFigure::default()
    })
}

/// Why the rate of a cell deviates where everything at the responder is on the port's socket.
const LOCAL: &str = "The bytes of a READ cross to the requester's memory in the model; the paper shows no cost of that.";
/// Why the latency of a cell deviates.
const LATENCY: &str = "In the model the responder's memory delays a request wherever its core is; in the paper only if the core is on the other socket too.";
