//! A stream with a timeout for request heads, counted from a head's first byte: a head that is left open or trickles in
//! occupies a connection and up to 256 KiB. hyper's own timeout for HTTP/1.1 begins with the answer before, so it has to allow
//! for idle time; for HTTP/2 hyper has only pings, which a peer can answer while it leaves a header block open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;

/// From a head's first byte to its end: the longest has 256 KiB, which takes 21 s at 100 kbit/s.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of the client's connection preface.
const PREFACE_BYTES: usize = 24;
/// Bytes of a frame's header: length, type, flags and stream.
const FRAME_HEADER_BYTES: usize = 9;

/// Types of frames, and the flag of the last frame of a header block (RFC 9113, section 6).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Adds the head timeout to a stream.
pub(super) struct HeadTimeout<S> {
    stream: S,
    protocol: Protocol,
    current: Option<Head>,
    /// Wakes a waiting read at the deadline.
    alarm: Option<Pin<Box<Sleep>>>,
}

/// A head that has begun.
#[derive(Clone, Copy)]
struct Head {
    /// The number of heads that had ended before it.
    number: u64,
    deadline: Instant,
}

/// How heads are found in the bytes.
enum Protocol {
    Http1(Http1Heads),
    Http2(HeaderBlocks),
}

/// Heads of HTTP/1.1, which an empty line ends.
struct Http1Heads {
    /// Counts requests as soon as their head is complete.
    activity: Activity,
    /// The last three bytes.
    tail: [u8; 3],
}

impl Http1Heads {
    fn read(&mut self, bytes: &[u8]) {
        for byte in &bytes[bytes.len().saturating_sub(self.tail.len())..] {
            self.tail = [self.tail[1], self.tail[2], *byte];
        }
    }

    /// True when bytes have come after the last complete head.
    fn is_open(&self) -> bool {
        !(self.tail == [0; 3] || self.tail == *b"\n\r\n" || self.tail.ends_with(b"\n\n"))
    }
}

impl Protocol {
    fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::Http1(heads) => heads.read(bytes),
            Self::Http2(blocks) => blocks.read(bytes),
        }
    }

    /// True when a head has begun. HTTP/1.1 bytes that come while a request is answered wait for that answer, and their
    /// timeout begins with its end.
    fn is_open(&self, has_read: bool) -> bool {
        match self {
            Self::Http1(heads) => !heads.activity.is_answering() && (has_read || heads.is_open()),
            Self::Http2(blocks) => blocks.is_open(),
        }
    }

    /// The number of heads that have ended.
    fn completed(&self) -> u64 {
        match self {
            Self::Http1(heads) => heads.activity.begun(),
            Self::Http2(blocks) => blocks.completed(),
        }
    }
}

impl<S> HeadTimeout<S> {
    /// For HTTP/1.1. `activity` must count each request as soon as its head is complete.
    pub(super) fn http1(stream: S, activity: Activity) -> Self {
        Self::new(stream, Protocol::Http1(Http1Heads { activity, tail: [0; 3] }))
    }

    /// For HTTP/2.
    pub(super) fn http2(stream: S) -> Self {
        Self::new(stream, Protocol::Http2(HeaderBlocks::default()))
    }

    const fn new(stream: S, protocol: Protocol) -> Self {
        Self { stream, protocol, current: None, alarm: None }
    }

