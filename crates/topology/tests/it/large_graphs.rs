//! Graphs that are too large for an exact search: the bounds are valid, useful, and computed in
//! reasonable time.

use mitra_topology::{Graph, MAX_VERTICES, Measures, generators};

fn check_witnesses(graph: &Graph, measures: &Measures) {
    let n = graph.vertex_count();
    let (ratio, thin) = measures.witnesses.expansion_set.as_ref().unwrap();
    assert_eq!(*ratio, measures.expansion.unwrap().at_most);
    assert!(2 * thin.len() <= n && thin.len() as u64 == ratio.size);
    assert_eq!(graph.represented(thin).len() - thin.len(), ratio.boundary as usize);
    let minority = &measures.witnesses.hbo_minority;
    assert!(2 * graph.represented(minority).len() <= n);
    assert_eq!(n - minority.len() - 1, measures.hbo_f.at_most);
    let [s, t] = &measures.witnesses.sm_cut;
    assert_eq!([s.len(), t.len()], [n - 1 - measures.best_f.at_most; 2]);
    let near = graph.represented(&graph.represented(s));
    assert!(t.iter().all(|v| near.binary_search(v).is_err()));
}

#[test]
fn lower_bounds_of_largest_sparse_graph_exceed_half() {
    let graph = generators::generate("random-regular", &[MAX_VERTICES, 3], 5).unwrap();
    let measures = Measures::of(&graph, 5, &|_| ());
    check_witnesses(&graph, &measures);
    assert!(measures.spectral && !measures.is_exact());
    for f in [measures.bound_f, measures.hbo_f, measures.best_f] {
        assert!(MAX_VERTICES / 2 <= f.at_least && f.at_least <= f.at_most, "{f:?}");
    }
    // The eigenvalues of random cubic graphs lie nearly within 3 ± 2√2 (Friedman 2003). Then r is
    // near 8/9, and the sets have at most 0.471·n and 0.445·n vertices.
    assert!(measures.hbo_f.at_least > 51_500 && measures.best_f.at_least > 53_000, "{measures:?}");
}

#[test]
fn simple_families_are_exact_at_any_size() {
    // h, and the greatest f by the theorem, by HBO, and by the best possible algorithm.
    let cases = [
        ("ring", (2, 50_000), [50_001, 50_001, 50_001]),
        ("star", (1, 50_000), [50_000, 50_000, 99_999]),
        ("empty", (0, 1), [49_999, 49_999, 49_999]),
    ];
    for (name, (boundary, size), f) in cases {
        let graph = generators::generate(name, &[MAX_VERTICES], 0).unwrap();
        let measures = Measures::of(&graph, 0, &|_| ());
        assert!(measures.is_exact() && !measures.spectral, "{name}");
        let h = measures.expansion.unwrap().at_least;
        assert_eq!(h.boundary * size, boundary * h.size, "{name}");
        assert_eq!([measures.bound_f, measures.hbo_f, measures.best_f].map(|f| f.at_least), f, "{name}");
        check_witnesses(&graph, &measures);
    }
}

#[test]
fn large_complete_graph_tolerates_all_crashes_but_one() {
    let graph = generators::generate("complete", &[600], 0).unwrap();
    let measures = Measures::of(&graph, 0, &|_| ());
    assert!(measures.is_exact());
    assert_eq!([measures.bound_f, measures.hbo_f, measures.best_f].map(|f| f.at_least), [449, 599, 599]);
}

/// A search that reaches its branch limit may improve the bounds but never weakens them.
#[test]
fn interrupted_search_keeps_valid_bounds() {
    let graph = generators::generate("random-regular", &[64, 4], 9).unwrap();
    let none = Measures::with_branch_limit(&graph, 9, 0, &|_| ());
    for branch_limit in [1, 100, 10_000] {
        let some = Measures::with_branch_limit(&graph, 9, branch_limit, &|_| ());
        check_witnesses(&graph, &some);
        for (some, none) in [(some.hbo_f, none.hbo_f), (some.best_f, none.best_f)] {
            assert!(
                none.at_least <= some.at_least
                    && some.at_least <= some.at_most
                    && some.at_most <= none.at_most
            );
        }
    }
}

#[test]
fn same_seed_gives_same_measures() {
    let of =
        |seed| Measures::of(&generators::generate("random-regular", &[400, 5], seed).unwrap(), seed, &|_| ());
    let (first, again, other) = (of(1), of(1), of(2));
    assert_eq!(
        (&first.witnesses, first.hbo_f, first.expansion),
        (&again.witnesses, again.hbo_f, again.expansion)
    );
    assert_ne!(first.witnesses, other.witnesses);
}
