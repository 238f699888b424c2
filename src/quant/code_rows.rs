//! Rows of packed codes for kernels that read whole vectors.

/// Rows of packed codes, each of which can be read up to the next multiple of a vector's length. The bytes behind a row are
/// those of the next row, or zeros: the last rows, behind which there may be no memory, are copied.
pub struct CodeRows<'a> {
    codes: &'a [u8],
    row_bytes: usize,
    /// The first row that is in `tail`.
    first: usize,
    tail: Vec<u8>,
}

impl<'a> CodeRows<'a> {
    /// `vector` is the length of a vector in bytes.
    pub fn new(codes: &'a [u8], row_bytes: usize, vector: usize) -> Self {
        let rows = codes.len().checked_div(row_bytes).unwrap_or(0);
        let count = match row_bytes.checked_rem(vector) {
            Some(1..) => vector.div_ceil(row_bytes).min(rows),
            _ => 0,
        };
        let first = rows - count;
        let mut tail = Vec::new();
        if count > 0 {
            tail.extend(&codes[first * row_bytes..]);
            tail.resize(tail.len() + vector, 0);
        }
        CodeRows {
            codes,
            row_bytes,
            first,
            tail,
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The first byte of a row. From there, `row_bytes` rounded up to a multiple of the vector can be read.
    #[inline(always)]
    pub fn row(&self, row: usize) -> *const u8 {
        match row.checked_sub(self.first) {
            Some(row) => self.tail[row * self.row_bytes..].as_ptr(),
            None => self.codes[row * self.row_bytes..].as_ptr(),
        }
    }
}
