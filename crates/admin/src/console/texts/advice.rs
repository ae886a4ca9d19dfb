//! What to do about each kind of item that needs a person.

use crate::attention::Kind;

/// Returns the advice for a kind of item in English.
pub(super) fn english(kind: Kind) -> &'static str {
    match kind {
        Kind::StoreDown => {
            "Check that the store runs, and that this gateway reaches it. Callers get what their outage policies say, otherwise 503. The gateway resumes on its own. If the store stays away and the chain has another engine, the page of the chain shows what a switch would lose."
        }
        Kind::StoreFull => {
            "Give the store more room, and never let it evict. Until then duplicates are answered and outcomes recorded. Then look for retentions that are longer than callers repeat."
        }
        Kind::StoreIncompatible => {
            "Remove the cause that the reason names. If it is about one record, a newer version or another program wrote it: read it before you delete it."
        }
        Kind::DataLost => {
            "Operations that were done before the loss can be granted again, and attempts from before it may still be running. Find out what ran twice from the callers' own records. `on_data_loss = \"freeze\"` of the chain stops grants for the longest lease after the next loss."
        }
        Kind::NodeDown => {
            "Start the named servers again, or replace them. The gateway uses them as soon as they answer."
        }
        Kind::WitnessDown => {
            "Check that the witness runs, and that this gateway reaches it. Calls do not need it; an automatic switch does."
        }
        Kind::Switched => {
            "The new engine does not know what was done on the old one, so operations from before can be granted again. Compare with the callers' own records, repair the old engine, and switch back when no claim from before matters."
        }
        Kind::GrantsFrozen => {
            "The store has lost its data, or is new. Claims from before may still be running, so nothing is granted until their leases have ended. Wait, unless you know that no attempt is running."
        }
        Kind::RequirementsUnmet => {
            "Give the store what `requires` of the chain names, such as a disk or a replica, or change `requires` in the configuration."
        }
        Kind::JournalFailing => {
            "Check whether the disk of server.data_dir is full or read-only. While the journal takes no entries, operations with an outage policy are refused if their store is out."
        }
        Kind::SpoolWaiting => "They are delivered when their store answers. Keep this gateway and its disk until then.",
        Kind::AuditFailing => {
            "Check whether the disk of server.data_dir is full or read-only. Until it can be written, no action is possible."
        }
        Kind::ReloadFailed => {
            "`oncegate config check` names the line. Correct the file; it is read again within seconds."
        }
        Kind::Overlap | Kind::Double => {
            "Each of these operations may have run twice. Look its effect up in the system that it changes, then record what you \
             have found."
        }
        Kind::Unknown => {
            "Callers of these operations get 409 until each is settled. Look the effect up in the system that the operation changes, then settle it with what you have found."
        }
    }
}

/// Returns it in Chinese.
pub(super) fn chinese(kind: Kind) -> &'static str {
    match kind {
        Kind::StoreDown => {
            "请检查存储是否在运行、本网关能否连到它。调用方按故障策略得到应答，否则得到 503；恢复后网关会自动继续。若存储一直不可用且该链还有另一个引擎，链的页面会显示切换会丢失什么。"
        }
        Kind::StoreFull => {
            "请给存储更多空间，切勿让它淘汰数据。在此期间重复请求照常应答，结果照常记录。随后检查保留期：哪些占用的保留时间超过了调用方的重试时间？"
        }
        Kind::StoreIncompatible => {
            "请按原因更正。若只涉及一条记录，它由更新的版本或其他程序写入：在弄清其内容之前不要删除。"
        }
        Kind::DataLost => {
            "丢失之前已完成的操作可能再次被授予，之前的尝试也可能仍在执行。请根据调用方自己的记录查明哪些操作执行了两次。该链的 `on_data_loss = \"freeze\"` 会在下次丢失后的最长租约内停止授予。"
        }
        Kind::NodeDown => "请重新启动所列服务器，或将其更换。它们一旦应答，网关就会使用。",
        Kind::WitnessDown => "请检查见证者是否在运行、本网关能否连到它。调用不需要它，自动切换需要它。",
        Kind::Switched => {
            "新引擎不知道旧引擎上已完成的操作，因此之前的操作可能再次被授予。请与调用方自己的记录核对，修复旧引擎，待之前的占用不再重要时再切换回去。"
        }
        Kind::GrantsFrozen => {
            "存储丢失了数据，或是新建的。之前被占用的操作可能仍在执行，因此在其租约结束前不授予任何占用。请等待，除非您确定没有尝试在执行。"
        }
        Kind::RequirementsUnmet => "请让存储满足该链的 `requires`（例如落盘或副本），或在配置中修改 `requires`。",
        Kind::JournalFailing => {
            "请检查 server.data_dir 所在磁盘是否已满或只读。日志不接受条目期间，若存储故障，带有故障策略的操作会被拒绝。"
        }
        Kind::SpoolWaiting => "存储应答后会自动投递。在此之前请保留本网关及其磁盘。",
        Kind::AuditFailing => "请检查 server.data_dir 所在磁盘是否已满或只读。在能够写入之前，无法进行任何操作。",
        Kind::ReloadFailed => "`oncegate config check` 会指出是哪一行。请更正文件，几秒内会重新读取。",
        Kind::Overlap | Kind::Double => "这些操作都可能执行了两次。请在受其影响的系统中查清结果，再记录查明的情况。",
        Kind::Unknown => {
            "这些操作的调用方在结果确定之前一直收到 409。请先在受该操作影响的系统中查清结果，再按查到的情况确定。"
        }
    }
}
