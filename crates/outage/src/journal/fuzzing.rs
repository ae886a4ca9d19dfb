//! Properties of all bytes that a journal's file can have; see `oncegate_core::fuzzing`.

use super::frame::{HEADER, payload, scan};
use super::stored_form::FrameContent;

/// The frames of a file follow one another. Bytes after the last one change none of them.
pub fn journal(bytes: &[u8]) {
    let file = [HEADER, bytes].concat();
    let found = scan(&file).unwrap_or_default();
    assert!(found.frames.is_sorted_by(|before, after| before.end <= after.start));
    assert_eq!(found.ends_at, found.frames.last().map_or(HEADER.len(), |last| last.end));
    assert_eq!(scan(&file[..found.ends_at]).as_ref(), Some(&found));
    found.frames.iter().for_each(|frame| content(&payload(&file, frame)));
    assert!(scan(bytes).is_none_or(|_| bytes.starts_with(HEADER)));
}

/// Content that can be read is read in the same way after it was written again.
pub fn content(payload: &[u8]) {
    let Some(content) = FrameContent::read(payload) else { return };
    let again = FrameContent::read(&content.write());
    assert_eq!(again.map(|again| format!("{again:?}")), Some(format!("{content:?}")));
}

#[cfg(test)]
mod tests {
    use oncegate_core::fuzzing::{Edit, edited};
    use proptest::prelude::{any, proptest};

    use super::super::frame::write;
    use super::*;

    const CONTENTS: [&[u8]; 2] = [
        include_bytes!("../../../../fuzz/seeds/journal_content/delivered"),
        include_bytes!("../../../../fuzz/seeds/journal_content/renewed"),
    ];

    #[test]
    fn every_sample_can_be_read() {
        for sample in CONTENTS {
            assert!(FrameContent::read(sample).is_some(), "{}", String::from_utf8_lossy(sample));
        }
    }

    proptest! {
        #[test]
        fn all_bytes_have_the_properties(of in any::<usize>(), edits in any::<Vec<Edit>>()) {
            let sample = CONTENTS[of % CONTENTS.len()];
            content(&edited(sample, &edits));
            let mut frames = Vec::new();
            for sample in CONTENTS {
                write(&mut frames, sample);
            }
            write(&mut frames, &edited(sample, &edits));
            journal(&frames);
            journal(&edited(&frames, &edits));
        }
    }
}
