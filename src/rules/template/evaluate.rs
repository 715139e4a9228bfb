//! Fills templates in.

use super::parse::{Command, Node, Operand, Pipeline};
use super::value::{TemplateError, Value};

/// Most bytes that a template makes. A query of a rule has a few hundred.
const MAX_OUTPUT_BYTES: usize = 1024 * 1024;
/// Most pieces of a template that are filled in: blocks in each other multiply what a request has.
const MAX_STEPS: usize = 100_000;

pub(super) struct Scope {
    /// The variables, the newest last. That without a name is everything.
    variables: Vec<(String, Value)>,
    steps: usize,
}

impl Scope {
    pub(super) fn new(root: &Value) -> Self {
        Self { variables: vec![(String::new(), root.clone())], steps: 0 }
    }

    /// Appends what `nodes` make of the value at the dot.
    pub(super) fn write(
        &mut self,
        nodes: &[Node],
        dot: &Value,
        output: &mut String,
    ) -> Result<(), TemplateError> {
        let outer = self.variables.len();
        for node in nodes {
            self.count_step()?;
            match node {
                Node::Text(text) => output.push_str(text),
                Node::Write(pipeline) => {
                    let value = self.value(pipeline, dot)?;
                    if pipeline.variables.is_empty() {
                        output.push_str(&value.to_string());
                    } else {
                        self.assign(pipeline, vec![value])?;
                    }
                }
                Node::If(condition, then, otherwise) => {
                    let before = self.variables.len();
                    let value = self.assigned(condition, dot)?;
                    self.write(if value.is_true() { then } else { otherwise }, dot, output)?;
                    self.variables.truncate(before);
                }
                Node::With(condition, then, otherwise) => {
                    let before = self.variables.len();
                    let value = self.assigned(condition, dot)?;
                    if value.is_true() {
                        self.write(then, &value, output)?;
                    } else {
                        self.write(otherwise, dot, output)?;
                    }
                    self.variables.truncate(before);
                }
                Node::Range(pipeline, body, otherwise) => {
                    self.write_range(pipeline, (body, otherwise), dot, output)?;
                }
            }
            if output.len() > MAX_OUTPUT_BYTES {
                return Err(TemplateError::new(format!(
                    "the result is longer than {MAX_OUTPUT_BYTES} bytes"
                )));
            }
        }
        self.variables.truncate(outer);
        Ok(())
    }

    fn count_step(&mut self) -> Result<(), TemplateError> {
        self.steps += 1;
        if self.steps > MAX_STEPS { Err(TemplateError::new("it repeats too much")) } else { Ok(()) }
    }

    fn write_range(
        &mut self,
        pipeline: &Pipeline,
        (body, otherwise): (&[Node], &[Node]),
        dot: &Value,
        output: &mut String,
    ) -> Result<(), TemplateError> {
        let items: Vec<(Value, Value)> = match self.value(pipeline, dot)? {
            Value::List(list) => (0..).map(Value::Number).zip(list).collect(),
            Value::Map(map) => map.into_iter().map(|(key, value)| (Value::Text(key), value)).collect(),
            Value::Missing => Vec::new(),
            value => {
                let what = format!("range needs a list or a map, not {}", value.kind());
                return Err(TemplateError::new(what));
            }
        };
        if items.is_empty() {
            return self.write(otherwise, dot, output);
        }
        for (key, value) in items {
            let before = self.variables.len();
            let named =
                if pipeline.variables.len() == 2 { vec![key, value.clone()] } else { vec![value.clone()] };
            if !pipeline.variables.is_empty() {
                self.assign(pipeline, named)?;
            }
            self.write(body, &value, output)?;
            self.variables.truncate(before);
        }
        Ok(())
    }

