//! A stream whose peer must take what it asked for: a write that makes no progress for too long is an error, and so the
//! end of the connection. Neither HTTP/1.1 nor the pings of HTTP/2 end it, since a goodbye cannot be written either.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A peer takes nothing for this long: as long as an HTTP/2 peer may be silent before it is pinged.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// Ends writes that stall.
pub(super) struct Impatient<S> {
    stream: S,
    /// While a write waits: when it is given up.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, until: None }
    }

    /// Passes on what a write came to, and ends one that has waited for too long.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + STALLED)));
        ready!(until.as_mut().poll(cx));
        let text = format!("the peer took nothing for {} s", STALLED.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(closed, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_a_little_now_and_then_is_waited_for_and_one_that_takes_nothing_is_not() {
        let (ours, mut theirs) = duplex(16);
        let mut ours = Impatient::new(ours);
        let began = Instant::now();
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                theirs.read_exact(&mut [0; 16]).await.unwrap();
            }
            theirs
        };
        let (written, _theirs) = tokio::join!(ours.write_all(&[0; 128]), slow);
        assert_eq!(written.unwrap_err().to_string(), "the peer took nothing for 30 s");
        assert_eq!(began.elapsed(), Duration::from_secs(3 * 29 + 30));
    }
}
