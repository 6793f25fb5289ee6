//! Edge lists, generators and suggestions, with their errors.

use mitra_topology::edge_list::{self, EdgeListError};
use mitra_topology::generators::{self, GeneratorError};
use mitra_topology::{Graph, GraphError, MAX_EDGES, MAX_VERTICES, Measures, SuggestError, suggest};
use proptest::prelude::*;

#[test]
fn edge_list_allows_comments_blank_lines_isolated_vertices_and_repeated_edges() {
    let graph = edge_list::parse(b"# three and one\n\n0 1\r\n1\t2 # the last\n 2 1 \n3\n").unwrap();
    assert_eq!(graph, Graph::new(4, &[(0, 1), (1, 2)]).unwrap());
    assert_eq!(edge_list::parse(b"0").unwrap().vertex_count(), 1);
}

#[test]
fn malformed_edge_list_is_refused_with_its_line() {
    for (text, expected) in [
        (&b"0 1\n1 x\n"[..], "line 2: `x` is no vertex: a number from 0 to 99999"),
        (b"0 1\n\n-1 0\n", "line 3: `-1` is no vertex"),
        (b"0 1\n0 100000\n", "line 2: `100000` is no vertex"),
        (b"99999999999999999999 0", "line 1: `99999999999999999999` is no vertex"),
        (b"0 1 2\n", "line 1: `2` after an edge"),
        (b"0 0\n", "line 1: the edge 0 0 leads from a vertex to itself"),
        (b"0 1\n3 4\n", "vertex 2 is missing, but 4 is named"),
        (b"0 \xff\n", "line 1: not text"),
        (b"0 \x1b[31mred\n", "line 1: `\\u{1b}[31mred` is no vertex"),
        (b"", "at least one"),
        (b"# nothing\n", "at least one"),
    ] {
        let error = edge_list::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }
    let word = "1".repeat(100_000);
    assert!(edge_list::parse(word.as_bytes()).unwrap_err().to_string().len() < 120);
    assert_eq!(edge_list::parse(&vec![b'\n'; edge_list::MAX_BYTES + 1]), Err(EdgeListError::TooLong));
    let many = "0 1\n".repeat(MAX_EDGES + 1);
    assert!(edge_list::parse(many.as_bytes()).unwrap_err().to_string().contains("limit of 5000000 edges"));
}

proptest! {
    #[test]
    fn parse_accepts_or_refuses_any_bytes_without_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = edge_list::parse(&text);
    }

    #[test]
    fn edge_lists_round_trip(n in 1usize..40, degree in 0usize..8, seed: u64) {
        prop_assume!(degree < n && n * degree % 2 == 0);
        let graph = generators::generate("random-regular", &[n, degree], seed).unwrap();
        prop_assert_eq!(graph.degree_range(), (degree, degree));
        prop_assert_eq!(edge_list::parse(edge_list::format(&graph).as_bytes()), Ok(graph));
    }
}

#[test]
fn graphs_beyond_their_limits_are_refused() {
    assert_eq!(Graph::new(0, &[]), Err(GraphError::Empty));
    assert_eq!(Graph::new(MAX_VERTICES + 1, &[]), Err(GraphError::TooManyVertices(MAX_VERTICES + 1)));
    assert_eq!(Graph::new(2, &[(0, 2)]), Err(GraphError::NoSuchVertex(0, 2, 2)));
    assert_eq!(Graph::new(2, &[(1, 1)]), Err(GraphError::Loop(1)));
}

#[test]
fn generated_graphs_have_the_properties_of_their_family() {
    // Vertices, edges, least and greatest degree.
    type Case = (&'static str, &'static [usize], usize, usize, (usize, usize));
    let cases: [Case; 12] = [
        ("ring", &[7], 7, 7, (2, 2)),
        ("complete", &[6], 6, 15, (5, 5)),
        ("complete", &[1], 1, 0, (0, 0)),
        ("star", &[9], 9, 8, (1, 8)),
        ("empty", &[4], 4, 0, (0, 0)),
        ("hypercube", &[0], 1, 0, (0, 0)),
        ("hypercube", &[5], 32, 80, (5, 5)),
        ("petersen", &[], 10, 15, (3, 3)),
        ("grid", &[3, 4], 12, 17, (2, 4)),
        ("torus", &[3, 5], 15, 30, (4, 4)),
        ("random-regular", &[10, 9], 10, 45, (9, 9)),
        ("random-regular", &[50, 7], 50, 175, (7, 7)),
    ];
    for (name, sizes, n, edges, degrees) in cases {
        let graph = generators::generate(name, sizes, 3).unwrap();
        assert_eq!(
            (graph.vertex_count(), graph.edge_count(), graph.degree_range()),
            (n, edges, degrees),
            "{name} {sizes:?}"
        );
    }
    // The Petersen graph is the only cubic graph with 10 vertices and diameter 2.
    let petersen = generators::generate("petersen", &[], 0).unwrap();
    assert!(petersen.vertices().all(|v| petersen.represented(&petersen.represented(&[v])).len() == 10));
    assert_ne!(
        generators::generate("random-regular", &[40, 3], 1).unwrap(),
        generators::generate("random-regular", &[40, 3], 2).unwrap()
    );
}

