//! One evaluation: collect, assemble, observe, decide, check, publish. Knows no Kubernetes and no HTTP: it owns the
//! traits of what it needs ([`MetricSource`], [`Cluster`], [`Clock`]) and the [`Board`] that every output reads.

mod assemble;
mod board;
mod changes;
mod duty_cycle;
mod evaluate;
mod join_failure;
mod leadership;
mod model_names;
mod overdue;
mod ports;
mod reader;
mod recorder;
mod restored;
mod samples;
mod schedulers;
mod takeover;
mod term_state;
mod wake;

pub use assemble::{Assembled, assemble};
pub use board::{Board, Origin, Published};
pub use evaluate::{Engine, Parts};
pub use join_failure::JoinFailure;
pub use leadership::{Holder, Leadership, Term};
pub use model_names::{LearnedModel, LearnedModels, ModelNames, NamedModels};
pub use ports::{
    Claim, Clock, Cluster, ClusterView, Collected, Destination, Endpoint, Gap, Labels, MAX_ENGINES_OF_A_POD,
    MAX_SERIES_OF_A_POD, MAX_VARIANTS_PER_MODEL, MetricSource, Pool, QueueAnswer, QueueSource, Revision,
    Scheduler, Scope, Series, SourceError, SystemClock, UnlabelledNode, ValueTargets,
};
pub use reader::{ReadSettings, Reader, run};
pub use recorder::{Evaluation, Recorder};
pub use restored::{Restored, adopt};
pub use samples::Samples;
pub(crate) use samples::SharedTimes;
pub use takeover::take_over;
pub use wake::watch_queues;
