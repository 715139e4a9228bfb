//! Scenario files: their types, and how they are read. [`super::plan`] turns them into scenarios of the simulator.

mod locate;
mod physics;
mod read;
mod types;

pub(super) use physics::preset;
pub use physics::{DeviationsFile, PhysicsEntry, PhysicsFile, known_physics};
pub use read::schema;
pub(super) use read::{Problem, Source, read};
pub use types::{
    ArrivalsFile, BlinkingFile, Change, ClientsFile, CrashingFile, DeletionOrderFile, FamilyFile, File,
    HpaFile, LargeRequests, Load, MeanTokensFile, PodFaultFile, PrefixCacheFile, RandomFile, RandomLoad,
    Range, ScenarioFile, ScrapeFile, SegmentFile, SetFile, SizesRange, SloFile, SpreadFile, TimeRange,
    Tokens, TraceFile, VariantFile,
};
