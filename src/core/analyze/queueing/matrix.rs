//! The products of small matrices that the filter needs.

/// Three numbers: a state, or a row.
pub(crate) type Vec3 = [f64; 3];
pub(crate) type Mat3 = [Vec3; 3];

/// A matrix with `diagonal` and zeros beside it.
pub(crate) const fn diagonal([a, b, c]: Vec3) -> Mat3 {
    [[a, 0.0, 0.0], [0.0, b, 0.0], [0.0, 0.0, c]]
}

pub(crate) fn dot(a: Vec3, b: Vec3) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `m·v`.
pub(crate) fn apply(m: Mat3, v: Vec3) -> Vec3 {
    m.map(|row| dot(row, v))
}

/// `a + b`, element by element.
pub(crate) fn sum(a: Mat3, b: Mat3) -> Mat3 {
    let [[a, b, c], [d, e, f]] = [a, b];
    [add(a, d), add(b, e), add(c, f)]
}

pub(crate) fn add([a, b, c]: Vec3, [x, y, z]: Vec3) -> Vec3 {
    [a + x, b + y, c + z]
}

pub(crate) fn scale(v: Vec3, by: f64) -> Vec3 {
    v.map(|value| value * by)
}

/// The inverse of [[a, b], [c, d]]; `None` if there is none, to the precision of a float.
pub(crate) fn inverse([[a, b], [c, d]]: [[f64; 2]; 2]) -> Option<[[f64; 2]; 2]> {
    let determinant = a * d - b * c;
    let inverse = [[d / determinant, -b / determinant], [-c / determinant, a / determinant]];
    let finite = inverse.iter().flatten().all(|value| value.is_finite());
    finite.then_some(inverse)
}

/// Equal on both sides of the diagonal, within 10⁻⁶ of the sum of the magnitudes.
pub(crate) fn is_symmetric(m: Mat3) -> bool {
    let [[_, ab, ac], [ba, _, bc], [ca, cb, _]] = m;
    let is_alike = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (a.abs() + b.abs());
    m.iter().flatten().all(|value| value.is_finite())
        && is_alike(ab, ba)
        && is_alike(ac, ca)
        && is_alike(bc, cb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_is_what_differs_by_a_millionth_whatever_its_size() {
        for size in [1e-9, 1.0, 1e6] {
            let with = |place: (usize, usize), part: f64| {
                let mut m = [[size; 3]; 3];
                m[place.0][place.1] *= part;
                is_symmetric(m)
            };
            for place in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)] {
                assert!(with(place, 1.0 + 1e-6) && with(place, 1.0 - 1e-6), "{size} {place:?}");
                assert!(!with(place, 1.0 + 1e-5) && !with(place, 1.0 - 1e-5), "{size} {place:?}");
                assert!(!with(place, -1.0) && !with(place, f64::NAN), "{size} {place:?}");
            }
            assert!(with((1, 1), 5.0) && !with((1, 1), f64::INFINITY), "the diagonal only has to be finite");
        }
    }

    #[test]
    fn an_inverse_gives_the_identity_and_what_has_none_gives_nothing() {
        let m = [[4.0, 7.0], [2.0, 6.0]];
        let [[a, b], [c, d]] = inverse(m).unwrap();
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-12;
        assert!(near(a, 0.6) && near(b, -0.7) && near(c, -0.2) && near(d, 0.4), "{a} {b} {c} {d}");
        assert_eq!(inverse([[1.0, 2.0], [2.0, 4.0]]), None);
    }
}
