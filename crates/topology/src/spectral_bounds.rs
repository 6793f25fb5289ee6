//! Lower bounds from the eigenvalues of the Laplacian, for graphs of any size.
//!
//! The Laplacian L = D − A has the eigenvalue 0 with the constant eigenvector. Let all other
//! eigenvalues of a connected graph lie in \[lo, hi\] with lo > 0, and let r = ((hi − lo)/(hi +
//! lo))². The matrix M = I − 2L/(hi + lo) fixes the constant vector, shrinks every vector
//! orthogonal to it by at least the factor √r. It maps a vector with support S to one with support
//! in N\[S\], the closed neighbourhood: S and the neighbours of S. With the Cauchy–Schwarz
//! inequality, for |S| = s·n (Tanner 1984, with M instead of the adjacency matrix):
//!
//! - |N\[S\]| ≥ |S| / (s + r(1 − s)); for s ≤ 1/2 the vertex expansion is at least (1 − r)/(1 + r);
//! - a set whose closed neighbourhood has at most n/2 vertices has s ≤ r/(1 + r);
//! - for two sets of s·n vertices at distance 3 or more, every polynomial of degree 2 in L has zero
//!   entries between them. The Chebyshev polynomial shrinks vectors orthogonal to the constant
//!   vector by r/(2 − r), hence s ≤ r/2 (after Haemers 1995).
//!
//! The interval \[lo, hi\] is certified, not estimated. Let T be the Chebyshev polynomial of degree
//! [`DEGREE`] over an estimate of the interval, and x a vector of normal random numbers, made
//! orthogonal to the constant vector. With a probability of at least 1 − 2⁻⁴⁰, the component of x
//! along an eigenvector exceeds 2⁻⁴⁰. Then |T(μ)| ≤ 2⁴⁰·‖T(L)x‖ for the eigenvalue μ of this
//! eigenvector. Outside the estimated interval T grows so fast that μ is close to the interval. The
//! argument is used for two eigenvectors, those of lo and hi, so the bounds are wrong with a
//! probability below 2⁻³⁹ over the seed. A bad estimate makes the bounds weaker, not wrong.

use mitra_prng::Prng;

use crate::graph::Graph;

/// The number of multiplications by L for the certificate. For 100,000 vertices the interval is
/// then at most 1 % wider than the true one.
const DEGREE: usize = 300;
/// The number of multiplications by L for the estimate of each end of the interval.
const ESTIMATE_STEPS: usize = 100;

/// The spectral bounds of a graph.
pub(crate) struct Spectrum {
    /// r as in the module documentation, rounded up. With r = 1 the bounds are trivial.
    r: f64,
    /// The vertices in the order of their entries in an approximate eigenvector of the least
    /// positive eigenvalue (Fiedler vector). Prefixes of this order tend to have few neighbours.
    pub(crate) order: Vec<u32>,
}

impl Spectrum {
    /// Computes the bounds of a connected graph of at least two vertices.
    pub(crate) fn of(graph: &Graph, seed: u64) -> Spectrum {
        let laplacian = Laplacian(graph);
        let start = laplacian.start(seed);
        // An upper bound on all eigenvalues (Anderson and Morley 1985).
        let top = graph.edges().map(|(u, v)| graph.degree(u) + graph.degree(v)).max().unwrap_or(1) as f64;
        let (hi, _) = laplacian.extreme(&start, |lx, _| lx);
        let (flipped, vector) = laplacian.extreme(&start, |lx, x| top * x - lx);
        let lo = (top - flipped).max(0.0);
        let mut order: Vec<u32> = graph.vertices().collect();
        order.sort_by(|&u, &v| vector[u as usize].total_cmp(&vector[v as usize]));
        let (lo, hi) = laplacian.certify(&start, lo, hi);
        let (lo, hi) = (lo.max(0.0), hi.min(top));
        let r = ((hi - lo) / (hi + lo)).powi(2) * (1.0 + 1e-9);
        Spectrum { r: r.min(1.0), order }
    }

    /// Returns a lower bound on the expansion.
    pub(crate) fn expansion(&self) -> f64 {
        (1.0 - self.r) / (1.0 + self.r)
    }

    /// Returns an upper bound on the size of a set whose closed neighbourhood has at most n/2 of
    /// `n` vertices.
    pub(crate) fn minority(&self, n: usize) -> usize {
        (n as f64 * self.r / (1.0 + self.r)) as usize
    }

    /// Returns an upper bound on the size of each side of an SM-cut of `n` vertices: two sets of
    /// this size at distance 3 or more.
    pub(crate) fn cut(&self, n: usize) -> usize {
        (n as f64 * self.r / 2.0) as usize
    }
}

struct Laplacian<'a>(&'a Graph);

