//! The history on the disk. It survives a restart, with a gap. Written without fsync; a file that cannot be read is
//! replaced.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::{History, POINTS, Ring, SERIES_MAX, State};

/// The first bytes of a file, with its version.
const MAGIC: &[u8] = b"oncegate history 1\n";

/// Largest file that is read.
const BYTES_MAX: u64 = 8 << 20;

/// Longest name of a series: app, operation, and quantity.
const NAME_BYTES_MAX: usize = 256;

impl History {
    /// Returns the history in this file; an empty one if there is none that can be read.
    pub fn load(path: &Path) -> Self {
        let is_small = fs::metadata(path).is_ok_and(|file| file.len() <= BYTES_MAX);
        let bytes = if is_small { fs::read(path).unwrap_or_default() } else { Vec::new() };
        let series = decoded(&bytes).unwrap_or_default();
        Self(State { series, previous: None }.into())
    }

    /// Writes the history into this file, in one step for readers.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let bytes = encoded(&self.state().series);
        let beside = path.with_extension("new");
        fs::write(&beside, bytes)?;
        fs::rename(&beside, path)
    }
}

fn encoded(series: &BTreeMap<String, [Ring; 3]>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (name, rings) in series.iter().filter(|(name, _)| name.len() <= NAME_BYTES_MAX) {
        bytes.extend(u32::try_from(name.len()).unwrap_or_default().to_le_bytes());
        bytes.extend(name.as_bytes());
        for ring in rings {
            bytes.extend(ring.newest.to_le_bytes());
            bytes.extend(u32::try_from(ring.values.len()).unwrap_or_default().to_le_bytes());
            ring.values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        }
    }
    bytes
}

fn decoded(bytes: &[u8]) -> Option<BTreeMap<String, [Ring; 3]>> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut series = BTreeMap::new();
    while !rest.is_empty() {
        let length = number(&mut rest)?;
        let name = part(&mut rest, length.min(NAME_BYTES_MAX + 1))?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        let mut rings: [Ring; 3] = Default::default();
        for (ring, most) in rings.iter_mut().zip(POINTS) {
            let newest = u64::from_le_bytes(part(&mut rest, 8)?.try_into().ok()?);
            let count = number(&mut rest).filter(|count| *count <= most)?;
            let values = part(&mut rest, count * 4)?.chunks_exact(4);
            let values = values.filter_map(|value| Some(f32::from_le_bytes(value.try_into().ok()?))).collect();
            *ring = Ring { newest, values, samples: 1 };
        }
        series.insert(name, rings);
        if series.len() > SERIES_MAX {
            return None;
        }
    }
    Some(series)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(part(rest, 4)?.try_into().ok()?)).ok()
}

fn part<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (part, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_history_survives_a_restart_and_a_broken_file_begins_anew() {
        let folder = std::env::temp_dir().join(format!("oncegate-history-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("history");
        let history = History::load(&path);
        assert_eq!(history.names(), [] as [&str; 0]);
        for (second, count) in [(0, 0), (10, 50)] {
            let text = format!("oncegate_claims_total{{app=\"shop\",operation=\"a\",result=\"granted\"}} {count}\n");
            history.take(1000 + second, Duration::from_secs(second), &text);
        }
        history.save(&path).unwrap();
        let again = History::load(&path);
        assert_eq!(again.points("granted", 0, 101, 101), Some(vec![Some(5.0)]));
        assert_eq!(again.names(), history.names());
        let good = fs::read(&path).unwrap();
        for broken in [&good[..good.len() - 1], &good[1..], b"", &[MAGIC, &[255; 64]].concat()] {
            fs::write(&path, broken).unwrap();
            assert_eq!(History::load(&path).names(), [] as [&str; 0]);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
