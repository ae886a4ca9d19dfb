//! One connection to a server: how it is opened, how commands are sent in batches, and how replies are known to belong to
//! their commands.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::health::Health;
use super::reply::refusal;
use super::script::{SCRIPTS, Script};
use super::url::Url;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::driver::{self, Exchange, Fitness, Lost, Queue, Reply, Server};
use crate::engine::{Determinate, EngineError};

/// Commands that fill a batch: no call is added to a batch that has as many.
pub(super) const BATCH: usize = 128;

/// Commands that are sent together, and the way back of their replies.
pub(super) struct Call {
    pub(super) commands: Vec<Cmd>,
    pub(super) purpose: Purpose,
    pub(super) reply: Reply<Vec<Value>>,
}

/// Purpose of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// They may grant claims: refused while the server may evict keys.
    Claim,
    /// Anything else.
    Other,
}

impl driver::Call for Call {
    fn refuse(self, why: &Determinate) {
        self.reply.refuse(why);
    }
}

/// Opens connections.
pub(super) struct Connector {
    url: Arc<Url>,
    connect_timeout: Duration,
    response_timeout: Duration,
    health: Arc<Health>,
    server: Arc<Server>,
}

impl Connector {
    pub(super) fn new(
        url: Arc<Url>,
        (connect_timeout, response_timeout): (Duration, Duration),
        health: Arc<Health>,
        server: Arc<Server>,
    ) -> Self {
        Self { url, connect_timeout, response_timeout, health, server }
    }

    /// Opens a connection, and checks that the server is fit.
    async fn open(&self) -> Result<Connection, Determinate> {
        // The timeouts are kept here: the client would apply them to each of its steps.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let url = self.url.clone();
        let opener = spawn_blocking(move || url.client()).await.map_err(|_| unreadable_certificates())?;
        let opener = opener.map_err(|why| Determinate::Unavailable(why.to_string()))?;
        let client = opener.get_multiplexed_async_connection_with_config(&config).await;
        let client = client.map_err(|error| Determinate::Unavailable(failure(&error)))?;
        let (response_timeout, health) = (self.response_timeout, self.health.clone());
        let mut connection = Connection { client, response_timeout, health, name: SystemEntropy.bits(), exchanges: 0 };
        connection.prepare().await?;
        connection.check_health().await?;
        Ok(connection)
    }
}

impl driver::Connector for Connector {
    type Connection = Connection;

    fn server(&self) -> &Server {
        &self.server
    }

    async fn connect(&self) -> Result<Connection, Determinate> {
        let limit = self.connect_timeout;
        let late = |_| Err(Determinate::Unavailable(format!("no connection to the Redis server within {limit:?}")));
        timeout(limit, self.open()).await.unwrap_or_else(late)
    }
}

/// A connection that has passed the health check.
pub(super) struct Connection {
    client: MultiplexedConnection,
    response_timeout: Duration,
    health: Arc<Health>,
    /// Random, so that no value in the store can equal one of our tokens.
    name: u64,
    exchanges: u64,
}

impl driver::Connection for Connection {
    type Call = Call;
    type Done = Fitness;

    /// More would make batches smaller, and each costs an ECHO.
    const EXCHANGES_MAX: usize = 4;

    fn send(&mut self, queue: &mut Queue<Call>) -> Option<Exchange<Fitness>> {
        let refusal = self.health.refusal_of_claims();
        let calls_max = queue.len().min(BATCH);
        let (mut commands, mut replies) = (Vec::with_capacity(calls_max), Vec::with_capacity(calls_max));
        while commands.len() < BATCH {
            let Some(mut call) = queue.pop() else { break };
            match &refusal {
                Some(why) if call.purpose == Purpose::Claim => call.reply.refuse(why),
                _ if call.reply.is_abandoned() => {}
                _ => {
                    replies.push((call.commands.len(), call.reply));
                    commands.append(&mut call.commands);
                }
            }
        }
        if commands.is_empty() {
            return None;
        }
        let exchange = self.exchange(commands);
        Some(Box::pin(async move {
            match exchange.await {
                Ok(values) => {
                    let fitness = fitness(&values);
                    let mut values = values.into_iter();
                    for (count, reply) in replies {
                        reply.send(Ok(values.by_ref().take(count).collect()));
                    }
                    Ok(fitness)
                }
                Err(why) => {
                    for (_, reply) in replies {
                        reply.send(Err(EngineError::indeterminate(&*why)));
                    }
                    Err(why.into())
                }
            }
        }))
    }

    fn heartbeat(&mut self) -> Exchange<Fitness> {
        let replies = self.exchange(self.health.marker_commands().into());
        let health = self.health.clone();
        Box::pin(async move {
            health.judge_marker(replies.await?).map_err(|why| Lost::from(why.to_string()))?;
            Ok(Fitness::Good)
        })
    }

