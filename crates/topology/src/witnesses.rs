//! Sets that show what a graph does *not* tolerate: whatever finds them, each proves an upper bound.

use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;

/// The worst sets found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witnesses {
    /// S with 1 ≤ |S| ≤ n/2 and its ratio |∂S|/|S|: the expansion is at most that.
    pub expansion_set: Option<(ExpansionRatio, Vec<u32>)>,
    /// A set of processes that represents at most n/2: HBO decides nothing when these alone are left.
    pub hbo_minority: Vec<u32>,
    /// An SM-cut: two sets of the same size at distance 3 or more, so that each must think the other crashed.
    pub sm_cut: [Vec<u32>; 2],
}

impl Witnesses {
    /// Tries every beginning of `order` (distinct vertices).
    pub(crate) fn try_order(&mut self, graph: &Graph, order: &[u32]) {
        let n = graph.vertex_count();
        // 0: unseen, 1: within two steps, 2: represented.
        let mut near = vec![0u8; n];
        let (mut represented, mut within_two) = (0, 0);
        let (mut thinnest, mut minority, mut cut) = (None, 0, (0, 0));
        for (i, &v) in order.iter().enumerate() {
            let size = i + 1;
            for w in graph.closed_neighbourhood(v) {
                if near[w as usize] == 2 {
                    continue;
                }
                within_two += usize::from(near[w as usize] == 0);
                near[w as usize] = 2;
                represented += 1;
                for &x in graph.neighbours(w) {
                    if near[x as usize] == 0 {
                        near[x as usize] = 1;
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

    /// Tries a set, in all three roles, with what it represents and what that represents.
    pub(crate) fn try_set(&mut self, graph: &Graph, set: impl IntoIterator<Item = u32>) {
        self.try_order(graph, &set.into_iter().collect::<Vec<_>>());
    }
}

/// `half` of `set`, and as many of those that are 3 or more steps away from it.
fn sm_cut(graph: &Graph, set: &[u32], half: usize) -> [Vec<u32>; 2] {
    let mut near = vec![false; graph.vertex_count()];
    for v in graph.represented(&graph.represented(set)) {
        near[v as usize] = true;
    }
    let far = graph.vertices().filter(|&v| !near[v as usize]).take(half).collect();
    [set[..half].to_vec(), far]
}
