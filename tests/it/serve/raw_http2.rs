//! HTTP/2 by hand, to send what no well-behaved client sends.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::READ;
use super::client::tls;
use super::pki::{Leaf, SERVICE};
use super::test_server::TestServer;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// One frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM and GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// True for the last frame of `stream`.
    pub(crate) fn ends(&self, stream: u32) -> bool {
        self.stream == stream && self.flags & END_STREAM != 0
    }

    /// GOAWAY: the last stream that will be answered.
    pub(crate) fn last_stream(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The header block of a read in the name of the HPA controller: nothing compressed.
pub(crate) fn read_headers() -> Vec<u8> {
    headers(READ, "x-remote-user", "hpa")
}

fn headers(path: &str, name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // :method GET, :scheme https, :path, :authority, one more
    [vec![0x82, 0x87, 0x04], text(path), vec![0x01], text("x"), vec![0], text(name), text(value)].concat()
}

/// A whole request for `path` with one header on `stream`.
pub(crate) fn get(path: &str, name: &str, value: &str, stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &headers(path, name, value))
}

/// A read in the name of the HPA controller on `stream`.
pub(crate) fn read(stream: u32) -> Vec<u8> {
    get(READ, "x-remote-user", "hpa", stream)
}

/// SETTINGS with the initial window of each stream.
pub(crate) fn initial_window(size: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 4], &size.to_be_bytes()[..]].concat())
}

/// WINDOW_UPDATE for the connection and for `stream`.
pub(crate) fn more(stream: u32, size: u32) -> Vec<u8> {
    [0, stream].map(|stream| frame(WINDOW_UPDATE, 0, stream, &size.to_be_bytes())).concat()
}

/// A connection past its preface.
pub(crate) struct Raw(pub(crate) TlsStream<TcpStream>);

impl Raw {
    pub(crate) async fn connect(server: &TestServer, identity: Option<&Leaf>) -> Self {
        Self::begin(tls(server.address, &server.shared_ca.pem(), SERVICE, identity, "h2").await.unwrap())
            .await
    }

    pub(crate) async fn begin(mut stream: TlsStream<TcpStream>) -> Self {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self(stream)
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next frame; `None` at the end of the connection. Acknowledges pings and settings.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        let frame_read = Frame { kind: head[3], flags: head[4], stream, payload };
        if frame_read.kind == PING && frame_read.flags == 0 {
            let _ = self.0.write_all(&frame(PING, 1, 0, &frame_read.payload)).await;
        }
        if frame_read.kind == SETTINGS && frame_read.flags == 0 {
            let _ = self.0.write_all(&frame(SETTINGS, 1, 0, &[])).await;
        }
        Some(frame_read)
    }

    /// Every frame until `last` holds for one, or the connection ends.
    pub(crate) async fn until(&mut self, last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        let reading = async {
            while let Some(frame) = self.next().await {
                frames.push(frame);
                if frames.last().is_some_and(&last) {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(5), reading).await.expect("an end in time");
        frames
    }

    /// True when the other side has closed, or does so at once.
    pub(crate) async fn is_closed(&mut self) -> bool {
        timeout(Duration::from_secs(2), async { while self.next().await.is_some() {} }).await.is_ok()
    }
}
