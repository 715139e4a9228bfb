//! Scenario files: their types, and how they are read. [`super::plan`] turns them into scenarios of the simulator.

mod locate;
mod physics;
mod read;
mod types;

pub(super) use physics::preset;
pub use physics::{PhysicsEntry, PhysicsFile, RoughFile, known_physics};
pub use read::schema;
pub(super) use read::{Problem, Source, read};
pub use types::{
    ArrivalsFile, Change, File, HpaFile, LargeRequests, Load, Part, RandomFile, RandomLoad, Range,
    ScenarioFile, ScrapeFile, SetFile, Shape, SloFile, SpreadFile, TimeRange, Tokens, TraceFile, VariantFile,
    VictimsFile,
};