    /// The error that ends the connection, once the deadline of the current head has passed.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(Head { deadline, .. }) = self.current else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if alarm.deadline() != deadline {
            alarm.as_mut().reset(deadline);
        }
        ready!(alarm.as_mut().poll(cx));
        let message = format!("a request's head did not end within {} s", HEAD_TIMEOUT.as_secs());
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.current.is_some_and(|head| self.protocol.completed() != head.number) {
            self.current = None;
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let has_read = into.filled().len() > before;
        self.protocol.read(&into.filled()[before..]);
        if self.current.is_none() && self.protocol.is_open(has_read) {
            let number = self.protocol.completed();
            self.current = Some(Head { number, deadline: Instant::now() + HEAD_TIMEOUT });
        }
        let is_overdue = || self.current.is_some_and(|head| head.deadline <= Instant::now());
        let must_check = read.is_pending() || is_overdue();
        match must_check.then(|| self.poll_overdue(cx)) {
            Some(Poll::Ready(error)) => Poll::Ready(Err(error)),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The state of the parser. The preface counts as the first header block, since nothing can come before it.
pub(super) struct HeaderBlocks {
    /// The received bytes of an incomplete frame header.
    header: Vec<u8>,
    /// Bytes of the current frame that are still to come.
    rest: usize,
    /// A header block has begun and not ended.
    in_block: bool,
    /// The current frame is the last one of its header block.
    is_last: bool,
    /// Header blocks that have ended.
    completed: u64,
}

impl Default for HeaderBlocks {
    fn default() -> Self {
        let header = Vec::with_capacity(FRAME_HEADER_BYTES);
        Self { header, rest: PREFACE_BYTES, in_block: false, is_last: true, completed: 0 }
    }
}

impl HeaderBlocks {
    /// Parses the next bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        self.in_block |= self.completed == 0 && !bytes.is_empty();
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (header, after) = bytes.split_at(bytes.len().min(FRAME_HEADER_BYTES - self.header.len()));
                self.header.extend(header);
                bytes = after;
                self.begin_frame();
            } else {
                let (payload, after) = bytes.split_at(bytes.len().min(self.rest));
                self.rest -= payload.len();
                bytes = after;
            }
            if self.rest == 0 && self.header.is_empty() && self.is_last {
                self.in_block = false;
                self.is_last = false;
                self.completed += 1;
            }
        }
    }

    /// Begins a frame once its header is complete.
    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, _, _, _, _] = self.header[..] else { return };
        self.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.in_block |= kind == HEADERS;
        self.is_last = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0;
        self.header.clear();
    }

    /// True within a header block, and within a frame header that may begin one.
    pub(super) fn is_open(&self) -> bool {
        self.in_block || !self.header.is_empty()
    }

    /// The number of header blocks that have ended.
    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_is_cut_30_s_after_its_first_byte() {
        let (stream, mut peer) = duplex(16);
        let activity = Activity::new();
        let mut stream = HeadTimeout::http1(stream, activity.clone());
        assert!(timeout(Duration::from_secs(300), stream.read_u8()).await.is_err(), "idle");
        peer.write_all(b"GET\n\n").await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        drop(activity.begin_request());
        assert!(timeout(Duration::from_secs(300), stream.read_u8()).await.is_err(), "that was all of it");
        let began = Instant::now();
        let trickle = async {
            while peer.write_u8(b'G').await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let read = async {
            loop {
                if let Err(error) = stream.read_u8().await {
                    break error;
                }
            }
        };
        let error = tokio::select! { error = read => error, () = trickle => unreachable!() };
        assert_eq!(error.to_string(), "a request's head did not end within 30 s");
        assert_eq!(began.elapsed(), HEAD_TIMEOUT);
    }

    /// How long a read waits until it fails; `None` if it outlasts the idle timeout.
    async fn cut_after(stream: &mut HeadTimeout<tokio::io::DuplexStream>) -> Option<Duration> {
        let began = Instant::now();
        let mut byte = [0];
        let read = timeout(Duration::from_secs(90), stream.read_exact(&mut byte)).await.ok()?;
        read.is_err().then(|| began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_begins_during_an_answer_is_cut_30_s_after_the_answer() {
        // In a read of its own, in the read of the head before, and heads that are complete.
        let whole = "GET / HTTP/1.1\r\n\r\n";
        for (first, second, cut) in [
            (whole, "G", true),
            ("GET / HTTP/1.1\r\n\r\nG", "", true),
            (whole, whole, false),
            (whole, "", false),
        ] {
            let (stream, mut peer) = duplex(1024);
            let activity = Activity::new();
            let mut stream = HeadTimeout::http1(stream, activity.clone());
            let mut into = vec![0; first.len()];
            peer.write_all(first.as_bytes()).await.unwrap();
            stream.read_exact(&mut into).await.unwrap();
            let answering = activity.begin_request();
            peer.write_all(second.as_bytes()).await.unwrap();
            stream.read_exact(&mut vec![0; second.len()]).await.unwrap();
            assert_eq!(cut_after(&mut stream).await, None, "it is answered");
            if second == whole {
                drop(activity.begin_request());
            }
            drop(answering);
            assert_eq!(
                cut_after(&mut stream).await,
                cut.then_some(HEAD_TIMEOUT),
                "{first:?}, then {second:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_header_block_is_cut_after_30_s_whatever_follows() {
        let (stream, mut peer) = duplex(1024);
        let mut stream = HeadTimeout::http2(stream);
        let mut read = async |stream: &mut HeadTimeout<_>, bytes: &[u8]| {
            peer.write_all(bytes).await.unwrap();
            stream.read_exact(&mut vec![0; bytes.len()]).await.unwrap();
        };
        read(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        read(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
        read(&mut stream, &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x82]).await;
        assert_eq!(cut_after(&mut stream).await, None, "its first request was whole");
        read(&mut stream, &[0, 0, 1, 1, 0, 0, 0, 0, 3, 0x82]).await;
        sleep(Duration::from_secs(20)).await;
        read(&mut stream, &[0, 0, 0, 9, 0, 0, 0, 0, 3]).await;
        assert_eq!(cut_after(&mut stream).await, Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_header_block_is_open_from_its_first_to_its_last_byte_however_it_is_split() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let data = vec![0, 0, 2, 0, 0, 0, 0, 0, 1, 7, 7];
        let begin = vec![0, 0, 2, 1, 0, 0, 0, 0, 3, 7, 7];
        let more = vec![0, 0, 0, 9, 0, 0, 0, 0, 3];
        let end = vec![0, 0, 1, 9, 4, 0, 0, 0, 3, 7];
        let whole = vec![0, 0, 1, 1, 5, 0, 0, 0, 5, 7];
        for size in [1, 2, 5, 9, 1000] {
            let mut blocks = HeaderBlocks::default();
            assert!(!blocks.is_open(), "nothing has come");
            for (bytes, open, completed) in [
                (&preface, false, 1),
                (&data, false, 1),
                (&begin, true, 1),
                (&more, true, 1),
                (&end, false, 2),
                (&data, false, 2),
                (&whole, false, 3),
            ] {
                bytes.chunks(size).for_each(|part| blocks.read(part));
                assert_eq!((blocks.is_open(), blocks.completed()), (open, completed), "{bytes:?} by {size}");
            }
            blocks.read(&[0]);
            assert!(blocks.is_open());
            blocks.read(&[0, 9, 0]);
            blocks.read(&[0; 5]);
            assert!(!blocks.is_open(), "that is a body");
        }
    }
}
