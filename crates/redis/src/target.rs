//! Target of connections: a fixed server, or the present primary by the reports of Sentinels.

use std::sync::Arc;

use oncegate_core::engine::Determinate;
use tokio::sync::Notify;

use super::address::Address;
use super::sentinel::{Discovery, Version};

/// Target of connections.
#[derive(Clone)]
pub(super) enum Target {
    /// The server of the URL.
    Url,
    /// A node of a cluster. If it does not answer, the layout of the cluster is read again.
    Node { address: Address, failed: Arc<Notify> },
    /// The primary that Sentinels name.
    Sentinel(Arc<Discovery>),
}

impl Target {
    /// Returns the address, unless it is that of the URL.
    pub(super) async fn find(&self) -> Result<(Option<Address>, Version), Determinate> {
        match self {
            Self::Url => Ok((None, 0)),
            Self::Node { address, .. } => Ok((Some(address.clone()), 0)),
            Self::Sentinel(discovery) => discovery.primary().await.map(|(address, version)| (Some(address), version)),
        }
    }

    /// Returns whether the target is unchanged since this version.
    pub(super) fn is_at(&self, version: Version) -> bool {
        match self {
            Self::Url | Self::Node { .. } => true,
            Self::Sentinel(discovery) => discovery.version() == version,
        }
    }

    /// Returns the result of `opening`, or an error as soon as the target changes: an address that is no longer in use
    /// may never answer.
    pub(super) async fn unless_changed<T>(
        &self,
        version: Version,
        opening: impl Future<Output = T>,
    ) -> Result<T, Determinate> {
        let Self::Sentinel(discovery) = self else { return Ok(opening.await) };
        tokio::select! {
            opened = opening => Ok(opened),
            () = discovery.changed(version) => {
                Err(Determinate::Unavailable("the Sentinels name another primary; connecting to it".into()))
            }
        }
    }

    /// Records that no connection could be opened.
    pub(super) fn failed(&self) {
        match self {
            Self::Url => {}
            Self::Node { failed, .. } => failed.notify_one(),
            Self::Sentinel(discovery) => discovery.look_again(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::sentinel::tests::{discovery, promote};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_lead_to_the_url_a_node_or_the_primary_of_the_sentinels() {
        let (node, failed) = (Address::parse("h:1").unwrap(), Arc::new(Notify::new()));
        assert_eq!(Target::Url.find().await, Ok((None, 0)));
        Target::Url.failed();
        let target = Target::Node { address: node.clone(), failed: failed.clone() };
        assert_eq!(target.find().await, Ok((Some(node), 0)));
        assert!(target.is_at(0) && target.is_at(1));
        target.failed();
        assert!(failed.notified().now_or_never().is_some(), "the cluster is asked again");
        assert_eq!(target.unless_changed(0, async { 7 }).await, Ok(7));
        let discovery = Arc::new(discovery());
        let target = Target::Sentinel(discovery.clone());
        promote(&discovery, "a:1", 1);
        assert_eq!(
            target.find().await.map(|(address, version)| (address.unwrap().to_string(), version)),
            Ok(("a:1".into(), 1))
        );
        assert!(target.is_at(1) && !target.is_at(0));
        assert_eq!(target.unless_changed(1, async { 7 }).await, Ok(7));
        let opening = target.unless_changed(0, std::future::pending::<()>());
        assert!(opening.await.is_err_and(|why| why.to_string().contains("another primary")));
    }
}