#[test]
fn generators_refuse_invalid_sizes() {
    let refused = |name: &str, sizes: &[usize], expected: &str| {
        let error = generators::generate(name, sizes, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "{name} {sizes:?}: {error:?}");
    };
    refused("wheel", &[5], "no family `wheel`: there are ring, complete");
    refused("ring", &[], "ring takes 1: ring N");
    refused("petersen", &[10], "petersen takes 0: petersen");
    refused("random-regular", &[10], "random-regular takes 2: random-regular N DEGREE");
    refused("ring", &[2], "at least 3");
    refused("torus", &[2, 9], "at least 3 rows");
    refused("hypercube", &[17], "dimension 0 to 16");
    refused("random-regular", &[5, 3], "is even");
    refused("random-regular", &[4, 4], "below the number of vertices");
    refused("empty", &[0], "at least one");
    refused("grid", &[usize::MAX, usize::MAX], "limit of 100000");
    refused("random-regular", &[100_000, 99_999], "limit of 5000000 edges");
    refused("complete", &[100_000], "limit of 5000000 edges");
    assert!(
        matches!(generators::generate(&"x".repeat(1 << 20), &[], 0), Err(GeneratorError::Unknown(name)) if name.len() == 40)
    );
}

#[test]
fn suggestions_tolerate_the_requested_crashes() {
    for (n, f) in [(1, 0), (5, 2), (5, 3), (5, 4), (9, 6), (10, 8), (12, 9), (16, 12), (24, 17), (30, 23)] {
        let suggestion = suggest(n, f, 4, &|_| ()).unwrap();
        let measures = Measures::of(&suggestion.graph, 4, &|_| ());
        assert!(measures.hbo_f.is_exact() && measures.hbo_f.at_least >= f, "{n} {f}: {:?}", measures.hbo_f);
        assert_eq!(suggestion.graph.degree_range().1, suggestion.degree);
        assert!(suggestion.least_degree <= suggestion.degree);
    }
    // Two crashes of five leave a majority, so no edge is needed. With one process of five alive,
    // it must represent three: degree 2. With one of ten alive, it must represent six: degree 5.
    assert_eq!([(5, 2), (5, 4), (10, 9)].map(|(n, f)| suggest(n, f, 4, &|_| ()).unwrap().degree), [0, 2, 5]);
    assert_eq!(suggest(10, 8, 4, &|_| ()).unwrap().degree, 3);
}

#[test]
fn large_suggestion_is_proved_by_its_lower_bound() {
    let suggestion = suggest(600, 450, 1, &|_| ()).unwrap();
    let measures = Measures::of(&suggestion.graph, 1, &|_| ());
    assert!(measures.hbo_f.at_least >= 450 && !measures.hbo_f.is_exact());
    assert!(suggestion.degree < 30, "{}", suggestion.degree);
}

#[test]
fn intolerable_crash_counts_are_refused() {
    assert_eq!(suggest(5, 5, 1, &|_| ()).unwrap_err(), SuggestError::TooManyCrashes { n: 5, f: 5 });
    assert_eq!(suggest(0, 0, 1, &|_| ()).unwrap_err(), SuggestError::TooManyCrashes { n: 0, f: 0 });
    assert_eq!(
        suggest(usize::MAX, 1, 1, &|_| ()).unwrap_err(),
        GraphError::TooManyVertices(usize::MAX).into()
    );
    // Each of the ten live processes would have to represent at least 5000 processes.
    assert_eq!(suggest(100_000, 99_990, 1, &|_| ()).unwrap_err(), GraphError::TooManyEdges.into());
}
