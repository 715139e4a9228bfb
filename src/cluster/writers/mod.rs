//! What is written about variants and their pods: statuses, events, deletion costs, and the scale of woken variants.

mod annotated_events;
pub mod deletion_cost;
pub(crate) mod events;
mod scale;
pub mod signal_gap;
mod status;
mod status_events;
mod status_history;
mod status_writer;

pub use annotated_events::AnnotatedEventWriter;
pub use deletion_cost::DeletionCostWriter;
pub use events::{EventRecorder, EventWriter, Recorded};
pub use kube::runtime::events::EventType;
pub use scale::ScaleWriter;
pub use status_writer::{ExternalOf, StatusWriter};
