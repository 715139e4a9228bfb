//! The templates in rules: those of Go's `text/template` between `<<` and `>>`, as far as queries and labels need them. That is text, fields,
//! variables, pipelines, `if`, `with`, `range`, and the functions `and`, `eq`, `index`, `len`, `ne`, `not`, `or`, `print` and `printf`.
//! Pure.

mod evaluate;
mod lexer;
mod parse;
mod value;

use std::collections::BTreeMap;

use self::evaluate::Scope;
use self::parse::Node;
pub(super) use self::value::{TemplateError, Value};

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(Vec<Node>);

impl Template {
    /// # Errors
    /// Says what is wrong, and where.
    pub(super) fn parse(text: &str) -> Result<Self, TemplateError> {
        parse::parse(text).map(Self)
    }

    /// The text for these fields.
    ///
    /// # Errors
    /// A field that is not there, a function that does not take its arguments, or too long a result.
    pub(super) fn render(&self, fields: BTreeMap<&'static str, Value>) -> Result<String, TemplateError> {
        let root = Value::Fields(fields);
        let mut scope = Scope::new(&root);
        let mut output = String::new();
        scope.write(&self.0, &root, &mut output)?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests;