    fn check(&mut self) -> Exchange<Fitness> {
        let check = self.check_health();
        Box::pin(async move { check.await.map(|()| Fitness::Good).map_err(|why| why.to_string().into()) })
    }

    fn finish(&mut self, fitness: Fitness, _: &mut Queue<Call>) -> Fitness {
        fitness
    }
}

impl Connection {
    /// Names the connection in `CLIENT LIST`, and loads the scripts. A refusal of either is harmless: a call whose script is
    /// missing sends it again.
    async fn prepare(&mut self) -> Result<(), Determinate> {
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg("oncegate");
        let commands = SCRIPTS.all().map(Script::load).into_iter().chain([set_name]).collect();
        self.exchange(commands).await.map(drop).map_err(Determinate::Unavailable)
    }

    fn check_health(&mut self) -> impl Future<Output = Result<(), Determinate>> + Send + 'static + use<> {
        let replies = self.exchange(self.health.commands());
        let health = self.health.clone();
        async move { health.judge(replies.await.map_err(Determinate::Unavailable)?) }
    }

    /// Sends commands together; returns the reply to each, or why there are none. Does nothing before it is polled, and
    /// what is polled first is sent first.
    ///
    /// The commands are closed by an ECHO of a token that was never used before. RESP has no request IDs: a reply is matched
    /// to its command by counting. Should anything between us and the server drop or add a reply, all counting from there on
    /// is off, and a caller would be given the grant of another. Then the last reply is not our token, and no reply of this
    /// exchange is used.
    fn exchange(
        &mut self,
        commands: Vec<Cmd>,
    ) -> impl Future<Output = Result<Vec<Value>, String>> + Send + 'static + use<> {
        self.exchanges += 1;
        let token = format!("{:016x}:{}", self.name, self.exchanges);
        let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.cmd("ECHO").arg(&token);
        let (mut client, limit) = (self.client.clone(), self.response_timeout);
        async move {
            let expected = pipeline.len();
            let replies = match timeout(limit, client.send_packed_commands(&pipeline, 0, expected)).await {
                Err(_elapsed) => return Err(format!("the Redis server did not answer within {limit:?}")),
                Ok(Err(error)) => return Err(failure(&error)),
                Ok(Ok(replies)) => replies,
            };
            without_token(replies, expected, token.as_bytes())
        }
    }
}

/// A demoted server goes on refusing writes over this connection; the next one may lead to its successor.
fn fitness(replies: &[Value]) -> Fitness {
    let demoted =
        |reply: &Value| matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::ReadOnly));
    if replies.iter().any(demoted) {
        Fitness::Retire("READONLY: the Redis server has become a replica")
    } else {
        Fitness::Good
    }
}

/// Returns the replies without the token that closes them; an error if it does not.
fn without_token(mut replies: Vec<Value>, expected: usize, token: &[u8]) -> Result<Vec<Value>, String> {
    let complete = replies.len() == expected;
    match replies.pop() {
        Some(Value::BulkString(echo)) if complete && echo == token => Ok(replies),
        // A server that refuses ECHO refuses every command. Still, the replies before it are not known to be complete.
        Some(Value::ServerError(error)) => Err(refusal(&error).to_string()),
        _ => Err("replies were lost or added on the way from the Redis server".into()),
    }
}

/// The runtime is ending, or reading the files has panicked.
fn unreadable_certificates() -> Determinate {
    Determinate::Unavailable("the certificates of the Redis engine could not be read".into())
}

/// Returns why a connection could not be opened, or was lost. The client's errors hold no secrets: of a refused password
/// they say only that it was refused.
fn failure(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            "WRONGPASS: the Redis server does not accept the user and password of the engine's URL".into()
        }
        _ if error.is_connection_refusal() => "the Redis server refuses connections".into(),
        ErrorKind::Io if error.to_string().contains("invalid peer certificate") => format!(
            "the certificate of the Redis server is not trusted ({error}); it must be valid for the host of the engine's \
             URL, and issued by an authority of the system, or of the file that ?ca= names"
        ),
        ErrorKind::Io => format!("the connection to the Redis server failed: {error}"),
        _ => format!("the Redis server cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_used_only_if_their_token_closes_them() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let refused = redis::parse_redis_value(b"-BUSY Redis is busy\r\n").unwrap();
        assert_eq!(without_token(vec![Value::Okay, bulk("t1")], 2, b"t1"), Ok(vec![Value::Okay]));
        for wrong in [
            vec![],
            vec![bulk("t1")],
            vec![Value::Okay, bulk("t2")],
            vec![Value::Okay, Value::Nil],
            vec![bulk("t1"), Value::Okay],
            vec![Value::Okay, Value::Okay, bulk("t1")],
            vec![Value::Okay, refused],
        ] {
            assert!(without_token(wrong.clone(), 2, b"t1").is_err(), "{wrong:?}");
        }
    }
}
