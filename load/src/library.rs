//! A claim service on the client library's own cluster mode: the handler of the reference server, and one
//! `SET … NX GET PX`. The library finds the nodes, and repeats commands after errors.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use md5::{Digest as _, Md5};
use redis::{cluster::ClusterClientBuilder, cluster_async::ClusterConnection};
use serde_json::json;

use crate::{
    noop::{self, Claim},
    running::APP,
    wire::Terms,
};

/// As long as the gateway's default deadline.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until the process ends.
pub(crate) async fn serve(address: SocketAddr, nodes: Vec<String>) -> anyhow::Result<()> {
    let client = ClusterClientBuilder::new(nodes)
        .connection_timeout(RESPONSE_TIMEOUT)
        .response_timeout(RESPONSE_TIMEOUT)
        .build()
        .context("no URL of a cluster")?;
    let cluster = client.get_async_connection().await.context("the cluster does not answer")?;
    let router = Router::new().route("/v1/claims", post(claim)).with_state(cluster);
    noop::serve_router(address, router).await
}

async fn claim(State(mut cluster): State<ClusterConnection>, Json(claim): Json<Claim>) -> Response {
    let Claim { contents, operation, lease, retention, .. } = claim;
    let operation = operation.unwrap_or_else(|| "default".to_owned());
    let digest = Md5::digest(format!("{APP}\n{operation}\n{contents}"));
    let global_id = format!("{:032x}", u128::from_be_bytes(digest.into()));
    let attempt = Terms::attempt();
    let (lease, retention) = (lease.unwrap_or_default(), retention.unwrap_or_default());
    let value = format!("{attempt} 1p l={lease} r={retention} o={operation} c={contents}");
    let mut set = redis::cmd("SET");
    set.arg(format!("og:{{{global_id}}}:{APP}")).arg(value).arg("NX").arg("GET").arg("PX").arg(300_000);
    match set.query_async::<Option<String>>(&mut cluster).await {
        Ok(None) => (StatusCode::CREATED, Json(noop::granted_to(global_id, attempt))).into_response(),
        Ok(Some(_)) => {
            let duplicate = json!({ "code": "duplicate", "global_id": global_id, "state": "in_progress" });
            (StatusCode::CONFLICT, Json(duplicate)).into_response()
        }
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "code": "store_unavailable" }))).into_response(),
    }
}
