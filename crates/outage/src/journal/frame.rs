//! Frames of the journal's file. Each has its length and a checksum, so that a frame torn by a crash is recognised.
//! Their contents are in `stored_form`.

use std::ops::Range;

use sha2::{Digest, Sha256};

/// First line of every journal. The number is raised only when an older release could not read the entries of a newer
/// one.
pub(super) const HEADER: &[u8] = b"oncegate journal 1\n";

/// The length of the payload, then the beginning of its SHA-256.
const HEAD_BYTES: usize = 4 + CHECK_BYTES;
const CHECK_BYTES: usize = 8;

/// Adds a frame around a payload.
pub(super) fn write(file: &mut Vec<u8>, payload: &[u8]) {
    // Payloads are bounded by the largest request, far below this.
    let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    file.reserve(HEAD_BYTES + payload.len());
    file.extend_from_slice(&bytes.to_be_bytes());
    file.extend_from_slice(&check(payload));
    file.extend_from_slice(payload);
}

/// The frames of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scanned {
    /// The complete frames, in order: their ranges in the file, with their heads.
    pub(super) frames: Vec<Range<usize>>,
    /// Number of damaged frames before complete ones: no crash causes them.
    pub(super) damaged: usize,
    /// End of the last complete frame. Nothing after it was answered.
    pub(super) ends_at: usize,
}

pub(super) fn payload(file: &[u8], frame: &Range<usize>) -> Vec<u8> {
    file.get(frame.start + HEAD_BYTES..frame.end).unwrap_or_default().to_vec()
}

/// Finds the frames of a file; `None` if it does not begin as a journal.
pub(super) fn scan(file: &[u8]) -> Option<Scanned> {
    let mut found = Scanned { ends_at: HEADER.len(), ..Scanned::default() };
    if !file.starts_with(HEADER) {
        return None;
    }
    let (mut at, mut bad) = (HEADER.len(), 0);
    while let Some((head, rest)) = file.get(at..).and_then(|rest| rest.split_first_chunk::<HEAD_BYTES>()) {
        let (length, wanted) = head.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some(payload) = rest.get(..length) else { break };
        let frame = at..at + HEAD_BYTES + length;
        at = frame.end;
        // A hole in a file reads as zeros: an empty payload is never written.
        if length == 0 || check(payload) != wanted {
            bad += 1;
            continue;
        }
        found.damaged += std::mem::take(&mut bad);
        found.ends_at = frame.end;
        found.frames.push(frame);
    }
    Some(found)
}

fn check(payload: &[u8]) -> [u8; CHECK_BYTES] {
    let digest: [u8; 32] = Sha256::digest(payload).into();
    digest.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(payloads: &[&str]) -> Vec<u8> {
        let mut file = HEADER.to_vec();
        for payload in payloads {
            write(&mut file, payload.as_bytes());
        }
        file
    }

    fn payloads(file: &[u8]) -> Vec<String> {
        let frames = scan(file).unwrap().frames;
        frames.iter().map(|frame| String::from_utf8(payload(file, frame)).unwrap()).collect()
    }

    #[test]
    fn frames_read_back_as_written() {
        let file = file(&["one", "two", "three"]);
        assert_eq!(payloads(&file), ["one", "two", "three"]);
        let scanned = scan(&file).unwrap();
        assert_eq!((scanned.ends_at, scanned.damaged), (file.len(), 0));
        assert_eq!(scan(b"something else"), None);
    }

    #[test]
    fn wherever_the_file_is_torn_what_came_before_is_whole() {
        let (whole, before) = (file(&["one", "two"]), file(&["one"]));
        for bytes in before.len()..whole.len() {
            let scanned = scan(&whole[..bytes]).unwrap();
            assert_eq!(
                (payloads(&whole[..bytes]), scanned.ends_at, scanned.damaged),
                (vec!["one".into()], before.len(), 0)
            );
        }
    }

    #[test]
    fn whatever_bit_of_the_last_frame_is_wrong_it_is_cut() {
        let (whole, before) = (file(&["one", "two"]), file(&["one"]));
        for bit in 0..(whole.len() - before.len()) * 8 {
            let mut wrong = whole.clone();
            wrong[before.len() + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(payloads(&wrong), ["one"], "bit {bit}");
            assert_eq!(scan(&wrong).unwrap().ends_at, before.len());
        }
    }

    #[test]
    fn damage_before_complete_frames_is_reported_and_costs_one_frame() {
        let mut wrong = file(&["one", "two", "three"]);
        let place = file(&["one"]).len() - 1;
        wrong[place] ^= 1;
        assert_eq!(payloads(&wrong), ["two", "three"]);
        assert_eq!(scan(&wrong).unwrap().damaged, 1);
    }

    #[test]
    fn zeros_at_the_end_are_no_frames() {
        let mut torn = file(&["one"]);
        let whole = torn.len();
        torn.extend([0; 100]);
        assert_eq!((payloads(&torn), scan(&torn).unwrap().ends_at), (vec!["one".into()], whole));
    }
}
