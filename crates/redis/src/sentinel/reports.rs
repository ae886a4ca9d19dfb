//! The last report of each Sentinel, and the conclusion from all of them.

use std::collections::BTreeSet;

use redis::Value;

use crate::address::Address;

/// Report of a Sentinel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The primary of the name, and the epoch of its configuration.
    Primary { address: Address, epoch: u64 },
    /// Does not know the name.
    UnknownName,
    /// Could not be asked, for this reason.
    Failed(String),
}

impl Report {
    /// Reads two replies: the epoch from `SENTINEL MASTER`, and the address from `SENTINEL GET-MASTER-ADDR-BY-NAME`.
    /// Between the promotion and the end of a failover, the first one combines the new epoch with the former address.
    pub(super) fn read(master: &Value, address: &Value) -> Self {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let refused = [master, address].into_iter().position(|reply| matches!(reply, Value::ServerError(_)));
        match if refused == Some(1) { address } else { master } {
            Value::ServerError(error)
                if error.details().is_some_and(|details| details.contains("No such master with that name")) =>
            {
                Self::UnknownName
            }
            Value::ServerError(error) => match error.code() {
                "NOAUTH" | "WRONGPASS" => Self::Failed(format!(
                    "{}: it requires another user or password; write sentinel_user and sentinel_password",
                    error.code()
                )),
                "NOPERM" => {
                    let why = "NOPERM: its ACL does not allow SENTINEL MASTER or SENTINEL GET-MASTER-ADDR-BY-NAME";
                    Self::Failed(why.into())
                }
                code => Self::Failed(format!("{code}: it is not a Sentinel, or does not answer as one")),
            },
            Value::Array(words) => {
                let words: Vec<_> = words.iter().map(text).collect();
                let field = |name: &str| words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
                let address = match address {
                    Value::Array(parts) => parts.iter().map(text).collect(),
                    _ => Vec::new(),
                };
                let address = match &address[..] {
                    [host, port] if !host.is_empty() => {
                        let port = port.parse().ok().filter(|port| *port != 0);
                        port.map(|port| Address { host: host.clone(), port })
                    }
                    _ => None,
                };
                let epoch = field("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
                match address {
                    Some(address) => Self::Primary { address, epoch },
                    None => Self::Failed("it names a primary without an address".into()),
                }
            }
            _ => Self::Failed("it sent a reply of an unexpected form".into()),
        }
    }
}

/// The last report of each Sentinel; nothing if it was not asked yet.
#[derive(Debug)]
pub(super) struct Reports {
    sentinels: Vec<Address>,
    last: Vec<Option<Report>>,
    are_disagreeing: bool,
}

impl Reports {
    pub(super) fn new(sentinels: Vec<Address>) -> Self {
        let last = vec![None; sentinels.len()];
        Self { sentinels, last, are_disagreeing: false }
    }

    /// Records a report.
    pub(super) fn set(&mut self, index: usize, report: Report) {
        self.last[index] = Some(report);
        self.log_disagreement();
    }

    /// Returns whether every Sentinel was asked.
    pub(super) fn are_complete(&self) -> bool {
        self.last.iter().all(Option::is_some)
    }

    /// Returns the primary with the highest epoch among the reports of reachable Sentinels, and that epoch. A primary
    /// with an epoch before `current` counts only if most Sentinels name it, as after a reset: the only reachable
    /// Sentinel may be out of date. Sentinels of different groups may name two primaries with one epoch. Every gateway
    /// takes the one with more votes, in any order of its URL.
    pub(super) fn best(&self, current: u64) -> Option<(&Address, u64)> {
        let agreeing = |of: &Address| self.primaries().filter(|(address, _)| *address == of).count();
        let best = self.primaries().max_by_key(|(address, epoch)| (*epoch, agreeing(address), *address))?;
        (best.1 >= current || agreeing(best.0) * 2 > self.sentinels.len()).then_some(best)
    }

    fn primaries(&self) -> impl Iterator<Item = (&Address, u64)> {
        self.last.iter().filter_map(|report| match report {
            Some(Report::Primary { address, epoch }) => Some((address, *epoch)),
            _ => None,
        })
    }

    /// Returns why there is no primary.
    pub(super) fn why_not(&self, name: &str) -> String {
        if self.last.iter().all(|report| *report == Some(Report::UnknownName)) {
            return format!(
                "the Sentinels do not know the name `{name}`; write the name of their `sentinel monitor` line"
            );
        }
        let failures = self.last.iter().zip(&self.sentinels).filter_map(|(report, sentinel)| match report {
            Some(Report::Failed(why)) => Some(format!("{sentinel}: {why}")),
            Some(Report::UnknownName) => {
                Some(format!("{sentinel}: it does not know the name; write that of its `sentinel monitor` line"))
            }
            _ => None,
        });
        format!("no Sentinel names the primary `{name}` ({})", failures.collect::<Vec<_>>().join("; "))
    }

