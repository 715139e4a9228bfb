//! A stream whose peer must end a request's head soon after its first byte: a head that is held open or trickles in keeps a
//! place and up to 256 KiB. hyper's own time-out for HTTP/1.1 begins with the answer before, so it has to leave an idle
//! connection its time, and for HTTP/2 it has only pings, which find a header block that is held open later than that.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;
use super::frames::Frames;

/// From a head's first byte to its end: the longest has 256 KiB, and with a line of 100 kbit/s that is 21 s.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends reads of a head that takes too long.
pub(super) struct Heads<S> {
    stream: S,
    heads: Kind,
    /// While a head is being read: the heads before it, and when it is given up.
    head: Option<(u64, Instant)>,
    /// Wakes a read that waits, at the end of a head's time.
    alarm: Option<Pin<Box<Sleep>>>,
}

/// How a head is found among the bytes.
enum Kind {
    /// HTTP/1.1.
    Lines(Lines),
    /// HTTP/2.
    Frames(Frames),
}

/// Lines of HTTP/1.1, of which an empty one ends a head.
struct Lines {
    /// Is told of each request as soon as its head is there.
    activity: Activity,
    /// The last bytes that came.
    tail: [u8; 3],
}

impl Lines {
    fn read(&mut self, bytes: &[u8]) {
        for byte in &bytes[bytes.len().saturating_sub(self.tail.len())..] {
            self.tail = [self.tail[1], self.tail[2], *byte];
        }
    }

    /// More has come than the heads that have ended.
    fn is_open(&self) -> bool {
        !(self.tail == [0; 3] || self.tail == *b"\n\r\n" || self.tail.ends_with(b"\n\n"))
    }
}

impl Kind {
    fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::Lines(lines) => lines.read(bytes),
            Self::Frames(frames) => frames.read(bytes),
        }
    }

    /// A head has begun. What comes while an answer is made waits for its end, and its time begins with that.
    fn is_open(&self, has_come: bool) -> bool {
        match self {
            Self::Lines(lines) => !lines.activity.is_answering() && (has_come || lines.is_open()),
            Self::Frames(frames) => frames.is_open(),
        }
    }

    /// How many heads have ended.
    fn ended(&self) -> u64 {
        match self {
            Self::Lines(lines) => lines.activity.begun(),
            Self::Frames(frames) => frames.blocks(),
        }
    }
}

impl<S> Heads<S> {
    /// Of HTTP/1.1. `activity` is told of each request as soon as its head is there.
    pub(super) fn of_lines(stream: S, activity: Activity) -> Self {
        Self::new(stream, Kind::Lines(Lines { activity, tail: [0; 3] }))
    }

    /// Of HTTP/2.
    pub(super) fn of_frames(stream: S) -> Self {
        Self::new(stream, Kind::Frames(Frames::default()))
    }

    const fn new(stream: S, heads: Kind) -> Self {
        Self { stream, heads, head: None, alarm: None }
    }

    /// Forgets a head that has ended.
    fn settle(&mut self) {
        if self.head.is_some_and(|(before, _)| self.heads.ended() != before) {
            self.head = None;
        }
    }

    /// The error that ends the connection, once a head's time is over.
    fn overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some((_, until)) = self.head else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if alarm.deadline() != until {
            alarm.as_mut().reset(until);
        }
        ready!(alarm.as_mut().poll(cx));
        let text = format!("a request's head did not end within {} s", HEAD_TIMEOUT.as_secs());
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.settle();
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let has_come = into.filled().len() > before;
        self.heads.read(&into.filled()[before..]);
        if self.head.is_none() && self.heads.is_open(has_come) {
            self.head = Some((self.heads.ended(), Instant::now() + HEAD_TIMEOUT));
        }
        let waits = read.is_pending() || self.head.is_some_and(|(_, until)| until <= Instant::now());
        match waits.then(|| self.overdue(cx)) {
            Some(Poll::Ready(error)) => Poll::Ready(Err(error)),
            _ => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_is_cut_30_s_after_its_first_byte_and_silence_before_it_is_not() {
        let (ours, mut theirs) = duplex(16);
        let activity = Activity::new();
        let mut ours = Heads::of_lines(ours, activity.clone());
        assert!(timeout(Duration::from_secs(300), ours.read_u8()).await.is_err(), "idle");
        theirs.write_all(b"GET\n\n").await.unwrap();
        ours.read_exact(&mut [0; 5]).await.unwrap();
        drop(activity.begin());
        assert!(timeout(Duration::from_secs(300), ours.read_u8()).await.is_err(), "that was all of it");
        let began = Instant::now();
        let trickle = async {
            while theirs.write_u8(b'G').await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let read = async {
            loop {
                if let Err(error) = ours.read_u8().await {
                    break error;
                }
            }
        };
        let error = tokio::select! { error = read => error, () = trickle => unreachable!() };
        assert_eq!(error.to_string(), "a request's head did not end within 30 s");
        assert_eq!(began.elapsed(), HEAD_TIMEOUT);
    }

    /// How long a read waits until it is cut; `None`: for as long as an idle connection may.
    async fn cut_after(ours: &mut Heads<tokio::io::DuplexStream>) -> Option<Duration> {
        let began = Instant::now();
        let mut byte = [0];
        let read = timeout(Duration::from_secs(90), ours.read_exact(&mut byte)).await.ok()?;
        read.is_err().then(|| began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_begins_while_an_answer_is_made_is_cut_30_s_after_the_answer() {
        // In a read of its own, and in that of the head before; and heads that end are none.
        let whole = "GET / HTTP/1.1\r\n\r\n";
        for (first, second, cut) in [
            (whole, "G", true),
            ("GET / HTTP/1.1\r\n\r\nG", "", true),
            (whole, whole, false),
            (whole, "", false),
        ] {
            let (ours, mut theirs) = duplex(1024);
            let activity = Activity::new();
            let mut ours = Heads::of_lines(ours, activity.clone());
            let mut into = vec![0; first.len()];
            theirs.write_all(first.as_bytes()).await.unwrap();
            ours.read_exact(&mut into).await.unwrap();
            let answering = activity.begin();
            theirs.write_all(second.as_bytes()).await.unwrap();
            ours.read_exact(&mut vec![0; second.len()]).await.unwrap();
            assert_eq!(cut_after(&mut ours).await, None, "it is answered");
            if second == whole {
                drop(activity.begin());
            }
            drop(answering);
            assert_eq!(cut_after(&mut ours).await, cut.then_some(HEAD_TIMEOUT), "{first:?}, then {second:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_block_that_has_begun_is_cut_after_30_s_whatever_comes_of_it_meanwhile() {
        let (ours, mut theirs) = duplex(1024);
        let mut ours = Heads::of_frames(ours);
        let mut read = async |ours: &mut Heads<_>, bytes: &[u8]| {
            theirs.write_all(bytes).await.unwrap();
            ours.read_exact(&mut vec![0; bytes.len()]).await.unwrap();
        };
        read(&mut ours, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        read(&mut ours, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
        read(&mut ours, &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x82]).await;
        assert_eq!(cut_after(&mut ours).await, None, "its first request was whole");
        read(&mut ours, &[0, 0, 1, 1, 0, 0, 0, 0, 3, 0x82]).await;
        sleep(Duration::from_secs(20)).await;
        read(&mut ours, &[0, 0, 0, 9, 0, 0, 0, 0, 3]).await;
        assert_eq!(cut_after(&mut ours).await, Some(Duration::from_secs(10)));
    }
}
