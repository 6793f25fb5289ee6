//! Compares the measures with a brute-force implementation, which enumerates all subsets and shares
//! no code with them.

use mitra_topology::{Graph, Measures, generators};
use proptest::prelude::*;

type Edge = (u32, u32);

/// Random graphs of up to nine vertices, sparse and dense.
fn graphs() -> impl Strategy<Value = (usize, Vec<Edge>)> {
    (1usize..=9, 0.0..1.0f64).prop_flat_map(|(n, density)| {
        let pairs: Vec<Edge> = (0..n as u32).flat_map(|u| (u + 1..n as u32).map(move |v| (u, v))).collect();
        proptest::collection::vec(proptest::bool::weighted(density), pairs.len()).prop_map(move |chosen| {
            (n, pairs.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(pair, _)| *pair).collect())
        })
    })
}

/// Distances between all pairs of vertices (Floyd and Warshall); `usize::MAX / 2` for unconnected
/// pairs.
fn distances(n: usize, edges: &[Edge]) -> Vec<Vec<usize>> {
    let mut steps = vec![vec![usize::MAX / 2; n]; n];
    for &(u, v) in edges {
        steps[u as usize][v as usize] = 1;
        steps[v as usize][u as usize] = 1;
    }
    for (v, row) in steps.iter_mut().enumerate() {
        row[v] = 0;
    }
    for k in 0..n {
        for i in 0..n {
            for j in 0..n {
                steps[i][j] = steps[i][j].min(steps[i][k] + steps[k][j]);
            }
        }
    }
    steps
}

struct Naive {
    /// |∂S| and |S| of the set with the least ratio.
    expansion: Option<(usize, usize)>,
    bound_f: usize,
    hbo_f: usize,
    best_f: usize,
}

fn naive(n: usize, edges: &[Edge]) -> Naive {
    let steps = distances(n, edges);
    let members = |set: usize| (0..n).filter(move |v| set >> v & 1 == 1);
    let sets = || 1usize..1 << n;
    let size = |set: usize| members(set).count();
    let represented = |set: usize| (0..n).filter(|&v| members(set).any(|u| steps[u][v] <= 1)).count();
    let mut expansion: Option<(usize, usize)> = None;
    for set in sets().filter(|&set| 2 * size(set) <= n) {
        let (b, s) = (represented(set) - size(set), size(set));
        if expansion.is_none_or(|(b0, s0)| b * s0 < b0 * s) {
            expansion = Some((b, s));
        }
    }
    let bound_f = match expansion {
        None => 0,
        // f < (1 − 1/(2(1 + b/s)))·n, multiplied by 2(b + s).
        Some((b, s)) => (0..n).rfind(|f| f * 2 * (b + s) < (2 * (b + s) - s) * n).unwrap(),
    };
    let hbo_f = (0..n)
        .rfind(|f| sets().filter(|&set| size(set) == n - f).all(|set| 2 * represented(set) > n))
        .unwrap();
    let far = |s: usize, t: usize| members(s).all(|u| members(t).all(|v| steps[u][v] >= 3));
    let has_cut =
        |f: usize| sets().any(|s| size(s) == n - f && sets().any(|t| size(t) == n - f && far(s, t)));
    let best_f = (0..n).rfind(|&f| !has_cut(f)).unwrap();
    Naive { expansion, bound_f, hbo_f, best_f }
}

