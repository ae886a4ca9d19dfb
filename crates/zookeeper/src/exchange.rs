//! The requests that a batch sends at once, and the meaning of their replies for each of its items.

use oncegate_coordination::step::Stepped;
use oncegate_coordination::value::Mark;

use super::failure::Failure;
use super::keys::parent;
use super::proto::{Body, Change, Stat, code};
use super::session::Replied;
use super::step::{Comparison, Plan};
use super::store::Store;

/// The requests of a batch. Items are known by their positions.
pub(super) struct Sending {
    plans: Vec<Plan>,
    changes: Vec<Vec<Change>>,
    gets: Vec<String>,
    /// Folders that are created first, each with its own request.
    folders: Vec<String>,
    /// Purposes of the other groups of changes, in order.
    parts: Vec<Part>,
    /// For each item, the position of the read of its node, if there is one.
    get_of: Vec<Option<usize>>,
}

/// A group of changes: after a comparison, if there is one, those of these items.
struct Part {
    has_comparison: bool,
    items: Vec<usize>,
}

/// Result for an item.
pub(super) enum Outcome {
    /// Its step has this result.
    Stepped(Stepped),
    /// Its write was not made because of others: it is sent again.
    Again,
    /// Its write was not made, and the present state is unknown.
    ReadFirst,
    Failed(Failure),
}

impl Sending {
    /// Returns the requests for these plans. `is_apart`: no two share a multi.
    pub(super) fn new(store: &Store, plans: Vec<Plan>, is_apart: bool) -> Self {
        let count = plans.len();
        let mut sending = Self {
            changes: Vec::new(),
            gets: Vec::new(),
            folders: Vec::new(),
            parts: Vec::new(),
            get_of: vec![None; count],
            plans,
        };
        sending.add_folders(store);
        let is_write = |position: &usize| matches!(sending.plans[*position], Plan::Write(..));
        let writes: Vec<_> = (0..count).filter(is_write).collect();
        let shares = |position: &usize| !is_apart && writes.len() > 1 && !sending.plans[*position].is_near();
        let (together, apart): (Vec<_>, Vec<_>) = writes.iter().copied().partition(shares);
        for position in apart {
            sending.add_part(store, vec![position]);
        }
        if !together.is_empty() {
            sending.add_part(store, together);
        }
        // A separate write is followed by a read, which shows why it was refused.
        let multis = sending.parts.iter().filter(|part| part.items.len() > 1);
        let in_multi: Vec<_> = multis.flat_map(|part| part.items.clone()).collect();
        for position in (0..count).filter(|position| !in_multi.contains(position)) {
            sending.get_of[position] = Some(sending.gets.len());
            sending.gets.push(sending.plans[position].path().to_owned());
        }
        sending
    }

    fn add_folders(&mut self, store: &Store) {
        for plan in self.plans.iter().filter(|plan| plan.creates()) {
            let folder = parent(plan.path());
            if !store.has_folder(folder) && !self.folders.iter().any(|known| known == folder) {
                self.folders.push(folder.to_owned());
            }
        }
        let create = |folder: &String| vec![Change::Create(folder.clone(), bytes::Bytes::new())];
        self.changes.extend(self.folders.iter().map(create));
    }

    /// Adds a group of the changes of these items, with the comparison that they share.
    fn add_part(&mut self, store: &Store, items: Vec<usize>) {
        let (mut comparison, mut changes) = (Comparison::Nothing, Vec::new());
        for position in &items {
            if let Plan::Write(_, change, own) = &self.plans[*position] {
                changes.push(change.clone());
                comparison = if *own == Comparison::Nothing { comparison } else { *own };
            }
        }
        let comparison = comparison.change(&store.keys);
        self.parts.push(Part { has_comparison: comparison.is_some(), items });
        self.changes.push(comparison.into_iter().chain(changes).collect());
    }

    /// Returns the groups of changes, and the nodes that are read behind them.
    pub(super) fn take_requests(&mut self) -> (Vec<Vec<Change>>, Vec<String>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.gets))
    }

    /// Returns the meaning of the replies for each item, and whether a multi of several items was refused.
    pub(super) fn outcomes(self, store: &Store, replied: Replied) -> (Vec<Outcome>, bool) {
        let seen = |stat: Stat| Mark { number: stat.version.into(), seen_at: replied.sent_at };
        let mut found = replied.found.into_iter().map(Some).collect::<Vec<_>>();
        let paths: Vec<_> = self.plans.iter().map(|plan| plan.path().to_owned()).collect();
        let mut outcomes: Vec<_> = (0..paths.len())
            .map(|position| match self.get_of[position].and_then(|get| found.get_mut(get)?.take()) {
                Some(Ok(found)) => Outcome::Stepped(Stepped::Found(found)),
                Some(Err(code)) => Outcome::Failed(Failure::of_code(code, &paths[position])),
                None => Outcome::Again,
            })
            .collect();
        let mut changed = replied.changed.into_iter();
        let (mut is_refused, mut no_folder) = (false, None);
        for (folder, body) in self.folders.iter().zip(changed.by_ref()) {
            match body {
                Ok(Body::Changed(_) | Body::Refused(_, code::NODE_EXISTS)) => store.add_folder(folder),
                // The folder above is not there any more: the next session makes it.
                Ok(Body::Refused(_, code::NO_NODE)) | Err(code::NO_NODE) => {}
                Ok(Body::Refused(_, code)) | Err(code) => no_folder = Some(Failure::of_code(code, folder)),
                Ok(_) => {}
            }
        }
        for (part, body) in self.parts.into_iter().zip(changed) {
            let checks = usize::from(part.has_comparison);
            match body {
                Ok(Body::Changed(stats)) => {
                    for (position, stat) in part.items.into_iter().zip(stats.into_iter().skip(checks)) {
                        outcomes[position] = Outcome::Stepped(Stepped::Written(stat.mzxid, seen(stat)));
                    }
                }
                Ok(Body::Refused(at, code)) => {
                    let refused = at.checked_sub(checks).and_then(|at| part.items.get(at)).copied();
                    is_refused |= part.items.len() > 1;
                    let Some(refused) = refused else { continue };
                    let plan = &self.plans[refused];
                    let outcome = match &no_folder {
                        Some(failure) if code == code::NO_NODE && plan.creates() => Outcome::Failed(failure.clone()),
                        _ => refusal(store, plan, code),
                    };
                    // A read behind a separate write has shown the present state of the node.
                    let is_read = self.get_of[refused].is_some();
                    if !is_read || !matches!(outcome, Outcome::ReadFirst) {
                        outcomes[refused] = outcome;
                    }
                }
                Ok(_) => fail(&mut outcomes, &part.items, &Failure::unfit()),
                Err(code) => {
                    let path = part.items.first().map_or("", |position| &paths[*position]);
                    fail(&mut outcomes, &part.items, &Failure::of_code(code, path));
                }
            }
        }
        (outcomes, is_refused)
    }
}

fn fail(outcomes: &mut [Outcome], positions: &[usize], failure: &Failure) {
    for position in positions {
        outcomes[*position] = Outcome::Failed(failure.clone());
    }
}

/// Returns the result for an item whose own change was refused.
fn refusal(store: &Store, plan: &Plan, code: i32) -> Outcome {
    match code {
        // Its folder is not there any more.
        code::NO_NODE if plan.creates() => {
            store.forget_folders();
            Outcome::Again
        }
        code::NO_NODE | code::BAD_VERSION | code::NODE_EXISTS => Outcome::ReadFirst,
        code => Outcome::Failed(Failure::of_code(code, plan.path())),
    }
}
