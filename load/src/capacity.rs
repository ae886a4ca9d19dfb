//! Capacity by the measured CPU times: claims per second of a gateway core and of a store core. The store core is the
//! limit of many gateways.

use std::fmt;

use serde::Serialize;

use crate::{
    contender::Contender::{self, Redis},
    goals::{self, Loads},
    trial::Bench,
};

/// Numbers of single-core gateways in the last table.
const GATEWAYS: [u32; 4] = [1, 10, 100, 1000];

/// Planned load of a store in its busiest hour: the rest is for bursts and for other commands than claims.
const BUSY: f64 = 0.6;

/// Capacity of an engine, in claims per second.
#[derive(Debug, Serialize)]
pub(crate) struct Capacity {
    engine: Contender,
    gateway_core: f64,
    gateway_core_batched: Option<f64>,
    /// If the store is a separate server.
    store_core: Option<f64>,
    store_core_batched: Option<f64>,
}

/// Returns the capacity of every engine that was measured.
pub(crate) fn of(bench: &Bench, loads: Loads) -> Vec<Capacity> {
    let each = Contender::ENGINES.into_iter().filter_map(|engine| {
        let (peak, batched) = (loads.peak(engine), loads.batched(engine));
        // CPU time is counted per request, and a batch is one request.
        let each = |us: f64| 1e6 / us;
        let hundred = |us: f64| goals::BATCHED / us * 1e6;
        Some(Capacity {
            engine,
            gateway_core: bench.median(&peak, goals::gateway_us).map(each)?,
            gateway_core_batched: bench.median(&batched, goals::gateway_us).map(hundred),
            store_core: bench.median(&peak, goals::store_us).map(each),
            store_core_batched: bench.median(&batched, goals::store_us).map(hundred),
        })
    });
    each.collect()
}

/// Capacities as tables.
pub(crate) struct Capacities<'a>(pub(crate) &'a [Capacity]);

impl fmt::Display for Capacities<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| Engine | claims/s per gateway core | 100 per call | claims/s per store core | 100 per call |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: |")?;
        let or_none = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.0}"));
        for it in self.0 {
            let (one, batched) = (it.gateway_core, or_none(it.gateway_core_batched));
            let (store, store_batched) = (or_none(it.store_core), or_none(it.store_core_batched));
            writeln!(f, "| {} | {one:.0} | {batched} | {store} | {store_batched} |", it.engine)?;
        }
        let redis = self.0.iter().find_map(|it| Some((it.gateway_core, it.store_core?)).filter(|_| it.engine == Redis));
        let Some((gateway, store)) = redis else { return Ok(()) };
        writeln!(f, "\n| Gateway cores, all busy | claims/s | Redis servers at {:.0} % of a core |", BUSY * 100.0)?;
        writeln!(f, "| ---: | ---: | ---: |")?;
        for gateways in GATEWAYS {
            let claims = f64::from(gateways) * gateway;
            writeln!(f, "| {gateways} | {claims:.0} | {:.0} |", (claims / (store * BUSY)).ceil())?;
        }
        Ok(())
    }
}
