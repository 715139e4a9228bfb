//! Flags, environment and files become one validated `Config`. The only reader of the environment.
