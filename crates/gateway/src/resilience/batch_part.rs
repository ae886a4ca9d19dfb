//! The claims of a batch that are sent on, after others were answered.

use std::borrow::Cow;

use oncegate_core::engine::BatchClaim;

/// A part of a batch. Costs nothing if it is the whole batch.
pub struct BatchPart<'a> {
    claims: Cow<'a, [BatchClaim<'a>]>,
    /// The position of each claim in the whole batch; empty if the part is the whole.
    positions: Vec<usize>,
}

impl<'a> BatchPart<'a> {
    /// Returns the claims of a batch except those at some positions. The positions are in ascending order.
    pub fn without(batch: &'a [BatchClaim<'a>], left_out: &[usize]) -> Self {
        if left_out.is_empty() {
            return Self { claims: Cow::Borrowed(batch), positions: Vec::new() };
        }
        let positions: Vec<_> = (0..batch.len()).filter(|at| left_out.binary_search(at).is_err()).collect();
        Self { claims: positions.iter().map(|at| batch[*at]).collect(), positions }
    }

    /// Returns the claims.
    pub fn claims(&self) -> &[BatchClaim<'a>] {
        &self.claims
    }

    /// Returns the position in the whole batch of the claim at this position of the part.
    pub fn position(&self, at: usize) -> usize {
        self.positions.get(at).copied().unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

    #[test]
    fn what_is_left_out_changes_no_position() {
        let request = fresh_claim();
        let deadline = |ms| BatchClaim { request: &request, deadline: Duration::from_millis(ms) };
        let batch: Vec<_> = (0..5).map(deadline).collect();
        for (left_out, expected) in [(&[][..], &[0, 1, 2, 3, 4][..]), (&[1, 4], &[0, 2, 3]), (&[0, 1, 2, 3, 4], &[])] {
            let part = BatchPart::without(&batch, left_out);
            let positions: Vec<_> = (0..part.claims().len()).map(|at| part.position(at)).collect();
            assert_eq!(positions, expected);
            assert!(part.claims().iter().zip(expected).all(|(claim, at)| claim.deadline.as_millis() == *at as u128));
        }
    }
}