fn check_witnesses(n: usize, edges: &[Edge], measures: &Measures) {
    let steps = distances(n, edges);
    let represented =
        |set: &[u32]| (0..n).filter(|&v| set.iter().any(|&u| steps[u as usize][v] <= 1)).count();
    let found = &measures.witnesses;
    if let Some((ratio, set)) = &found.expansion_set {
        assert!(!set.is_empty() && 2 * set.len() <= n);
        assert_eq!((ratio.boundary as usize, ratio.size as usize), (represented(set) - set.len(), set.len()));
    }
    assert!(2 * represented(&found.hbo_minority) <= n);
    assert_eq!(found.hbo_minority.len(), n - 1 - measures.hbo_f.at_most);
    let [s, t] = &found.sm_cut;
    assert_eq!([s.len(), t.len()], [n - 1 - measures.best_f.at_most; 2]);
    assert!(s.iter().all(|&u| t.iter().all(|&v| steps[u as usize][v as usize] >= 3)));
    for set in [&found.hbo_minority, s, t].into_iter().chain(found.expansion_set.as_ref().map(|(_, set)| set))
    {
        let mut distinct = set.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), set.len(), "{set:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn exact_measures_match_brute_force((n, edges) in graphs()) {
        let measures = Measures::of(&Graph::new(n, &edges).unwrap(), 1, &|_| ());
        let naive = naive(n, &edges);
        prop_assert!(measures.is_exact());
        let expansion = measures.expansion.map(|h| (h.at_least.boundary as usize, h.at_least.size as usize));
        match (expansion, naive.expansion) {
            (Some((a, b)), Some((c, d))) => prop_assert_eq!(a * d, b * c),
            (a, b) => prop_assert_eq!(a, b),
        }
        prop_assert_eq!(
            [measures.bound_f.at_least, measures.hbo_f.at_least, measures.best_f.at_least],
            [naive.bound_f, naive.hbo_f, naive.best_f]
        );
        check_witnesses(n, &edges, &measures);
    }

    /// Without an exact search, as for a large graph.
    #[test]
    fn bounds_contain_brute_force_values((n, edges) in graphs()) {
        let measures = Measures::with_branch_limit(&Graph::new(n, &edges).unwrap(), 1, 0, &|_| ());
        let naive = naive(n, &edges);
        if let Some(((b, s), h)) = naive.expansion.zip(measures.expansion) {
            let naive = mitra_topology::ExpansionRatio { boundary: b as u64, size: s as u64 };
            prop_assert!(h.at_least <= naive && naive <= h.at_most, "{:?} {:?}", h, naive);
        }
        for (f, bounds) in
            [(naive.bound_f, measures.bound_f), (naive.hbo_f, measures.hbo_f), (naive.best_f, measures.best_f)]
        {
            prop_assert!(bounds.at_least <= f && f <= bounds.at_most, "{} {:?}", f, bounds);
        }
        check_witnesses(n, &edges, &measures);
    }
}

/// Graphs that are too large for brute force.
#[test]
fn bounds_contain_exact_search_values() {
    let mut spectral = 0;
    let graphs = (0..24)
        .map(|seed| ("random-regular", vec![16 + (seed % 4) * 4, 3 + seed % 5], seed as u64))
        .chain([
            ("torus", vec![4, 5], 0),
            ("grid", vec![4, 6], 0),
            ("hypercube", vec![4], 0),
            ("star", vec![20], 0),
        ])
        .chain([("ring", vec![24], 0), ("complete", vec![21], 0), ("empty", vec![20], 0)]);
    for (name, sizes, seed) in graphs {
        let graph = generators::generate(name, &sizes, seed).unwrap();
        let exact = Measures::of(&graph, seed, &|_| ());
        assert!(exact.is_exact(), "{name} {sizes:?}");
        let bounds = Measures::with_branch_limit(&graph, seed, 0, &|_| ());
        spectral += u32::from(bounds.spectral);
        let (h, among) = (exact.expansion.unwrap().at_least, bounds.expansion.unwrap());
        assert!(among.at_least <= h && h <= among.at_most, "{name} {sizes:?}: {h} {among:?}");
        for (exact, bounds) in
            [(exact.bound_f, bounds.bound_f), (exact.hbo_f, bounds.hbo_f), (exact.best_f, bounds.best_f)]
        {
            let f = exact.at_least;
            assert!(bounds.at_least <= f && f <= bounds.at_most, "{name} {sizes:?}: {f} {bounds:?}");
        }
    }
    assert!(spectral > 10, "only {spectral} graphs needed spectral bounds");
}
