//! The methods that the growing and the rotating caches have in common: one definition, stamped for each type.

/// Methods of a cache of keys or of values, with the fields `buffer`, `dim`, `current_seq_len` and `max_seq_len`.
macro_rules! cache_methods {
    ($cache:ident) => {
        impl $cache {
            /// The dim of the tokens.
            pub fn dim(&self) -> usize {
                self.dim
            }

            /// All tokens since the last reset. A rotating cache still holds the last `max_seq_len` of them.
            pub fn current_seq_len(&self) -> usize {
                self.current_seq_len
            }

            /// The tokens that there is room for. A cache that grows raises this number.
            pub fn max_seq_len(&self) -> usize {
                self.max_seq_len
            }

            /// The whole memory, with the slots that are not yet written.
            pub fn all_data(&self) -> &Option<Tensor> {
                self.buffer.data()
            }

            /// A view of the cached tokens, in the order of their slots.
            pub fn current_data(&self) -> Result<Option<Tensor>> {
                let len = self.current_seq_len.min(self.max_seq_len);
                let view = |data: &Tensor| data.narrow(self.dim, 0, len);
                self.buffer.data().as_ref().map(view).transpose()
            }

            /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
            pub fn fork(&self) -> Self {
                self.clone()
            }
        }
    };
}
pub(super) use cache_methods;

/// A cache of keys and values that is made of two others, and its methods but for `append`.
macro_rules! cache_pair {
    ($(#[$doc:meta])* $pair:ident of $cache:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $pair {
            k: $cache,
            v: $cache,
        }

        impl $pair {
            /// For tokens along `dim`, with room for `max_seq_len` of them.
            pub fn new(dim: usize, max_seq_len: usize) -> Self {
                let cache = $cache::new(dim, max_seq_len);
                Self {
                    k: cache.clone(),
                    v: cache,
                }
            }

            /// The cache of the keys.
            pub fn k_cache(&self) -> &$cache {
                &self.k
            }

            /// The cache of the values.
            pub fn v_cache(&self) -> &$cache {
                &self.v
            }

            /// The cache of the keys.
            pub fn k_cache_mut(&mut self) -> &mut $cache {
                &mut self.k
            }

            /// The cache of the values.
            pub fn v_cache_mut(&mut self) -> &mut $cache {
                &mut self.v
            }

            /// A view of the cached keys.
            pub fn k(&self) -> Result<Option<Tensor>> {
                self.k.current_data()
            }

            /// A view of the cached values.
            pub fn v(&self) -> Result<Option<Tensor>> {
                self.v.current_data()
            }

            #[doc = concat!("As [`", stringify!($cache), "::current_seq_len`].")]
            pub fn current_seq_len(&self) -> usize {
                self.k.current_seq_len()
            }

            /// Forgets everything and gives the memory up.
            pub fn reset(&mut self) {
                self.k.reset();
                self.v.reset();
            }

            /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
            pub fn fork(&self) -> Self {
                self.clone()
            }

            /// Refuses tokens of v that could not be appended, before k is written.
            fn check(&self, name: &str, k: &Tensor, v: &Tensor) -> Result<()> {
                $crate::nn::kv_cache::same_tokens(name, k, v, self.k.dim)?;
                let is_empty = self.v.current_seq_len == 0;
                self.v.buffer.accepts(name, v, self.v.dim, is_empty)
            }
        }
    };
}
pub(super) use cache_pair;
