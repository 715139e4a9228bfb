//! Who decides, and what the next leader starts from: the Lease, the state objects, and which ScaledObjects KEDA's calls have made
//! variants.

mod call_register;
mod call_times;
pub mod lease;
mod state_encoding;
mod state_store;
mod state_watch;
mod state_writer;

pub use call_register::CallRegister;
pub use lease::{Election, ElectionSettings};
pub use state_store::{StateError, StateStore, installation_name, object_names};
pub use state_writer::StateWriter;
