use candle_core::{Result, Tensor, TensorId};
use std::sync::Mutex;

/// What a layer makes of its weight once. Each row of a table has a weight of its own.
pub struct Kept<T>(Mutex<Option<(TensorId, T)>>);

impl<T: Clone> Kept<T> {
    pub const fn new() -> Self {
        Kept(Mutex::new(None))
    }

    pub fn of(&self, weight: &Tensor, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut kept = self.0.lock().expect("nothing panics with it");
        match &*kept {
            Some((id, made)) if *id == weight.id() => Ok(made.clone()),
            _ => {
                let made = make()?;
                *kept = Some((weight.id(), made.clone()));
                Ok(made)
            }
        }
    }
}
