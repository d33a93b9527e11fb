//! Kernels against the sequential ones, on generated and adversarial graphs, with one to three nodes.

use super::*;
use farside::{Config, Group, Node, Session};
use farside_testkit::Random;
use std::time::Duration;

const FORMS: [AccessForm; 2] = [AccessForm::Bulk, AccessForm::Words];

fn cluster(name: &str, count: usize) -> Vec<Node> {
    let config = Config::new(format!("graph-{name}-{}", std::process::id()))
        .memory_bytes(16 << 20)
        .cache_bytes(4 << 20);
    let mut nodes = vec![Node::create(&config).unwrap()];
    nodes.extend((1..count).map(|_| Node::join(&config).unwrap()));
    for node in &nodes {
        node.wait_for_members(count, Duration::from_secs(10)).unwrap();
    }
    nodes
}

/// Runs a member of a group on each node.
fn on_each(nodes: &[Node], body: impl Fn(&mut Session, &mut Group) + Sync) {
    std::thread::scope(|scope| {
        for node in nodes {
            scope.spawn(|| {
                let mut session = node.session().unwrap();
                let mut group = Group::join(&mut session, "graph", nodes.len()).unwrap();
                body(&mut session, &mut group);
            });
        }
    });
}

fn assert_close(ranks: &[f64], expected: &[f64]) {
    assert_eq!(ranks.len(), expected.len());
    for (rank, expected) in ranks.iter().zip(expected) {
        assert!((rank - expected).abs() <= 1e-9 * expected, "{rank} is not {expected}");
    }
}

/// Compares all kernels in both forms with the sequential ones.
fn check(session: &mut Session, group: &mut Group, graph: &Csr) {
    let shared = SharedGraph::build(session, group, graph).unwrap();
    let roots = [graph.hub(), 0, graph.vertices().saturating_sub(1), graph.vertices()];
    for form in FORMS {
        for root in roots {
            shared.clear(session).unwrap();
            shared.search(session, group, form, root).unwrap();
            let expected = sequential::distances(graph, root);
            assert_eq!(shared.distances(session).unwrap(), expected, "{form:?} from {root}");
            group.barrier(session).unwrap();
        }
        for iterations in [0, 1, 8] {
            shared.clear(session).unwrap();
            shared.rank_pages(session, group, form, iterations).unwrap();
            let ranks = shared.ranks(session).unwrap();
            assert_close(&ranks, &sequential::page_rank(graph, iterations));
            group.barrier(session).unwrap();
        }
        shared.clear(session).unwrap();
        shared.find_components(session, group, form).unwrap();
        assert_eq!(shared.labels(session).unwrap(), sequential::components(graph), "{form:?}");
        group.barrier(session).unwrap();
    }
}

/// Edges of a path in a shuffled order of the vertices.
fn path(random: &mut Random, vertices: usize) -> Vec<(u32, u32)> {
    let mut order: Vec<u32> = (0..vertices as u32).collect();
    for last in (1..vertices).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order.windows(2).map(|two| (two[0], two[1])).collect()
}

/// Graphs that a partition or a kernel could get wrong.
fn adversarial() -> Vec<Csr> {
    let mut random = Random::new(3);
    let star: Vec<_> = (0..300).map(|leaf| (299, leaf)).collect();
    let loops: Vec<_> = (0..130).flat_map(|one| [(one, one), (one, (one + 1) % 5)]).collect();
    let pairs: Vec<_> = (0..100).map(|one| (one, 199 - one)).collect();
    let mut graphs = vec![
        Csr::new(1, &[]),
        Csr::new(1, &[(0, 0)]),
        Csr::new(2, &[(0, 1), (1, 0), (0, 1)]),
        Csr::new(200, &[]),
        Csr::new(300, &star),
        Csr::new(130, &loops),
        Csr::new(200, &pairs),
        Csr::new(70, &path(&mut random, 70)),
    ];
    graphs.extend((0..6).map(|_| {
        let vertices = 1 + random.below(400);
        let edges = random.below(3 * vertices);
        let edge = |_| (random.below(vertices) as u32, random.below(vertices) as u32);
        Csr::new(vertices as usize, &(0..edges).map(edge).collect::<Vec<_>>())
    }));
    graphs
}

