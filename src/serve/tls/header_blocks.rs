//! Finds header blocks in the bytes that an HTTP/2 client sends (RFC 9113, sections 4.1 and 4.3).

/// Bytes of the client's connection preface.
const PREFACE_BYTES: usize = 24;
/// Bytes of a frame's header: length, type, flags and stream.
const FRAME_HEADER_BYTES: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

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
    use super::*;

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
