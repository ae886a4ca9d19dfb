//! Measurements, to be run by hand and with the machine to itself:
//! `cargo test --release --package oncegate-postgres --test it -- --ignored --nocapture measure`

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_core::claim::Outcome;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_postgres::Postgres;
use oncegate_testkit::postgres_server::{PostgresServer, program};
use tokio::task::JoinSet;

use super::{options, serves, settle, success};

const CALLERS: usize = 64;
const SPAN: Duration = Duration::from_secs(10);

/// Rate of one caller per connection with the least work: one row, one commit.
const SINGLE_ROW: &str = "\\set n random(1, 9000000000000000)\n\
    INSERT INTO single (app, id, attempt, expires_at, value) \
    VALUES ('shop', decode(md5(:n::text), 'hex'), 'p', now() + interval '30 seconds', 'attempt and contents of a claim, a hundred bytes or so, since that is what an order number comes to') \
    ON CONFLICT (app, id) DO UPDATE SET attempt = excluded.attempt, expires_at = excluded.expires_at, value = excluded.value \
    WHERE single.expires_at <= now() RETURNING attempt;\n";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and wants the machine to itself"]
async fn claims_per_second() {
    let config = ["max_wal_size = '8GB'", "shared_buffers = '256MB'", "max_connections = 200"];
    let Some(server) = PostgresServer::start_with(&config).await else { return };
    server
        .execute("CREATE TABLE single (app text, id bytea, attempt text, expires_at timestamptz, value text, PRIMARY KEY (app, id))")
        .await;
    let pgbench = pgbench(&server);
    println!("pgbench, {CALLERS} connections, one row and one commit a call: {pgbench:.0} a second");
    for connections in [1, 2, 3, 4, 6] {
        let url = format!("{}&connections={connections}", server.database(&format!("connections{connections}")).await);
        let engine = Arc::new(Postgres::open(&url, options()).unwrap());
        serves(&engine).await;
        for settled in [false, true] {
            let (calls, worst) = run(&engine, settled).await;
            let what = if settled { "claims and successes" } else { "claims" };
            println!("{connections} connections, {CALLERS} callers: {calls:.0} {what} a second, the slowest {worst:?}");
        }
        engine.close().await;
    }
}

async fn run(engine: &Arc<Postgres>, settled: bool) -> (f64, Duration) {
    let clock = SystemClock::new();
    let started = clock.monotonic();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (engine, calls) = (engine.clone(), calls.clone());
        callers.spawn(async move {
            let clock = SystemClock::new();
            let (started, mut worst) = (clock.monotonic(), Duration::ZERO);
            while clock.monotonic().saturating_sub(started) < SPAN {
                let request = fresh_claim();
                let asked = clock.monotonic();
                engine.claim(&request, DEADLINE).await.unwrap();
                worst = worst.max(clock.monotonic().saturating_sub(asked));
                calls.fetch_add(1, Ordering::Relaxed);
                if settled {
                    let outcome: Outcome = success("{\"order\":\"done\"}");
                    engine.settle(&settle(&request, outcome), DEADLINE).await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            }
            worst
        });
    }
    let worst = callers.join_all().await.into_iter().max().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = calls.load(Ordering::Relaxed) as f64 / clock.monotonic().saturating_sub(started).as_secs_f64();
    (rate, worst)
}

fn pgbench(server: &PostgresServer) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("single.sql");
    std::fs::write(&script, SINGLE_ROW).unwrap();
    let mut command = Command::new(program("pgbench").expect("it comes with the server"));
    command.args(["-n", "-M", "prepared", "-j", "2", "-c", &CALLERS.to_string(), "-T", &SPAN.as_secs().to_string()]);
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &server.address().port().to_string(), "-f"]);
    let output = command.arg(&script).arg("postgres").output().expect("pgbench runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")).unwrap_or_else(|| panic!("{output:?}"));
    tps.split(' ').next().unwrap().parse().unwrap()
}