#[test]
fn kernels_agree_with_sequential_ones_on_adversarial_graphs() {
    for count in 1..=3 {
        let nodes = cluster(&format!("adversarial{count}"), count);
        on_each(&nodes, |session, group| {
            adversarial().iter().for_each(|graph| check(session, group, graph));
        });
    }
}

#[test]
fn kernels_agree_with_sequential_ones_on_kronecker_graphs() {
    let nodes = cluster("kronecker", 2);
    on_each(&nodes, |session, group| {
        for seed in 0..2 {
            check(session, group, &Csr::of_kronecker(&Kronecker::new(11, 16, seed).unwrap()));
        }
    });
}

#[test]
fn sequential_kernels_agree_with_definitions() {
    // 0 - 1 - 2, 3 - 4 and 5 alone.
    let graph = Csr::new(6, &[(2, 1), (0, 1), (4, 3)]);
    assert_eq!(sequential::distances(&graph, 2), [2, 1, 0, UNREACHED, UNREACHED, UNREACHED]);
    assert_eq!(sequential::components(&graph), [0, 0, 0, 3, 3, 5]);
    let ranks = sequential::page_rank(&graph, 1);
    let base = (1.0 - DAMPING + DAMPING / 6.0) / 6.0;
    let of_sum = |sum: f64| base + DAMPING * sum / 6.0;
    let expected = [of_sum(0.5), of_sum(2.0), of_sum(0.5), of_sum(1.0), of_sum(1.0), of_sum(0.0)];
    assert_close(&ranks, &expected);
    assert!((sequential::page_rank(&graph, 30).iter().sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn rows_are_sorted_without_loops_and_repetitions() {
    let graph = Csr::new(4, &[(3, 1), (1, 3), (2, 2), (3, 0), (3, 1)]);
    let rows: Vec<_> = (0..4).map(|vertex| graph.row(vertex)).collect();
    assert_eq!(rows, [&[3][..], &[3], &[], &[0, 1]]);
    assert_eq!((graph.vertices(), graph.edges(), graph.hub()), (4, 4, 3));
}

#[test]
fn parts_cover_all_rows_with_even_entries() {
    let graph = Csr::of_kronecker(&Kronecker::new(12, 8, 1).unwrap());
    for parts in 1..9 {
        let cuts = graph.cuts(parts, 64);
        assert_eq!((cuts[0], cuts[parts]), (0, graph.vertices()));
        let entries = |part: usize| graph.part(cuts[part]..cuts[part + 1]).1.len();
        let each: Vec<_> = (0..parts).map(entries).collect();
        assert_eq!(each.iter().sum::<usize>(), graph.edges());
        let even = graph.edges() / parts;
        assert!(each.iter().all(|one| *one > even / 2 && *one < even * 2), "{each:?}");
    }
}

#[test]
fn kronecker_graph_repeats_from_its_seed_and_is_skewed() {
    let of_seed = |seed| Csr::of_kronecker(&Kronecker::new(10, 16, seed).unwrap());
    let graph = of_seed(1);
    assert_eq!(graph, of_seed(1));
    assert_ne!(graph, of_seed(2));
    let degree = |vertex| graph.row(vertex).len();
    let isolated = (0..1024).filter(|vertex| degree(*vertex) == 0).count();
    assert!(degree(graph.hub()) > 200 && isolated > 100, "{} {isolated}", degree(graph.hub()));
}

#[test]
fn parameters_out_of_range_are_refused_with_their_value() {
    let refused = |scale, factor| Kronecker::new(scale, factor, 1).unwrap_err().to_string();
    assert_eq!(refused(25, 16), "scale: at most 24, and it is 25");
    assert_eq!(refused(24, 257), "edge factor: at most 256, and it is 257");
    let smallest = Csr::of_kronecker(&Kronecker::new(0, 0, 1).unwrap());
    assert_eq!((smallest.vertices(), smallest.edges()), (1, 0));
}
