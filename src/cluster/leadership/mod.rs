//! Who decides, and what the next leader starts from: the Lease and the state objects.

pub mod lease;
mod state_encoding;
mod state_store;
mod state_watch;
mod state_writer;

pub use lease::{Election, ElectionSettings};
pub use state_store::{StateError, StateStore, installation_name, object_names};
pub use state_writer::StateWriter;
