//! Forwarding to the engine inside a wrapper, for the parts of the contract that the wrapper does not change.

/// Implements [`Records`](super::Records) or [`Topology`](super::Topology) of a wrapper by calls of the engine in one of its fields;
/// or, inside an implementation of `Topology`, the methods about shards and servers.
#[macro_export]
macro_rules! forward {
    (Records for $wrapper:ty => $($engine:tt)+) => {
        #[async_trait::async_trait]
        impl $crate::engine::Records for $wrapper {
            async fn get_record(
                &self,
                name: &$crate::engine::RecordName,
                deadline: std::time::Duration,
            ) -> Result<$crate::engine::RecordView, $crate::engine::EngineError> {
                self.$($engine)+.get_record(name, deadline).await
            }

            async fn change_record(
                &self,
                change: &$crate::engine::RecordChange,
                deadline: std::time::Duration,
            ) -> Result<$crate::engine::ChangeResponse, $crate::engine::EngineError> {
                self.$($engine)+.change_record(change, deadline).await
            }

            async fn list_records(
                &self,
                request: &$crate::operator::LockListRequest,
            ) -> Result<$crate::operator::LockPage, $crate::engine::EngineError> {
                self.$($engine)+.list_records(request).await
            }

            async fn subscribe(&self, channel: &$crate::engine::Channel) -> $crate::engine::Subscription {
                self.$($engine)+.subscribe(channel).await
            }
        }
    };
    (shards => $($engine:tt)+) => {
        fn shards(&self) -> Vec<u16> {
            self.$($engine)+.shards()
        }

        fn shard_of(&self, key: &$crate::record::Key) -> u16 {
            self.$($engine)+.shard_of(key)
        }

        fn shard_of_record(&self, name: &$crate::engine::RecordName) -> u16 {
            self.$($engine)+.shard_of_record(name)
        }

        fn metadata_name(&self, shard: u16, name: &str) -> String {
            self.$($engine)+.metadata_name(shard, name)
        }

        fn nodes(&self) -> Vec<$crate::engine::Node> {
            self.$($engine)+.nodes()
        }

        fn identity(&self) -> Option<$crate::engine::StoreIdentity> {
            self.$($engine)+.identity()
        }
    };
    (Topology for $wrapper:ty => $($engine:tt)+) => {
        #[async_trait::async_trait]
        impl $crate::engine::Topology for $wrapper {
            fn capabilities(&self) -> $crate::engine::Capabilities {
                self.$($engine)+.capabilities()
            }

            $crate::forward!(shards => $($engine)+);

            async fn probe(&self) -> Result<(), $crate::engine::EngineError> {
                self.$($engine)+.probe().await
            }

            async fn probe_shard(&self, shard: u16) -> Result<(), $crate::engine::EngineError> {
                self.$($engine)+.probe_shard(shard).await
            }

            fn losses(&self, shard: u16) -> u64 {
                self.$($engine)+.losses(shard)
            }

            fn data_lost(&self) -> u64 {
                self.$($engine)+.data_lost()
            }

            fn waits_for_replicas(&self) -> bool {
                self.$($engine)+.waits_for_replicas()
            }

            async fn backup(&self) -> Result<Option<$crate::engine::Backup>, $crate::engine::EngineError> {
                self.$($engine)+.backup().await
            }

            async fn close(&self) {
                self.$($engine)+.close().await;
            }
        }
    };
}
