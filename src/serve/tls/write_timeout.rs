//! A stream with a write timeout: a write that makes no progress for too long is an error, and so ends the connection. Neither
//! HTTP/1.1 nor the pings of HTTP/2 would end it, since a GOAWAY cannot be written either.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The longest time without progress: as long as an HTTP/2 peer may be silent before it is pinged.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Adds the write timeout to a stream.
pub(super) struct WriteTimeout<S> {
    stream: S,
    /// While a write waits: fires at its deadline.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, deadline: None }
    }

    /// Returns the result of a write, or an error once it has waited for too long.
    fn check<T>(&mut self, result: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.deadline = None;
            return result;
        }
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + WRITE_TIMEOUT)));
        ready!(deadline.as_mut().poll(cx));
        let message = format!("the peer took nothing for {} s", WRITE_TIMEOUT.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.check(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.check(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check(closed, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_waited_for_and_one_that_takes_nothing_is_not() {
        let (stream, mut peer) = duplex(16);
        let mut stream = WriteTimeout::new(stream);
        let began = Instant::now();
        let slow = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                peer.read_exact(&mut [0; 16]).await.unwrap();
            }
            peer
        };
        let (written, _theirs) = tokio::join!(stream.write_all(&[0; 128]), slow);
        assert_eq!(written.unwrap_err().to_string(), "the peer took nothing for 30 s");
        assert_eq!(began.elapsed(), Duration::from_secs(3 * 29 + 30));
    }
}
