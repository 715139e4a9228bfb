//! A stream of HTTP/1.1 whose peer must end a request's head soon after its first byte. hyper's own time-out begins with the
//! answer before, so it has to leave an idle connection its time; a head that is held open or trickles in keeps a place and
//! up to 256 KiB, and has no such claim. HTTP/2 needs none of it: its pings find a header block that is held open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::Activity;

/// From a head's first byte to its end: the longest has 256 KiB, and with a line of 100 kbit/s that is 21 s.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends reads of a head that takes too long.
pub(super) struct Heads<S> {
    stream: S,
    activity: Activity,
    /// While a head is being read: the requests before it, and when it is given up.
    head: Option<(u64, Instant)>,
    /// Wakes a read that waits, at the end of a head's time.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Heads<S> {
    /// `activity` is told of each request as soon as its head is there.
    pub(super) fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity, head: None, alarm: None }
    }

    /// Forgets a head that has become a request.
    fn settle(&mut self) {
        if self.head.is_some_and(|(before, _)| self.activity.begun() != before) {
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
        if has_come && self.head.is_none() && !self.activity.is_answering() {
            self.head = Some((self.activity.begun(), Instant::now() + HEAD_TIMEOUT));
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
        let mut ours = Heads::new(ours, activity.clone());
        assert!(timeout(Duration::from_secs(300), ours.read_u8()).await.is_err(), "idle");
        theirs.write_u8(b'G').await.unwrap();
        ours.read_u8().await.unwrap();
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
}