    fn assigned(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, TemplateError> {
        let value = self.value(pipeline, dot)?;
        if !pipeline.variables.is_empty() {
            self.assign(pipeline, vec![value.clone()])?;
        }
        Ok(value)
    }

    fn assign(&mut self, pipeline: &Pipeline, values: Vec<Value>) -> Result<(), TemplateError> {
        if pipeline.variables.len() != values.len() {
            return Err(TemplateError::new("only range has two variables"));
        }
        for (name, value) in pipeline.variables.iter().zip(values) {
            if pipeline.declares {
                self.variables.push((name.clone(), value));
            } else {
                *self.variable(name)? = value;
            }
        }
        Ok(())
    }

    fn variable(&mut self, name: &str) -> Result<&mut Value, TemplateError> {
        let found = self.variables.iter_mut().rev().find(|(known, _)| known == name);
        let unknown = || TemplateError::new(format!("there is no variable ${name}"));
        found.map(|(_, value)| value).ok_or_else(unknown)
    }

    fn value(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, TemplateError> {
        let mut result: Option<Value> = None;
        for command in &pipeline.commands {
            result = Some(match command {
                Command::Value(_) if result.is_some() => {
                    return Err(TemplateError::new("a function follows |"));
                }
                Command::Value(operand) => self.operand(operand, dot)?,
                Command::Call(name, operands) if matches!(name.as_str(), "and" | "or") => {
                    self.first_that_decides(name == "or", operands, result, dot)?
                }
                Command::Call(name, operands) => {
                    let mut arguments = Vec::new();
                    for operand in operands {
                        arguments.push(self.operand(operand, dot)?);
                    }
                    arguments.extend(result);
                    call(name, &arguments)?
                }
            });
        }
        Ok(result.unwrap_or(Value::Missing))
    }

    /// `and` and `or`: those after the one that decides are not looked at, which may not even be there.
    fn first_that_decides(
        &mut self,
        decisive: bool,
        operands: &[Operand],
        piped: Option<Value>,
        dot: &Value,
    ) -> Result<Value, TemplateError> {
        let mut newest = None;
        for operand in operands {
            let value = self.operand(operand, dot)?;
            if value.is_true() == decisive {
                return Ok(value);
            }
            newest = Some(value);
        }
        piped.or(newest).ok_or_else(|| TemplateError::new("and and or need a value"))
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, TemplateError> {
        self.count_step()?;
        match operand {
            Operand::Literal(value) => Ok(value.clone()),
            Operand::Field(path) => field(dot, path),
            Operand::Variable(name, path) => field(self.variable(name)?, path),
            Operand::Pipeline(pipeline) => self.assigned(pipeline, dot),
        }
    }
}

/// What is read of a value. Only the last part is copied: the whole may have all labels of a long selector.
fn field(value: &Value, path: &[String]) -> Result<Value, TemplateError> {
    let found = path.iter().try_fold(value, |value, name| match value {
        Value::Fields(fields) => {
            let known: Vec<_> = fields.keys().copied().collect();
            let unknown = || {
                TemplateError::new(format!(
                    "there is no field .{name}; the fields are .{}",
                    known.join(", .")
                ))
            };
            fields.get(name.as_str()).ok_or_else(unknown)
        }
        Value::Map(map) => Ok(map.get(name).unwrap_or(&Value::Missing)),
        value => Err(TemplateError::new(format!("{} has no field .{name}", value.kind()))),
    });
    found.cloned()
}

fn call(name: &str, arguments: &[Value]) -> Result<Value, TemplateError> {
    match (name, arguments) {
        ("not", [value]) => Ok(Value::Bool(!value.is_true())),
        ("eq", [first, others @ ..]) if !others.is_empty() => Ok(Value::Bool(others.contains(first))),
        ("ne", [left, right]) => Ok(Value::Bool(left != right)),
        ("len", [value]) => length(value),
        ("index", [value, keys @ ..]) => keys.iter().try_fold(value.clone(), |value, key| index(&value, key)),
        ("print", values) => Ok(Value::Text(print(values))),
        ("printf", [Value::Text(format), values @ ..]) => printf(format, values).map(Value::Text),
        _ => {
            let kinds: Vec<_> = arguments.iter().map(Value::kind).collect();
            let given = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
            Err(TemplateError::new(format!("{name} does not take {given}")))
        }
    }
}

/// A space stands between two values of which neither is a text.
fn print(values: &[Value]) -> String {
    let mut output = String::new();
    for (index, value) in values.iter().enumerate() {
        let is_text = |value: &Value| matches!(value, Value::Text(_));
        let is_apart = index > 0 && !is_text(value) && !is_text(&values[index - 1]);
        output.push_str(if is_apart { " " } else { "" });
        output.push_str(&value.to_string());
    }
    output
}

fn length(value: &Value) -> Result<Value, TemplateError> {
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(list) => list.len(),
        Value::Map(map) => map.len(),
        value => return Err(TemplateError::new(format!("len does not take {}", value.kind()))),
    };
    Ok(Value::Number(i64::try_from(length).unwrap_or(i64::MAX)))
}

/// An entry of a map, empty where it has none, or of a list.
fn index(value: &Value, key: &Value) -> Result<Value, TemplateError> {
    match (value, key) {
        (Value::Map(map), Value::Text(key)) => Ok(map.get(key).cloned().unwrap_or_else(|| "".into())),
        (Value::List(list), Value::Number(at)) => {
            let found = usize::try_from(*at).ok().and_then(|at| list.get(at));
            let outside = || TemplateError::new(format!("index {at} of a list of {}", list.len()));
            found.cloned().ok_or_else(outside)
        }
        (value, key) => Err(TemplateError::new(format!("{} has no entry by {}", value.kind(), key.kind()))),
    }
}

fn printf(format: &str, values: &[Value]) -> Result<String, TemplateError> {
    let mut output = String::new();
    let mut values = values.iter();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            output.push(letter);
            continue;
        }
        let verb = letters.next();
        if verb == Some('%') {
            output.push('%');
            continue;
        }
        let missing = || TemplateError::new(format!("printf {format:?} has too few values"));
        let value = values.next().ok_or_else(missing)?;
        match verb {
            Some('d') if !matches!(value, Value::Number(_)) => {
                return Err(TemplateError::new(format!(
                    "printf {format:?}: %d does not take {}",
                    value.kind()
                )));
            }
            Some('s' | 'v' | 'd') => output.push_str(&value.to_string()),
            Some('q') => output.push_str(&format!("{:?}", value.to_string())),
            _ => {
                return Err(TemplateError::new(format!(
                    "printf {format:?} has a verb that is not %s, %q, %v or %d"
                )));
            }
        }
    }
    match values.next() {
        Some(_) => Err(TemplateError::new(format!("printf {format:?} has too many values"))),
        None => Ok(output),
    }
}
