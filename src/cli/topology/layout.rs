//! The layout of a drawing: distances on paper approximate the distances in the graph.

use mitra_topology::Graph;

/// Iterations of each step: enough for 300 vertices to converge.
const ROUNDS: usize = 150;

pub(super) type Point = [f64; 2];

/// Returns the places of the vertices in the unit square.
pub(super) fn layout(graph: &Graph) -> Vec<Point> {
    let steps = steps(graph);
    let mut places = spread(&steps);
    for _ in 0..ROUNDS {
        relax(&mut places, &steps);
    }
    into_square(&mut places);
    places
}

/// Returns the distances between all pairs. Unconnected parts get a distance of one more than the largest within a
/// part.
fn steps(graph: &Graph) -> Vec<Vec<f64>> {
    let n = graph.vertex_count();
    let mut all = vec![vec![f64::INFINITY; n]; n];
    let mut farthest = 0.0f64;
    for start in graph.vertices() {
        let row = &mut all[start as usize];
        row[start as usize] = 0.0;
        for v in graph.bfs_order(start) {
            let next = row[v as usize] + 1.0;
            farthest = farthest.max(next - 1.0);
            for &w in graph.neighbours(v) {
                row[w as usize] = row[w as usize].min(next);
            }
        }
    }
    all.iter_mut().flatten().filter(|step| step.is_infinite()).for_each(|step| *step = farthest + 1.0);
    all
}

/// Returns an initial layout from two eigenvectors of the centred squared distances (classical scaling), by power
/// iteration from a circle.
fn spread(steps: &[Vec<f64>]) -> Vec<Point> {
    let n = steps.len();
    let mean = |row: &Vec<f64>| row.iter().map(|step| step * step).sum::<f64>() / n as f64;
    let means: Vec<f64> = steps.iter().map(mean).collect();
    let all = means.iter().sum::<f64>() / n as f64;
    let turn = |v: usize| std::f64::consts::TAU * v as f64 / n as f64;
    let mut axes =
        [(0..n).map(|v| turn(v).cos()).collect::<Vec<_>>(), (0..n).map(|v| turn(v).sin()).collect()];
    for _ in 0..ROUNDS {
        for axis in &mut axes {
            let row = |u: usize| -> f64 {
                (0..n).map(|v| (means[u] + means[v] - all - steps[u][v].powi(2)) * axis[v]).sum()
            };
            *axis = (0..n).map(row).collect();
        }
        let [x, y] = &mut axes;
        let length = |axis: &[f64]| axis.iter().map(|a| a * a).sum::<f64>().sqrt().max(1e-9);
        let long = length(x);
        x.iter_mut().for_each(|x| *x /= long);
        let along: f64 = x.iter().zip(&*y).map(|(x, y)| x * y).sum();
        y.iter_mut().zip(&*x).for_each(|(y, x)| *y -= along * x);
        let long = length(y);
        y.iter_mut().for_each(|y| *y /= long);
    }
    // The circle separates vertices that the eigenvectors map to the same place.
    let scale = (n as f64).sqrt();
    (0..n)
        .map(|v| [scale * axes[0][v] + 0.1 * turn(v).cos(), scale * axes[1][v] + 0.1 * turn(v).sin()])
        .collect()
}

/// Moves each vertex to the weighted average of the places that the other vertices prefer (stress majorization,
/// Gansner et al. 2004).
fn relax(places: &mut [Point], steps: &[Vec<f64>]) {
    for u in 0..places.len() {
        let (mut sum, mut weights) = ([0.0; 2], 0.0);
        for v in (0..places.len()).filter(|&v| v != u) {
            let [dx, dy] = [places[u][0] - places[v][0], places[u][1] - places[v][1]];
            let pull = steps[u][v] / dx.hypot(dy).max(1e-6);
            let weight = steps[u][v].powi(-2);
            sum[0] += weight * (places[v][0] + pull * dx);
            sum[1] += weight * (places[v][1] + pull * dy);
            weights += weight;
        }
        if weights > 0.0 {
            places[u] = sum.map(|sum| sum / weights);
        }
    }
}

fn into_square(places: &mut [Point]) {
    let ends = [0, 1].map(|axis| {
        let along = || places.iter().map(|place| place[axis]);
        (along().fold(f64::INFINITY, f64::min), along().fold(f64::NEG_INFINITY, f64::max))
    });
    let side = ends.iter().map(|(lo, hi)| hi - lo).fold(1e-6, f64::max);
    for place in places {
        for (at, (lo, hi)) in place.iter_mut().zip(ends) {
            *at = 0.5 + (*at - (lo + hi) / 2.0) / side;
        }
    }
}
