//! Output edges: the metrics API on TLS. Reads the board; computes nothing.
