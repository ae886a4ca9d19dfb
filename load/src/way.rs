//! The way of a claim: in plain text or over TLS, through a network that takes time, and on which cores.

use std::time::Duration;

use crate::{contender::Contender, cores::Cores};

/// Way from the callers through the gateway to its store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// In plain text, on one machine.
    #[default]
    Plain,
    /// TLS between callers and gateway.
    TlsToCallers,
    /// TLS between gateway and Redis.
    TlsToStore,
    /// TLS on both sides.
    Tls,
    /// A network between gateway and store that takes time.
    Far,
}

impl Way {
    pub(crate) const TLS: [Self; 3] = [Self::TlsToCallers, Self::TlsToStore, Self::Tls];

    pub(crate) fn secures_callers(self) -> bool {
        matches!(self, Self::TlsToCallers | Self::Tls)
    }

    pub(crate) fn secures_store(self) -> bool {
        matches!(self, Self::TlsToStore | Self::Tls)
    }

    /// Reports whether a claim can take this way to a contender.
    pub(crate) fn leads_to(self, contender: Contender) -> bool {
        match self {
            Self::Plain => true,
            Self::TlsToCallers => Contender::ENGINES.contains(&contender),
            Self::TlsToStore | Self::Tls => contender == Contender::Redis,
            Self::Far => matches!(contender, Contender::Redis | Contender::Postgres),
        }
    }

    /// Returns what a row of this way has after its name.
    pub(crate) fn suffix(self, round_trip: Duration) -> String {
        match self {
            Self::Plain => String::new(),
            Self::TlsToCallers => ", TLS to callers".to_owned(),
            Self::TlsToStore => ", TLS to the store".to_owned(),
            Self::Tls => ", TLS on both sides".to_owned(),
            Self::Far => format!(", {round_trip:?} to the store"),
        }
    }
}

/// Surroundings of the processes of a contender.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    pub(crate) way: Way,
    /// Time that the network adds to a request to the store and its answer, if the store is far.
    pub(crate) round_trip: Duration,
    /// True if a store of several primaries has a replica of each.
    pub(crate) spare: bool,
    pub(crate) cores: Cores,
}
