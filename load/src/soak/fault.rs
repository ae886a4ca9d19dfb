//! Faults of a long run. Each has an end. After it a gateway must use no more memory and no more descriptors than before.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{process::Command, time::sleep};

use crate::{client::Connection, running::Running};

/// Time for which a store or a gateway stands still. The leases of the callers are longer.
const STOPPED: Duration = Duration::from_secs(3);

/// Callers that leave in the middle of a request, or before its answer.
const LEAVERS: usize = 200;

/// Fault of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// The store stands still, or the gateway where it is the store.
    StoreStops,
    /// Callers send half a request, or a whole one, and leave.
    CallersLeave,
    /// The configuration is read again.
    Reload,
}

impl Fault {
    /// Returns the fault of a round. All take turns.
    pub(super) fn of_round(round: u64) -> Self {
        [Self::Nothing, Self::StoreStops, Self::CallersLeave, Self::Reload][usize::try_from(round % 4).unwrap_or(0)]
    }

    /// Makes it happen, and returns once it is over.
    pub(super) async fn happen(self, running: &Running) -> anyhow::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::StoreStops => {
                let pids = running.store().or_else(|_| running.gateway())?.family();
                signal("STOP", &pids).await?;
                sleep(STOPPED).await;
                signal("CONT", &pids).await
            }
            Self::CallersLeave => {
                let target = Arc::new(running.target()?);
                let leave = |caller: usize| {
                    let mut connection = Connection::new(Arc::clone(&target));
                    let body = format!(r#"{{"operation":"load.leaver","contents":{caller},"lease":"1s"}}"#);
                    async move { connection.leave("/v1/claims", &body, caller.is_multiple_of(2)).await }
                };
                join_all((0..LEAVERS).map(leave)).await;
                Ok(())
            }
            Self::Reload => signal("HUP", &[running.gateway()?.pid]).await,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "no fault",
            Self::StoreStops => "the store stands still",
            Self::CallersLeave => "callers leave",
            Self::Reload => "a reload",
        })
    }
}

async fn signal(name: &str, pids: &[u32]) -> anyhow::Result<()> {
    let pids = pids.iter().map(u32::to_string);
    let status = Command::new("kill").arg(format!("-{name}")).args(pids).status().await?;
    anyhow::ensure!(status.success() || name == "STOP", "a process has ended");
    Ok(())
}
