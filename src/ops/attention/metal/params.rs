//! What kernels/parts/attention.metal calls `AttentionParams`.

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    pub q: [u64; 3],
    pub k: [u64; 3],
    pub v: [u64; 3],
    pub y: [u64; 3],
    pub grad: [u64; 3],
    pub dq: [u64; 3],
    pub dk: [u64; 3],
    pub dv: [u64; 3],
    pub mask: [u64; 4],
    pub dropout_row: u64,
    pub mask_dims: [u32; 4],
    pub batch: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub group: u32,
    pub queries: u32,
    pub keys: u32,
    pub dim: u32,
    pub value_dim: u32,
    pub packed: u32,
    pub most_queries: u32,
    pub length_words: u32,
    pub length_stride: u32,
    pub mask_kind: u32,
    pub has_sinks: u32,
    pub has_left: u32,
    pub has_right: u32,
    pub left: u32,
    pub right: u32,
    pub has_dropout: u32,
    pub seed_low: u32,
    pub seed_high: u32,
    pub threshold: u32,
    pub aligned: u32,
    pub parts: u32,
    pub part: u32,
    pub wants_k: u32,
    pub wants_v: u32,
    pub wants_mask: u32,
    pub wants_sinks: u32,
    pub keep: f32,
    pub scale: f32,
    pub softcap: f32,
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "attention" AttentionParams {
        q, k, v, y, grad, dq, dk, dv, mask, dropout_row, mask_dims, batch, heads, kv_heads, group, queries, keys, dim,
        value_dim, packed, most_queries, length_words, length_stride, mask_kind, has_sinks, has_left, has_right, left, right,
        has_dropout, seed_low, seed_high, threshold, aligned, parts, part, wants_k, wants_v, wants_mask, wants_sinks, keep,
        scale, softcap
    }
}
