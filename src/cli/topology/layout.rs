//! The layout of a drawing: distances in the drawing approximate distances in the graph.

use mitra_topology::Graph;

/// The number of iterations of the initial layout, and of the majorization after it. It suffices
/// for 300 vertices.
const ITERATIONS: usize = 150;

pub(super) type Point = [f64; 2];

/// Returns the position of each vertex in the unit square.
pub(super) fn layout(graph: &Graph) -> Vec<Point> {
    let distances = distances(graph);
    let mut positions = initial_layout(&distances);
    for _ in 0..ITERATIONS {
        majorize(&mut positions, &distances);
    }
    into_square(&mut positions);
    positions
}

/// Returns the distance between each pair of vertices, in edges. Between vertices of different
/// components, it is one more than the largest distance within a component.
fn distances(graph: &Graph) -> Vec<Vec<f64>> {
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
    all.iter_mut()
        .flatten()
        .filter(|distance| distance.is_infinite())
        .for_each(|distance| *distance = farthest + 1.0);
    all
}

/// Returns an initial layout from two eigenvectors of the centred squared distances (classical
/// scaling), by power iteration that starts with the vertices on a circle.
fn initial_layout(distances: &[Vec<f64>]) -> Vec<Point> {
    let n = distances.len();
    let mean = |row: &Vec<f64>| row.iter().map(|distance| distance * distance).sum::<f64>() / n as f64;
    let means: Vec<f64> = distances.iter().map(mean).collect();
    let all = means.iter().sum::<f64>() / n as f64;
    let angle = |v: usize| std::f64::consts::TAU * v as f64 / n as f64;
    let mut axes =
        [(0..n).map(|v| angle(v).cos()).collect::<Vec<_>>(), (0..n).map(|v| angle(v).sin()).collect()];
    for _ in 0..ITERATIONS {
        for axis in &mut axes {
            let row = |u: usize| -> f64 {
                (0..n).map(|v| (means[u] + means[v] - all - distances[u][v].powi(2)) * axis[v]).sum()
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
    // The added circle separates vertices that the eigenvectors map to the same position.
    let scale = (n as f64).sqrt();
    (0..n)
        .map(|v| [scale * axes[0][v] + 0.1 * angle(v).cos(), scale * axes[1][v] + 0.1 * angle(v).sin()])
        .collect()
}

/// Moves each vertex to the weighted average of the positions that the other vertices prefer for it
/// (stress majorization, Gansner et al. 2004).
fn majorize(positions: &mut [Point], distances: &[Vec<f64>]) {
    for u in 0..positions.len() {
        let (mut sum, mut weights) = ([0.0; 2], 0.0);
        for v in (0..positions.len()).filter(|&v| v != u) {
            let [dx, dy] = [positions[u][0] - positions[v][0], positions[u][1] - positions[v][1]];
            // `hypot` of Debian 12 would need glibc 2.35 where the program runs.
            let pull = distances[u][v] / (dx * dx + dy * dy).sqrt().max(1e-6);
            let weight = distances[u][v].powi(-2);
            sum[0] += weight * (positions[v][0] + pull * dx);
            sum[1] += weight * (positions[v][1] + pull * dy);
            weights += weight;
        }
        if weights > 0.0 {
            positions[u] = sum.map(|sum| sum / weights);
        }
    }
}

/// Scales and moves the drawing into the unit square.
fn into_square(positions: &mut [Point]) {
    let ends = [0, 1].map(|axis| {
        let along = || positions.iter().map(|position| position[axis]);
        (along().fold(f64::INFINITY, f64::min), along().fold(f64::NEG_INFINITY, f64::max))
    });
    let side = ends.iter().map(|(lo, hi)| hi - lo).fold(1e-6, f64::max);
    for position in positions {
        for (at, (lo, hi)) in position.iter_mut().zip(ends) {
            *at = 0.5 + (*at - (lo + hi) / 2.0) / side;
        }
    }
}
