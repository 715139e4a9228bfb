//! The few products of small matrices that the filter needs.

/// Three numbers: a state, or a row.
pub(super) type Vec3 = [f64; 3];
/// Three rows of three.
pub(super) type Mat3 = [Vec3; 3];

/// A matrix with `diagonal` and zeros beside it.
pub(super) const fn diagonal([a, b, c]: Vec3) -> Mat3 {
    [[a, 0.0, 0.0], [0.0, b, 0.0], [0.0, 0.0, c]]
}

pub(super) fn dot(a: Vec3, b: Vec3) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `m·v`.
pub(super) fn apply(m: Mat3, v: Vec3) -> Vec3 {
    m.map(|row| dot(row, v))
}

/// `a + b`, element by element.
pub(super) fn sum(a: Mat3, b: Mat3) -> Mat3 {
    let [[a, b, c], [d, e, f]] = [a, b];
    [add(a, d), add(b, e), add(c, f)]
}

pub(super) fn add([a, b, c]: Vec3, [x, y, z]: Vec3) -> Vec3 {
    [a + x, b + y, c + z]
}

pub(super) fn scale(v: Vec3, by: f64) -> Vec3 {
    v.map(|value| value * by)
}

/// The inverse of [[a, b], [c, d]]; `None` when there is none, to the precision of a float.
pub(super) fn inverse([[a, b], [c, d]]: [[f64; 2]; 2]) -> Option<[[f64; 2]; 2]> {
    let determinant = a * d - b * c;
    let inverse = [[d / determinant, -b / determinant], [-c / determinant, a / determinant]];
    let finite = inverse.iter().flatten().all(|value| value.is_finite());
    finite.then_some(inverse)
}

/// Equal on both sides of the diagonal, within 10⁻⁶ of the sum of the magnitudes.
pub(super) fn symmetric(m: Mat3) -> bool {
    let [[_, ab, ac], [ba, _, bc], [ca, cb, _]] = m;
    let alike = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (a.abs() + b.abs());
    m.iter().flatten().all(|value| value.is_finite()) && alike(ab, ba) && alike(ac, ca) && alike(bc, cb)
}
