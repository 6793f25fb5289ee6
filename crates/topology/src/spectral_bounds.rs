//! Lower bounds from the Laplacian's eigenvalues, for graphs of any size.
//!
//! L = D − A has the eigenvalue 0 for the constant vector. Let the others of a connected graph lie in \[lo, hi\], lo > 0, and
//! r = ((hi − lo)/(hi + lo))². The matrix M = I − 2L/(hi + lo) fixes the constant vector, shrinks what is orthogonal to it by
//! √r, and carries a set S to N\[S\] only. For |S| = s·n, with the inequality of Cauchy and Schwarz (Tanner 1984, with M in
//! the place of the adjacency matrix):
//!
//! - |N\[S\]| ≥ |S| / (s + r(1 − s)); with s ≤ 1/2, h ≥ (1 − r)/(1 + r);
//! - a set that represents at most n/2 has s ≤ r/(1 + r);
//! - two sets of s·n at distance 3 or more are not joined by any polynomial of degree 2 in L; the best one, Chebyshev's,
//!   shrinks by r/(2 − r), hence s ≤ r/2 (after Haemers 1995).
//!
//! lo and hi are certified, not estimated. T is Chebyshev's polynomial of degree [`DEGREE`] over a guess of \[lo, hi\], x a
//! vector of normal numbers without its constant part. An eigenvector's share of x exceeds 2⁻⁴⁰ but for a probability below
//! 2⁻⁴⁰; then |T(μ)| ≤ 2⁴⁰·‖T(L)x‖ for its eigenvalue μ, and T grows so fast outside the guess that μ is within a whisker
//! of it. Needed for two eigenvectors, those of lo and hi: the bounds fail with a probability below 2⁻³⁹, over the seed.
//! A bad guess costs sharpness, not truth.

use mitra_prng::Prng;

use crate::graph::Graph;

/// Multiplications by L for the certificate: the interval is at most 1 % wider than it need be, for 100,000 vertices.
const DEGREE: usize = 300;
/// Multiplications for the guess of each end.
const GUESS: usize = 100;

/// What the eigenvalues of a graph say.
pub(crate) struct Spectrum {
    /// r as above, rounded up; 1 says nothing.
    r: f64,
    /// The vertices in the order of an eigenvector of about the least positive eigenvalue: it tends to lay the graph out.
    pub(crate) order: Vec<u32>,
}

impl Spectrum {
    /// Of a connected graph of at least two vertices.
    pub(crate) fn of(graph: &Graph, seed: u64) -> Spectrum {
        let laplacian = Laplacian(graph);
        let start = laplacian.start(seed);
        // Every eigenvalue is at most this (Anderson and Morley 1985).
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

    /// The expansion is at least this.
    pub(crate) fn expansion(&self) -> f64 {
        (1.0 - self.r) / (1.0 + self.r)
    }

    /// No more of `n` processes than this represent at most n/2.
    pub(crate) fn minority(&self, n: usize) -> usize {
        (n as f64 * self.r / (1.0 + self.r)) as usize
    }

    /// An SM-cut has no more than this on each side.
    pub(crate) fn cut(&self, n: usize) -> usize {
        (n as f64 * self.r / 2.0) as usize
    }
}

struct Laplacian<'a>(&'a Graph);

impl Laplacian<'_> {
    /// A random vector without its constant part.
    fn start(&self, seed: u64) -> Vec<f64> {
        let mut x = normal(&mut Prng::new(seed), self.0.vertex_count());
        centre(&mut x);
        x
    }

    /// One entry of Lx.
    fn row(&self, x: &[f64], v: u32) -> f64 {
        let around: f64 = self.0.neighbours(v).iter().map(|&w| x[w as usize]).sum();
        self.0.degree(v) as f64 * x[v as usize] - around
    }

    /// About the greatest eigenvalue of a matrix made of L, and about its eigenvector (the power method).
    fn extreme(&self, start: &[f64], of: impl Fn(f64, f64) -> f64) -> (f64, Vec<f64>) {
        let mut x = start.to_vec();
        let mut value = 0.0;
        for _ in 0..GUESS {
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

    /// An interval that holds all eigenvalues but that of the constant vector, from a guess of it.
    fn certify(&self, start: &[f64], lo: f64, hi: f64) -> (f64, f64) {
        let centre_of = (lo + hi) / 2.0;
        let reach = ((hi - lo) / 2.0).max(centre_of * 1e-3);
        let step = |x: &[f64], v: u32| (centre_of * x[v as usize] - self.row(x, v)) / reach;
        let mut before = start.to_vec();
        let mut now: Vec<f64> = self.0.vertices().map(|v| step(&before, v)).collect();
        // The vectors are kept at a length that can be written down; this is the logarithm of what was taken out.
        let mut scale = 0.0;
        for _ in 1..DEGREE {
            for v in self.0.vertices() {
                before[v as usize] = 2.0 * step(&now, v) - before[v as usize];
            }
            std::mem::swap(&mut before, &mut now);
            // Rounding lets the constant part come back, and T is huge there.
            centre(&mut now);
            let length = norm(&now);
            if length > 1e100 {
                scale += length.ln();
                for x in before.iter_mut().chain(&mut now) {
                    *x /= length;
                }
            }
        }
        // |T(μ)| ≤ 2⁴⁰·‖T(L)x‖, where a factor of 2 is left for rounding, which is far below ‖x‖ as long as T is small.
        let length = (norm(&now).ln() + scale).max(norm(start).ln());
        let most = length + 41.0 * std::f64::consts::LN_2;
        // arcosh(y) ≤ ln(2y), and T(c ± e·cosh(t)) = cosh(DEGREE·t).
        let half = reach * ((most + std::f64::consts::LN_2) / DEGREE as f64).cosh();
        (centre_of - half, centre_of + half)
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Takes out the constant part.
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

    /// Graphs whose eigenvalues are known: the least positive one and the greatest.
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
    fn the_interval_holds_the_eigenvalues_however_bad_the_guess() {
        for (graph, lo, hi) in known() {
            let laplacian = Laplacian(&graph);
            for seed in 0..10 {
                let start = laplacian.start(seed);
                for (low, high) in [(1.0, 1.0), (1.3, 1.0), (1.0, 0.8), (1.2, 0.9), (0.5, 1.5)] {
                    let guess = ((lo * low).min(hi * high), hi * high);
                    let (from, to) = laplacian.certify(&start, guess.0, guess.1);
                    assert!(from <= lo && hi <= to, "{lo} to {hi} from {guess:?}: {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn the_interval_is_sharp() {
        for (graph, lo, hi) in known() {
            let r = Spectrum::of(&graph, 3).r;
            let exact = ((hi - lo) / (hi + lo)).powi(2);
            assert!(exact <= r && r <= exact * 1.03 + 1e-5, "{exact} {r}");
        }
    }
}