impl Laplacian<'_> {
    /// Returns a random vector orthogonal to the constant vector.
    fn start(&self, seed: u64) -> Vec<f64> {
        let mut x = normal(&mut Prng::new(seed), self.0.vertex_count());
        centre(&mut x);
        x
    }

    /// Returns entry `v` of the product Lx.
    fn row(&self, x: &[f64], v: u32) -> f64 {
        let around: f64 = self.0.neighbours(v).iter().map(|&w| x[w as usize]).sum();
        self.0.degree(v) as f64 * x[v as usize] - around
    }

    /// Estimates the greatest eigenvalue of a·L + b·I and its eigenvector, by power iteration. `of`
    /// computes an entry of (a·L + b·I)x from the same entry of Lx and of x.
    fn extreme(&self, start: &[f64], of: impl Fn(f64, f64) -> f64) -> (f64, Vec<f64>) {
        let mut x = start.to_vec();
        let mut value = 0.0;
        for _ in 0..ESTIMATE_STEPS {
            let length = norm(&x);
            x.iter_mut().for_each(|x| *x /= length);
            let mut y: Vec<f64> = self.0.vertices().map(|v| of(self.row(&x, v), x[v as usize])).collect();
            value = x.iter().zip(&y).map(|(x, y)| x * y).sum();
            centre(&mut y);
            if norm(&y) < f64::MIN_POSITIVE {
                break;
            }
            x = y;
        }
        (value, x)
    }

    /// Returns an interval that contains all eigenvalues except the eigenvalue of the constant
    /// vector, given an estimate of the interval.
    fn certify(&self, start: &[f64], lo: f64, hi: f64) -> (f64, f64) {
        let midpoint = (lo + hi) / 2.0;
        let half_width = ((hi - lo) / 2.0).max(midpoint * 1e-3);
        let step = |x: &[f64], v: u32| (midpoint * x[v as usize] - self.row(x, v)) / half_width;
        let mut before = start.to_vec();
        let mut now: Vec<f64> = self.0.vertices().map(|v| step(&before, v)).collect();
        // The vectors are rescaled to avoid overflow. `scale` is the logarithm of the product of
        // the divisors.
        let mut scale = 0.0;
        for _ in 1..DEGREE {
            for v in self.0.vertices() {
                before[v as usize] = 2.0 * step(&now, v) - before[v as usize];
            }
            std::mem::swap(&mut before, &mut now);
            // Rounding reintroduces a constant part, which T would amplify.
            centre(&mut now);
            let length = norm(&now);
            if length > 1e100 {
                scale += length.ln();
                for x in before.iter_mut().chain(&mut now) {
                    *x /= length;
                }
            }
        }
        // An eigenvalue μ has |T(μ)| ≤ 2⁴⁰·‖T(L)x‖, see the module documentation. A further factor
        // of 2 covers rounding errors, which are far below ‖x‖ while T is small.
        let length = (norm(&now).ln() + scale).max(norm(start).ln());
        let bound = length + 41.0 * std::f64::consts::LN_2;
        // So T(μ) = cosh(DEGREE·t) with μ = midpoint ± half_width·cosh(t), and t is at most
        // arcosh(|T(μ)|)/DEGREE, where arcosh(y) ≤ ln(2y).
        let half = half_width * ((bound + std::f64::consts::LN_2) / DEGREE as f64).cosh();
        (midpoint - half, midpoint + half)
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Projects a vector onto the orthogonal complement of the constant vector.
fn centre(x: &mut [f64]) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter_mut().for_each(|x| *x -= mean);
}

/// Returns `n` independent standard normal numbers (Box and Muller).
fn normal(rng: &mut Prng, n: usize) -> Vec<f64> {
    (0..n)
        .map(|_| {
            let (radius, angle) = (rng.unit(), rng.unit());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::generate;

    /// Graphs with their least positive and greatest eigenvalues.
    fn known() -> [(Graph, f64, f64); 5] {
        let turn = |n: f64| std::f64::consts::TAU / n;
        let graph = |name, sizes: &[usize]| generate(name, sizes, 0).unwrap();
        [
            (graph("hypercube", &[7]), 2.0, 14.0),
            (graph("petersen", &[]), 2.0, 5.0),
            (graph("complete", &[40]), 40.0, 40.0),
            (graph("star", &[30]), 1.0, 30.0),
            (graph("torus", &[8, 8]), 2.0 - 2.0 * turn(8.0).cos(), 8.0),
        ]
    }

    #[test]
    fn certified_interval_contains_eigenvalues_for_any_estimate() {
        for (graph, lo, hi) in known() {
            let laplacian = Laplacian(&graph);
            for seed in 0..10 {
                let start = laplacian.start(seed);
                for (low, high) in [(1.0, 1.0), (1.3, 1.0), (1.0, 0.8), (1.2, 0.9), (0.5, 1.5)] {
                    let estimate = ((lo * low).min(hi * high), hi * high);
                    let (from, to) = laplacian.certify(&start, estimate.0, estimate.1);
                    assert!(from <= lo && hi <= to, "{lo} to {hi} from {estimate:?}: {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn certified_interval_is_tight() {
        for (graph, lo, hi) in known() {
            let r = Spectrum::of(&graph, 3).r;
            let exact = ((hi - lo) / (hi + lo)).powi(2);
            assert!(exact <= r && r <= exact * 1.03 + 1e-5, "{exact} {r}");
        }
    }
}
