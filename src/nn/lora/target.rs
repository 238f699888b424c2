//! Which modules of a model get an adapter, by PEFT's rules.

use super::frozen_base::Kind;
use super::{LoraConfig, PeftConfig};
use crate::check;
use candle_core::Result;
use fancy_regex::Regex;
use serde::{Deserialize, Serialize};

/// The modules that get an adapter: PEFT's `target_modules`.
///
/// ```
/// use candle_fused::nn::lora::Targets;
/// let attention = Targets::from(["q_proj", "v_proj"]);
/// let decoder = Targets::Regex(r"decoder\..*\.(q|v)_proj".into());
/// assert_ne!(attention, decoder);
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(from = "StringOrList", into = "StringOrList")]
pub enum Targets {
    /// Modules with one of these paths, or with a path that ends in a dot and one of these.
    Suffixes(Vec<String>),
    /// Modules whose whole path matches.
    Regex(String),
    /// All linear layers but those named `lm_head`.
    AllLinear,
}

impl<S: Into<String>, const N: usize> From<[S; N]> for Targets {
    fn from(suffixes: [S; N]) -> Self {
        Targets::Suffixes(suffixes.into_iter().map(Into::into).collect())
    }
}

impl<S: Into<String>> From<Vec<S>> for Targets {
    fn from(suffixes: Vec<S>) -> Self {
        Targets::Suffixes(suffixes.into_iter().map(Into::into).collect())
    }
}

/// As in `adapter_config.json`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(untagged)]
enum StringOrList {
    String(String),
    List(Vec<String>),
}

const ALL_LINEAR: &str = "all-linear";

impl From<StringOrList> for Targets {
    fn from(value: StringOrList) -> Self {
        match value {
            StringOrList::String(s) if s == ALL_LINEAR => Targets::AllLinear,
            StringOrList::String(s) => Targets::Regex(s),
            StringOrList::List(list) => Targets::Suffixes(list),
        }
    }
}

impl From<Targets> for StringOrList {
    fn from(targets: Targets) -> Self {
        match targets {
            Targets::AllLinear => StringOrList::String(ALL_LINEAR.into()),
            Targets::Regex(s) => StringOrList::String(s),
            Targets::Suffixes(list) => StringOrList::List(list),
        }
    }
}

/// A [`PeftConfig`]'s rules, ready to be applied to modules.
pub(super) struct Matcher {
    default: LoraConfig,
    targets: Rule,
    exclude: Option<Rule>,
    layers: Option<Layers>,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

enum Rule {
    Suffixes(Vec<String>),
    Regex(Regex),
    AllLinear,
}

/// `layers_to_transform`, with the patterns that find a layer's number.
struct Layers {
    numbers: Vec<usize>,
    patterns: Vec<Regex>,
}

impl Matcher {
    pub fn new(config: &PeftConfig) -> Result<Self> {
        config.check()?;
        let Some(targets) = &config.target_modules else {
            let message =
                "got no target_modules, expected a list of suffixes, a regex or \"all-linear\"";
            return Err(check::error(NAME, message));
        };
        // As PEFT: a pattern stands for the end of a path, after its beginning or a dot.
        let tail = |key: &str| regex("a pattern's key", &format!(r"\A(?:.*\.)?(?:{key})\z"));
        Ok(Matcher {
            default: config.lora(),
            targets: Rule::new("target_modules", targets)?,
            exclude: match &config.exclude_modules {
                Some(targets) => Some(Rule::new("exclude_modules", targets)?),
                None => None,
            },
            layers: Layers::new(config)?,
            ranks: compiled(config.rank_pattern.iter(), tail)?,
            alphas: compiled(config.alpha_pattern.iter(), tail)?,
        })
    }

    /// The config of this module's adapter, if it is to have one.
    pub fn config(&self, module: &str, kind: Kind) -> Result<Option<LoraConfig>> {
        let matches = |rule: &Rule| rule.matches(module, kind);
        if self.exclude.as_ref().map(matches).transpose()? == Some(true) || !matches(&self.targets)?
        {
            return Ok(None);
        }
        if let (Some(layers), Rule::Suffixes(paths)) = (&self.layers, &self.targets) {
            // A target that is the whole path counts in every layer.
            if !paths.iter().any(|path| path == module) && !layers.contain(module)? {
                return Ok(None);
            }
        }
        let mut config = self.default.clone();
        if let Some(rank) = first_match(&self.ranks, module)? {
            config.rank = rank;
        }
        if let Some(alpha) = first_match(&self.alphas, module)? {
            config.alpha = alpha;
        }
        Ok(Some(config))
    }

