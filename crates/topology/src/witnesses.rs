//! Sets that prove upper bounds on the measures.

use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;

/// For each measure, the set that proves the least upper bound found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witnesses {
    /// A set S with 1 ≤ |S| ≤ n/2 and its ratio |∂S|/|S|, which bounds the expansion from above.
    pub expansion_set: Option<(ExpansionRatio, Vec<u32>)>,
    /// A set of processes that represents at most n/2 processes. HBO does not decide if only these
    /// are alive.
    pub hbo_minority: Vec<u32>,
    /// An SM-cut: two sets of the same size at distance 3 or more. Neither set can tell whether the
    /// other set is alive.
    pub sm_cut: [Vec<u32>; 2],
}

impl Witnesses {
    /// Evaluates every prefix of `order`, which consists of distinct vertices, for all three
    /// measures.
    pub(crate) fn try_order(&mut self, graph: &Graph, order: &[u32]) {
        let n = graph.vertex_count();
        // 0: farther than two steps from the prefix, 1: at two steps, 2: represented.
        let mut level = vec![0u8; n];
        let (mut represented, mut within_two) = (0, 0);
        let (mut thinnest, mut minority, mut cut) = (None, 0, (0, 0));
        for (i, &v) in order.iter().enumerate() {
            let size = i + 1;
            for w in graph.closed_neighbourhood(v) {
                if level[w as usize] == 2 {
                    continue;
                }
                within_two += usize::from(level[w as usize] == 0);
                level[w as usize] = 2;
                represented += 1;
                for &x in graph.neighbours(w) {
                    if level[x as usize] == 0 {
                        level[x as usize] = 1;
                        within_two += 1;
                    }
                }
            }
            if size <= n / 2 {
                let ratio = ExpansionRatio { boundary: (represented - size) as u64, size: size as u64 };
                if thinnest.is_none_or(|(least, _)| ratio < least) {
                    thinnest = Some((ratio, size));
                }
            }
            if 2 * represented <= n {
                minority = size;
            }
            let half = size.min(n - within_two);
            if half > cut.0 {
                cut = (half, size);
            }
        }
        if let Some((ratio, size)) = thinnest
            && self.expansion_set.as_ref().is_none_or(|(least, _)| ratio < *least)
        {
            self.expansion_set = Some((ratio, order[..size].to_vec()));
        }
        if minority > self.hbo_minority.len() {
            self.hbo_minority = order[..minority].to_vec();
        }
        if cut.0 > self.sm_cut[0].len() {
            self.sm_cut = sm_cut(graph, &order[..cut.1], cut.0);
        }
    }

    /// Evaluates a set, like [`try_order`](Self::try_order).
    pub(crate) fn try_set(&mut self, graph: &Graph, set: impl IntoIterator<Item = u32>) {
        self.try_order(graph, &set.into_iter().collect::<Vec<_>>());
    }
}

/// Returns `size` vertices of `set`, and as many vertices at distance 3 or more from it.
fn sm_cut(graph: &Graph, set: &[u32], size: usize) -> [Vec<u32>; 2] {
    let mut near = vec![false; graph.vertex_count()];
    for v in graph.represented(&graph.represented(set)) {
        near[v as usize] = true;
    }
    let far = graph.vertices().filter(|&v| !near[v as usize]).take(size).collect();
    [set[..size].to_vec(), far]
}