    /// Sentinels that name different primaries are in the middle of a failover, cut off from one another, or of different
    /// groups. Only the first ends without help.
    fn log_disagreement(&mut self) {
        let named: BTreeSet<_> = self.primaries().map(|(address, _)| address.to_string()).collect();
        let are_disagreeing = named.len() > 1;
        if are_disagreeing && !self.are_disagreeing {
            let primaries = named.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(
                engine = "redis",
                primaries,
                "The Sentinels name different primaries; the one with the highest config-epoch is used. If this lasts, the \
                 URL names Sentinels of different groups, or some are cut off"
            );
        }
        self.are_disagreeing = are_disagreeing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(text: &str, epoch: u64) -> Report {
        Report::Primary { address: Address::parse(text).unwrap(), epoch }
    }

    fn reports(of: &[Report]) -> Reports {
        let mut reports = Reports::new((1..=of.len()).map(|n| Address::parse(&format!("s{n}:1")).unwrap()).collect());
        for (index, report) in of.iter().enumerate() {
            assert!(!reports.are_complete());
            reports.set(index, report.clone());
        }
        reports
    }

    #[test]
    fn the_highest_epoch_is_believed() {
        let dead = Report::Failed("down".into());
        let best = |of: &[Report]| reports(of).best(0).map(|(address, _)| address.to_string());
        assert_eq!(best(&[primary("a:1", 3), primary("b:1", 4), primary("a:1", 3)]).as_deref(), Some("b:1"));
        assert_eq!(best(&[dead.clone(), primary("a:1", 3)]).as_deref(), Some("a:1"));
        assert_eq!(best(&[dead.clone(), dead]), None);
    }

    #[test]
    fn of_two_primaries_with_one_epoch_all_gateways_take_the_same() {
        let best = |of: &[Report]| reports(of).best(0).map(|(address, _)| address.to_string());
        let (a, b) = (primary("a:1", 0), primary("b:1", 0));
        assert_eq!(best(&[a.clone(), a.clone(), b.clone()]).as_deref(), Some("a:1"));
        assert_eq!(best(&[b.clone(), a.clone()]), best(&[a, b]));
    }

    #[test]
    fn a_sentinel_that_is_behind_is_not_believed_alone() {
        let dead = Report::Failed("down".into());
        let best = |of: &[Report]| reports(of).best(4).map(|(address, _)| address.to_string());
        assert_eq!(best(&[primary("a:1", 3), dead.clone(), dead.clone()]), None);
        assert_eq!(best(&[primary("b:1", 4), dead.clone(), dead.clone()]).as_deref(), Some("b:1"));
        assert_eq!(best(&[primary("c:1", 0), primary("c:1", 0), dead]).as_deref(), Some("c:1"), "after a reset");
    }

    #[test]
    fn half_of_the_sentinels_are_not_most_of_them() {
        let dead = Report::Failed("down".into());
        assert_eq!(reports(&[primary("a:1", 3), dead.clone()]).best(4), None);
        assert!(reports(&[primary("a:1", 3)]).best(4).is_some());
        let two = reports(&[primary("a:1", 3), primary("a:1", 3), dead]);
        assert!(two.best(4).is_some() && two.are_complete());
    }

    #[test]
    fn a_disagreement_lasts_until_all_name_the_same_primary() {
        let mut reports = reports(&[primary("a:1", 3), primary("a:1", 3)]);
        assert!(!reports.are_disagreeing);
        for (named, are_disagreeing) in [("b:1", true), ("b:1", true), ("a:1", false)] {
            reports.set(0, primary(named, 4));
            assert_eq!(reports.are_disagreeing, are_disagreeing, "{named}");
        }
    }

    #[test]
    fn it_is_said_why_there_is_no_primary() {
        let why = reports(&[Report::UnknownName, Report::UnknownName]).why_not("mymaster");
        assert!(why.contains("do not know the name `mymaster`"), "{why}");
        let why = reports(&[Report::Failed("down".into()), Report::UnknownName]).why_not("mymaster");
        assert!(why.contains("`mymaster` (s1:1: down; s2:1: it does not know the name"), "{why}");
        let why = reports(&[Report::Failed("down".into()), Report::Failed("late".into())]).why_not("m");
        assert!(why.contains("s1:1: down; s2:1: late"), "{why}");
    }

    #[test]
    fn replies_are_read() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        // In the middle of a failover: the former address with the new epoch, and the new address.
        let master = || Value::Array(["name", "m", "ip", "::9", "port", "7009", "config-epoch", "5"].map(bulk).into());
        let named = || Value::Array(["::1", "7000"].map(bulk).into());
        let address = Address { host: "::1".into(), port: 7000 };
        assert_eq!(Report::read(&master(), &named()), Report::Primary { address, epoch: 5 });
        let failed = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        assert!(matches!(Report::read(&master(), &failed("NOPERM x")), Report::Failed(why) if why.contains("ACL")));
        let error = |line: &str| Report::read(&failed(line), &failed(line));
        assert_eq!(error("ERR No such master with that name"), Report::UnknownName);
        for (line, hint) in [
            ("NOAUTH x", "sentinel_password"),
            ("ERR unknown command 'SENTINEL'", "not a Sentinel"),
            ("NOPERM x", "ACL"),
        ] {
            assert!(matches!(error(line), Report::Failed(why) if why.contains(hint)), "{line}");
        }
        for wrong in [Value::Nil, Value::Array(vec![]), Value::Array(vec![bulk("h"), bulk("0")])] {
            assert!(matches!(Report::read(&master(), &wrong), Report::Failed(_)));
        }
        assert!(matches!(Report::read(&Value::Nil, &named()), Report::Failed(_)));
    }

    #[test]
    fn a_primary_without_a_host_or_a_port_is_no_primary() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let master = Value::Array(["name", "m", "config-epoch", "5"].map(bulk).into());
        for parts in [["", "7000"], ["h", "0"], ["h", "x"]] {
            let named = Value::Array(parts.map(bulk).into());
            assert!(matches!(Report::read(&master, &named), Report::Failed(why) if why.contains("without an address")));
        }
    }
}