    /// An error if a target matches none of these modules.
    pub fn check_used(&self, modules: &[(String, Kind)]) -> Result<()> {
        let any = |rule: &Rule| {
            modules.iter().try_fold(false, |found, (module, kind)| {
                Ok::<_, candle_core::Error>(found || rule.matches(module, *kind)?)
            })
        };
        let mut unknown = vec![];
        match &self.targets {
            Rule::Suffixes(suffixes) => {
                for suffix in suffixes {
                    if !any(&Rule::Suffixes(vec![suffix.clone()]))? {
                        unknown.push(suffix.clone());
                    }
                }
            }
            rule if !any(rule)? => unknown.push(rule.to_string()),
            _ => {}
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
        let message = format!("unknown module: target_modules {unknown:?} match none of {names:?}");
        Err(check::error(NAME, message))
    }
}

const NAME: &str = "LoraBuilder";

impl Rule {
    fn new(field: &str, targets: &Targets) -> Result<Self> {
        Ok(match targets {
            Targets::Suffixes(suffixes) => Rule::Suffixes(suffixes.clone()),
            Targets::Regex(pattern) => Rule::Regex(regex(field, &format!(r"\A(?:{pattern})\z"))?),
            Targets::AllLinear => Rule::AllLinear,
        })
    }

    fn matches(&self, module: &str, kind: Kind) -> Result<bool> {
        let ends_in = |suffix: &String| {
            let before = module.strip_suffix(suffix.as_str());
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        match self {
            Rule::Suffixes(suffixes) => Ok(suffixes.iter().any(ends_in)),
            Rule::Regex(regex) => is_match(regex, module),
            Rule::AllLinear => {
                let output = module.rsplit('.').next() == Some("lm_head");
                Ok(kind == Kind::Linear && !output)
            }
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Rule::Suffixes(suffixes) => write!(f, "{suffixes:?}"),
            Rule::Regex(regex) => f.write_str(regex.as_str()),
            Rule::AllLinear => f.write_str(ALL_LINEAR),
        }
    }
}

impl Layers {
    fn new(config: &PeftConfig) -> Result<Option<Self>> {
        let Some(numbers) = config.layers_to_transform() else {
            return Ok(None);
        };
        // As PEFT: the first number in a path, and without a pattern only behind two names.
        let patterns = match config.layers_pattern() {
            patterns if patterns.is_empty() => vec![r"\A.*?\.[^.]*\.(\d+)\.".to_string()],
            patterns => {
                let numbered = |p: &String| format!(r"\A(?:.*?\.)?(?:{p})\.(\d+)\.");
                patterns.iter().map(numbered).collect()
            }
        };
        let compile = |pattern: &String| regex("layers_pattern", pattern);
        let patterns = patterns.iter().map(compile).collect::<Result<_>>()?;
        Ok(Some(Layers { numbers, patterns }))
    }

    fn contain(&self, module: &str) -> Result<bool> {
        for pattern in &self.patterns {
            let captures = pattern.captures(module).map_err(|e| failed(pattern, e))?;
            if let Some(number) = captures.and_then(|c| c.get(1)) {
                return Ok(number
                    .as_str()
                    .parse()
                    .is_ok_and(|n| self.numbers.contains(&n)));
            }
        }
        Ok(false)
    }
}

fn compiled<'a, T: Copy + 'a>(
    patterns: impl Iterator<Item = (&'a str, T)>,
    compile: impl Fn(&str) -> Result<Regex>,
) -> Result<Vec<(Regex, T)>> {
    patterns
        .map(|(key, value)| Ok((compile(key)?, value)))
        .collect()
}

/// The value of the first pattern that matches.
fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Result<Option<T>> {
    for (regex, value) in patterns {
        if is_match(regex, module)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn regex(field: &str, pattern: &str) -> Result<Regex> {
    Regex::new(pattern)
        .map_err(|e| check::error(NAME, format_args!("{field} is no regex, {pattern:?}: {e}")))
}

fn is_match(regex: &Regex, module: &str) -> Result<bool> {
    regex.is_match(module).map_err(|e| failed(regex, e))
}

fn failed(regex: &Regex, e: fancy_regex::Error) -> candle_core::Error {
    check::error(NAME, format_args!("regex {:?} failed: {e}", regex.as_str()))
}
