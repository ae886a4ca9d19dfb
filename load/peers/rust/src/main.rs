//! The decision in Rust: `SET NX` with redis, or `once` of the client. See ../README.md.

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use oncegate_client::{Client, Once, Options, Terms, WorkError, contents};
use redis::aio::MultiplexedConnection;
use tokio::{
    io::{AsyncReadExt as _, stdin},
    time::sleep_until,
};

const KEPT: Duration = Duration::from_secs(300);
const SAMPLE: u64 = 200;

type Failure = Box<dyn Error + Send + Sync>;

/// What decides.
#[derive(Clone)]
enum Decider {
    Bare(MultiplexedConnection),
    Ours(Arc<Client>),
}

impl Decider {
    /// Claims an operation. Returns whether it was granted.
    async fn claim(&mut self, run: &str, order: u64) -> Result<bool, Failure> {
        match self {
            Self::Bare(connection) => {
                let key = format!("og:{{{run}{order:024x}}}:load");
                let value = format!(
                    r#"1767225600000000-{order:016x} 1p l=306s r=306s o=load.unique c={{"order":"{run}-{order}"}}"#
                );
                let mut command = redis::cmd("SET");
                command.arg(key).arg(value).arg("NX").arg("GET").arg("PX").arg(KEPT.as_millis());
                let found: Option<String> = command.query_async(connection).await?;
                Ok(found.is_none())
            }
            Self::Ours(client) => {
                let (contents, terms) =
                    (contents! { "order" => format!("{run}-{order}") }, Terms::new().lease(KEPT).retention(KEPT));
                let once = client.once_with("load.unique", contents, terms, async |_| Ok::<_, WorkError>(true)).await;
                Ok(matches!(once.map_err(|error| error.to_string())?, Once::Done(_)))
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<f64> = env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [callers, warm_up, seconds] = words[..] else { return Err("usage: peer CALLERS WARM_UP SECONDS".into()) };
    let mut decider = match env::var("REDIS_URL") {
        Ok(url) => Decider::Bare(redis::Client::open(url)?.get_multiplexed_async_connection().await?),
        Err(_) => {
            // The credential is in the environment, too.
            Decider::Ours(Arc::new(Client::from_env(Options::default())?))
        }
    };
    let run: Arc<str> = format!("{:08x}", SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()).into();
    let begins = Instant::now() + Duration::from_secs_f64(warm_up);
    let ends = begins + Duration::from_secs_f64(seconds);
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let mut tasks = Vec::new();
    for _ in 0..callers as u32 {
        let (mut decider, run, counts) = (decider.clone(), Arc::clone(&run), Arc::clone(&counts));
        tasks.push(tokio::spawn(async move {
            let [next, granted, refused] = &*counts;
            while let now = Instant::now()
                && now < ends
            {
                let is_granted = decider.claim(&run, next.fetch_add(1, Relaxed)).await?;
                if now >= begins {
                    (if is_granted { granted } else { refused }).fetch_add(1, Relaxed);
                }
            }
            Ok::<_, Failure>(())
        }));
    }
    sleep_until(begins.into()).await;
    println!("begin");
    for task in tasks {
        task.await??;
    }
    let [next, granted, refused] = &*counts;
    println!("end {} {}", granted.load(Relaxed), refused.load(Relaxed));
    let (next, mut repeated, mut again) = (next.load(Relaxed), 0, 0);
    for order in (0..next).step_by(usize::try_from((next / SAMPLE).max(1))?) {
        repeated += 1;
        again += u32::from(decider.claim(&run, order).await?);
    }
    println!("repeated {repeated} {again}");
    stdin().read_to_end(&mut Vec::new()).await?;
    Ok(())
}
