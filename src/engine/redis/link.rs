//! One connection to the server: how it is opened, and how replies are known to belong to their requests.
//! A link that has failed once is never used again; opening the next one is the lane's business.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, Value};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::health::Health;
use super::options::{Address, Options};
use super::reply::refusal;
use super::script::{SCRIPTS, Script};
use super::status::Status;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::engine::Determinate;

/// What all connections of an engine have in common.
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) health: Health,
    pub(super) status: Status,
}

/// A connection that has been found fit.
pub(super) struct Link {
    connection: MultiplexedConnection,
    shared: Arc<Shared>,
    /// Random, so that no value in the store can look like one of our tokens.
    name: u64,
    sent: u64,
}

impl Link {
    /// Connects, and asks the server whether it is fit, all within the connect timeout.
    pub(super) async fn open(shared: Arc<Shared>) -> Result<Self, Determinate> {
        let limit = shared.options.connect_timeout;
        let opening = async {
            // Both times are kept here, as one: the client would count each of its steps by itself.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let address = shared.address.clone();
            let client = spawn_blocking(move || address.client()).await.map_err(|_| stopping())?;
            let client = client.map_err(|why| Determinate::Unavailable(why.to_string()))?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let connection = connection.map_err(|error| Determinate::Unavailable(failure(&error)))?;
            let mut link = Self { connection, shared: shared.clone(), name: SystemEntropy.bits(), sent: 0 };
            link.prepare().await?;
            link.check().await?;
            Ok(link)
        };
        let late = |_| Err(Determinate::Unavailable(format!("the Redis server did not let us in within {limit:?}")));
        timeout(limit, opening).await.unwrap_or_else(late)
    }

    /// Makes us known: our name in `CLIENT LIST`, our scripts by their digests. A refusal of either is no harm here: a
    /// call that needs a script sends it again.
    fn prepare(&mut self) -> impl Future<Output = Result<(), Determinate>> + Send + 'static {
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg("oncegate");
        let commands = SCRIPTS.all().map(Script::load).into_iter().chain([set_name]).collect();
        let prepared = self.exchange(commands);
        async { prepared.await.map(|_| ()).map_err(Determinate::Unavailable) }
    }

    /// Asks the server whether it is still fit. An error means that this link is to be given up.
    pub(super) fn check(&mut self) -> impl Future<Output = Result<(), Determinate>> + Send + 'static {
        let answers = self.exchange(self.shared.health.questions());
        let shared = self.shared.clone();
        async move { shared.health.judge(answers.await.map_err(Determinate::Unavailable)?) }
    }

    /// Makes the server answer, and tell whether it still has its data. An error means that this link is to be given up.
    pub(super) fn beat(&mut self) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let answers = self.exchange(self.shared.health.marker_questions().into());
        let shared = self.shared.clone();
        async move { shared.health.judge_marker(answers.await?).map_err(|why| why.to_string()) }
    }

    /// Sends commands in one go; gives the reply to each, or why there are none. Does nothing before it is polled, and
    /// what is polled first is sent first.
    ///
    /// The commands are closed by an ECHO of a token never used before. RESP has no request IDs: a reply is matched to
    /// its request by counting. Should anything between us and the server drop or add a reply, all counting from there
    /// on is off, and a caller would be handed somebody else's grant. Then the last reply is not our token, and nothing
    /// of this exchange is believed.
    pub(super) fn exchange(
        &mut self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Value>, String>> + Send + 'static + use<> {
        self.sent += 1;
        let token = format!("{:016x}:{}", self.name, self.sent);
        let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.cmd("ECHO").arg(&token);
        let (mut connection, limit) = (self.connection.clone(), self.shared.options.response_timeout);
        async move {
            let expected = pipeline.len();
            let replies = match timeout(limit, connection.send_packed_commands(&pipeline, 0, expected)).await {
                Err(_elapsed) => return Err(format!("the Redis server did not answer within {limit:?}")),
                Ok(Err(error)) => return Err(failure(&error)),
                Ok(Ok(replies)) => replies,
            };
            believed(replies, expected, token.as_bytes())
        }
    }
}

/// The replies without their closing token, if that is what they are closed by.
fn believed(mut replies: Vec<Value>, expected: usize, token: &[u8]) -> Result<Vec<Value>, String> {
    let complete = replies.len() == expected;
    match replies.pop() {
        Some(Value::BulkString(echo)) if complete && echo == token => Ok(replies),
        // What refuses an ECHO refuses everything. Still, nothing is known of what came before it.
        Some(Value::ServerError(error)) => Err(refusal(&error).to_string()),
        _ => Err("replies were lost or added on the way from the Redis server".into()),
    }
}

/// What could not be read because the runtime is ending, or because reading it panicked.
fn stopping() -> Determinate {
    Determinate::Unavailable("the certificates of the Redis engine could not be read".into())
}

/// Why a connection could not be made, or broke. The client's errors hold no secrets: of a refused password they say
/// only that it was.
fn failure(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            "WRONGPASS: the Redis server does not accept the user and password of the engine's URL".into()
        }
        _ if error.is_connection_refusal() => "the Redis server refuses connections".into(),
        ErrorKind::Io if error.to_string().contains("invalid peer certificate") => format!(
            "the certificate of the Redis server is not trusted ({error}); it must be valid for the host of the engine's \
             URL, and lead to an authority of the system, or of the file that ?ca= names"
        ),
        ErrorKind::Io => format!("the connection to the Redis server failed: {error}"),
        _ => format!("the Redis server cannot be talked to: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replies_closed_by_their_token_are_believed() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let refused = redis::parse_redis_value(b"-BUSY Redis is busy\r\n").unwrap();
        assert_eq!(believed(vec![Value::Okay, bulk("t1")], 2, b"t1"), Ok(vec![Value::Okay]));
        for wrong in [
            vec![],
            vec![bulk("t1")],
            vec![Value::Okay, bulk("t2")],
            vec![Value::Okay, Value::Nil],
            vec![bulk("t1"), Value::Okay],
            vec![Value::Okay, Value::Okay, bulk("t1")],
            vec![Value::Okay, refused],
        ] {
            assert!(believed(wrong.clone(), 2, b"t1").is_err(), "{wrong:?}");
        }
    }
}
