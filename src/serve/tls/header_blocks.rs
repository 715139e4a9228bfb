//! Where header blocks begin and end among the bytes of HTTP/2 (RFC 9113, 4.1 and 4.3).

/// What a client sends first.
const PREFACE: usize = 24;
/// Length, type, flags and stream of a frame.
const HEADER: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The frames of a client, as far as they have come. The preface counts as a header block: until it is there nothing is.
pub(super) struct Frames {
    /// Of a frame's header, what has come.
    header: Vec<u8>,
    /// Bytes of the frame that are still to come.
    rest: usize,
    /// A header block has begun.
    in_block: bool,
    /// This frame is the last of it.
    is_last: bool,
    /// Header blocks that have ended.
    blocks: u64,
}

impl Default for Frames {
    fn default() -> Self {
        let header = Vec::with_capacity(HEADER);
        Self { header, rest: PREFACE, in_block: false, is_last: true, blocks: 0 }
    }
}

impl Frames {
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        self.in_block |= self.blocks == 0 && !bytes.is_empty();
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (now, after) = bytes.split_at(bytes.len().min(HEADER - self.header.len()));
                self.header.extend(now);
                bytes = after;
                self.begin();
            } else {
                let (now, after) = bytes.split_at(bytes.len().min(self.rest));
                self.rest -= now.len();
                bytes = after;
            }
            if self.rest == 0 && self.header.is_empty() && self.is_last {
                (self.in_block, self.is_last) = (false, false);
                self.blocks += 1;
            }
        }
    }

    /// A frame begins when its header is there.
    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header[..] else { return };
        if self.header.len() < HEADER {
            return;
        }
        self.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.in_block |= kind == HEADERS;
        self.is_last = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0;
        self.header.clear();
    }

    /// A header block has begun, or a frame of which it is not known yet.
    pub(super) fn is_open(&self) -> bool {
        self.in_block || !self.header.is_empty()
    }

    /// How many header blocks have ended.
    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_block_is_open_from_its_first_byte_to_its_last_however_it_is_cut() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let data = vec![0, 0, 2, 0, 0, 0, 0, 0, 1, 7, 7];
        let begin = vec![0, 0, 2, 1, 0, 0, 0, 0, 3, 7, 7];
        let more = vec![0, 0, 0, 9, 0, 0, 0, 0, 3];
        let end = vec![0, 0, 1, 9, 4, 0, 0, 0, 3, 7];
        let whole = vec![0, 0, 1, 1, 5, 0, 0, 0, 5, 7];
        for size in [1, 2, 5, 9, 1000] {
            let mut frames = Frames::default();
            assert!(!frames.is_open(), "nothing has come");
            for (bytes, open, blocks) in [
                (&preface, false, 1),
                (&data, false, 1),
                (&begin, true, 1),
                (&more, true, 1),
                (&end, false, 2),
                (&data, false, 2),
                (&whole, false, 3),
            ] {
                bytes.chunks(size).for_each(|part| frames.read(part));
                assert_eq!((frames.is_open(), frames.blocks()), (open, blocks), "{bytes:?} by {size}");
            }
            frames.read(&[0]);
            assert!(frames.is_open());
            frames.read(&[0, 9, 0]);
            frames.read(&[0; 5]);
            assert!(!frames.is_open(), "that is a body");
        }
    }
}
