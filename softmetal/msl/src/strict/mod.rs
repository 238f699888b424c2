//! What clang accepts and Apple's compiler refuses.

use crate::constants::Constants;
use crate::declaration::Item;
use crate::error::Message;
use crate::options::Options;
use crate::source::Source;

pub(crate) fn check(_source: &Source, _items: &[Item], _constants: &Constants, _options: &Options, _problems: &mut Vec<Message>) {}
