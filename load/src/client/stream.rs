//! Bytes to and from a server, in plain text or over TLS.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use anyhow::Context as _;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// What a caller needs to speak TLS with a server.
#[derive(Debug, Clone)]
pub(crate) struct Security {
    configuration: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Security {
    /// Trusts the authority in this file, for a server of this name.
    pub(super) fn trusting(authority: &Path, name: &str) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let unreadable = || format!("cannot read certificates from {}", authority.display());
        for certificate in CertificateDer::pem_file_iter(authority).with_context(unreadable)? {
            roots.add(certificate.with_context(unreadable)?).with_context(unreadable)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let configuration = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let configuration = configuration.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).with_context(|| format!("{name:?} is no name of a server"))?;
        Ok(Self { configuration: Arc::new(configuration), name })
    }
}

/// Connection to a server.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Makes a stream of a new connection. With TLS, this takes a handshake.
    pub(super) async fn over(tcp: TcpStream, security: Option<&Security>) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let Some(Security { configuration, name }) = security else { return Ok(Self::Plain(tcp)) };
        let connector = TlsConnector::from(Arc::clone(configuration));
        Ok(Self::Tls(Box::new(connector.connect(name.clone(), tcp).await?)))
    }

    /// Reports whether the server has neither closed it nor sent anything.
    pub(super) fn is_idle(&mut self) -> bool {
        match self {
            Self::Plain(tcp) => {
                matches!(tcp.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            // Through the layer of TLS: what it has received may be a message for itself.
            Self::Tls(tls) => {
                let (mut context, mut byte) = (Context::from_waker(Waker::noop()), [0]);
                Pin::new(tls).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// Sends all of these bytes. TLS may keep some until it is flushed.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await?;
        self.flush().await
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use oncegate_testkit::certificates::Authority;
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use tokio::{io::AsyncReadExt as _, net::TcpListener};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::client::{Connection, Target};

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

    /// Serves requests over TLS, so many on each connection. Returns its address.
    async fn serve(authority: &Authority, per_connection: u32) -> anyhow::Result<String> {
        let pair = authority.issue();
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let configuration = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let configuration = configuration.with_no_client_auth().with_single_cert(chain, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(configuration));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                for _ in 0..per_connection {
                    let mut request = [0; 1024];
                    if tls.read(&mut request).await.is_ok() {
                        let _ = tls.write_all(ANSWER).await;
                        let _ = tls.flush().await;
                    }
                }
            }
        });
        Ok(format!("https://{address}"))
    }

    #[tokio::test]
    async fn a_server_is_called_over_tls_on_a_connection_that_stays_open() {
        let authority = Authority::generate();
        let dir = tempfile::tempdir().expect("no folder");
        let file = authority.write(&dir.path().join("ca.pem"));
        let url = serve(&authority, 2).await.expect("no server");
        let target = Target::secured(&url, None, false, &file).expect("a good URL");
        let mut connection = Connection::new(Arc::new(target));
        for _ in 0..2 {
            let answer = connection.get("/").await.expect("no answer");
            assert_eq!((answer.status, answer.body), (200, &b"{}"[..]));
        }
        // The server has closed the connection by now, or will while the request is on its way.
        let mut answers = 0;
        for _ in 0..2 {
            answers += u32::from(connection.get("/").await.is_ok());
        }
        assert!(answers >= 1, "no new connection after the first one was closed");
    }

    #[tokio::test]
    async fn a_server_of_another_authority_gets_no_request() {
        let dir = tempfile::tempdir().expect("no folder");
        let other = Authority::generate().write(&dir.path().join("ca.pem"));
        let url = serve(&Authority::generate(), 1).await.expect("no server");
        let target = Target::secured(&url, None, false, &other).expect("a good URL");
        assert!(target.connect().await.is_err(), "any authority is trusted");
        fs::write(&other, "no certificate").expect("not written");
        assert!(Target::secured(&url, None, false, Path::new("missing.pem")).is_err());
    }
}
