//! The accept loop: bounds the connections and distributes them over the runtimes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::ConnectionServer;
use super::limits::Limits;
use super::service::{HttpService, Rejection};
use super::tls::Tls;

/// Connections over the limit that get a response at the same time. Further ones are closed without one.
const REJECTIONS_MAX: usize = 64;

/// Bytes that the system keeps for a client that does not read. By default it keeps megabytes for each.
const SEND_BUFFER_BYTES: u32 = 128 << 10;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 4096;

/// Pause after a failed accept.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Listens on an address.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `stop`, then returns. Connections are served round-robin on the `runtimes` (at least one), and
/// tracked in `connections` until their last response is written. A TLS handshake is part of its connection and needs a
/// permit too.
pub async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: impl HttpService,
    limits: Limits,
    runtimes: Vec<Handle>,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let rejections = Arc::new(Semaphore::new(REJECTIONS_MAX));
    let server = Arc::new(ConnectionServer::new(tls, service, limits, stop));
    let mut runtimes = runtimes.iter().cycle();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(failure) => {
                // Most likely the process has no file descriptor left until another connection ends.
                tracing::warn!(error = %failure, "Connection not accepted; the listener tries again");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            // Over TLS a response needs a handshake, which is too much work under overload.
            if server.tls.is_none()
                && let Ok(rejection) = rejections.clone().try_acquire_owned()
            {
                let server = server.clone();
                connections.spawn(async move {
                    server.reject(stream, Rejection::TooManyConnections).await;
                    drop(rejection);
                });
            }
            continue;
        };
        let (server, Some(runtime)) = (server.clone(), runtimes.next()) else { return };
        // A socket is registered with the runtime that it was created in.
        let Ok(stream) = stream.into_std() else { continue };
        connections.spawn_on(
            async move {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    server.serve(stream).await;
                }
                drop(permit);
            },
            runtime,
        );
    }
}
