//! Every cell of the table in docs/topology.md that compares the theorem's bound with the slide's.

use mitra_topology::{ExpansionRatio, Graph, Measures, generators};

/// h, and the greatest f by the theorem, the slide, HBO, and the best possible algorithm.
type Row<'a> = (&'a str, usize, Option<usize>, usize, usize);

fn check(graph: &Graph, expected: Row<'_>) {
    let measures = Measures::of(graph, 0, &|_| ());
    assert!(measures.is_exact());
    let h: ExpansionRatio = measures.expansion.unwrap().at_least;
    let [bound, hbo, best] = [measures.bound_f, measures.hbo_f, measures.best_f].map(|f| f.at_least);
    assert_eq!((h.to_string().as_str(), bound, h.misread_bound(graph.vertex_count()), hbo, best), expected);
}

#[test]
fn measures_match_the_documented_table() {
    let family = |name, sizes: &[usize]| generators::generate(name, sizes, 0).unwrap();
    check(&family("complete", &[4]), ("1", 2, Some(1), 3, 3));
    check(&family("complete", &[6]), ("1", 4, Some(2), 5, 5));
    check(&family("ring", &[6]), ("2/3", 4, Some(1), 4, 4));
    check(&family("ring", &[8]), ("1/2", 5, None, 5, 5));
    check(&family("empty", &[5]), ("0", 2, None, 2, 2));
    check(&family("star", &[6]), ("1/3", 3, None, 3, 5));
    check(&family("petersen", &[]), ("4/5", 7, Some(3), 8, 9));
    check(&family("hypercube", &[3]), ("3/4", 5, Some(2), 6, 6));
}

#[test]
fn single_process_has_no_expansion_and_tolerates_no_crash() {
    let measures = Measures::of(&Graph::new(1, &[]).unwrap(), 0, &|_| ());
    assert!(measures.is_exact() && measures.expansion.is_none());
    assert_eq!([measures.bound_f, measures.hbo_f, measures.best_f].map(|f| f.at_most), [0; 3]);
}

/// The theorem's bound is strict: if (1 − 1/(2(1+h)))·n is an integer, f is one less.
/// Floating-point rounding could miss that.
#[test]
fn bound_on_f_is_strict_without_rounding() {
    let h = |boundary, size| ExpansionRatio { boundary, size };
    assert_eq!(h(0, 1).bound_f(4), 1);
    assert_eq!(h(0, 1).bound_f(5), 2);
    assert_eq!(h(1, 1).bound_f(100_000), 74_999);
    assert_eq!(h(1, 2).bound_f(99_999), 66_665);
    // h slightly above 1/2: the bound is slightly above two thirds of n.
    assert_eq!(h(500_000_001, 1_000_000_000).bound_f(99_999), 66_666);
    assert_eq!(h(1, 2).misread_bound(99_999), None);
    assert_eq!(h(500_000_001, 1_000_000_000).misread_bound(99_999), Some(0));
    assert_eq!(h(1, 1).misread_bound(100), Some(49));
    assert!(h(1, 3) < h(333_334, 1_000_000) && h(2, 6) == h(1, 3));
}
