//! Jinja2's tests, for those that minijinja lacks or answers differently.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use crate::arguments::{bind, needed};
use crate::budget::{charge_shallow, to_text};
use crate::characters::all_of_case;
use crate::filters::failure;
use crate::objects::is_callable;
use crate::operators::{equal, is_in};
use crate::order::charged_order;
use crate::twins;

type Answer = Result<bool, Error>;

fn whole(test: &str, value: &Value) -> Result<i128, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()),
        kind => Err(failure(format!("the test {test} needs an integer, got {kind}"))),
    }
}

fn remainder(test: &str, value: &Value, by: i128) -> Result<i128, Error> {
    if value.is_number() && !value.is_integer() {
        let x = f64::try_from(value.clone())?;
        return Ok(if x.rem_euclid(by as f64) == 0.0 {
            0
        } else {
            i128::from(x.rem_euclid(by as f64) == 1.0)
        });
    }
    Ok(whole(test, value)?.rem_euclid(by))
}

fn one(test: &str, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(test, ["value"], args)?;
    Ok(value.unwrap_or_default())
}

fn two(test: &str, args: &[Value]) -> Result<(Value, Value), Error> {
    let [value, other] = bind(test, ["value", "other"], args)?;
    Ok((value.unwrap_or_default(), needed(test, "other", other)?))
}

fn answer(test: &'static str, args: &[Value]) -> Answer {
    args.iter().try_for_each(charge_shallow)?;
    match test {
        "eq" | "ne" | "in" | "lt" | "le" | "gt" | "ge" | "divisibleby" => {
            let (a, b) = two(test, args)?;
            return relation(test, &a, &b);
        }
        _ => {}
    }
    let value = one(test, args)?;
    Ok(match test {
        "odd" => remainder(test, &value, 2)? == 1,
        "even" => remainder(test, &value, 2)? == 0,
        "number" => matches!(value.kind(), ValueKind::Number | ValueKind::Bool),
        "sequence" => matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Map
                | ValueKind::String
                | ValueKind::Iterable
                | ValueKind::Undefined
        ),
        "iterable" => {
            value.kind() == ValueKind::Undefined || (!value.is_none() && value.try_iter().is_ok())
        }
        "callable" => is_callable(&value),
        "lower" => all_of_case(&twins::seen(&to_text(&value)?), char::is_lowercase),
        "upper" => all_of_case(&twins::seen(&to_text(&value)?), char::is_uppercase),
        _ => return Err(failure(format!("there is no test {test:?}"))),
    })
}

fn relation(test: &str, a: &Value, b: &Value) -> Answer {
    Ok(match test {
        "eq" => equal(a, b)?,
        "ne" => !equal(a, b)?,
        "in" => is_in(a, b)?,
        "lt" => charged_order(a, b)?.is_lt(),
        "le" => charged_order(a, b)?.is_le(),
        "gt" => charged_order(a, b)?.is_gt(),
        "ge" => charged_order(a, b)?.is_ge(),
        _ => {
            let by = whole(test, b)?;
            if by == 0 {
                return Err(failure("nothing is divisible by 0"));
            }
            remainder(test, a, by)? == 0
        }
    })
}

pub fn register(environment: &mut Environment<'static>) {
    for name in ["startingwith", "endingwith", "safe", "int"] {
        environment.remove_test(name); // not what Jinja2 has
    }
    for (names, test) in [
        (&["eq", "equalto", "=="][..], "eq"),
        (&["ne", "!="], "ne"),
        (&["lt", "lessthan", "<"], "lt"),
        (&["le", "<="], "le"),
        (&["gt", "greaterthan", ">"], "gt"),
        (&["ge", ">="], "ge"),
        (&["in"], "in"),
        (&["divisibleby"], "divisibleby"),
        (&["odd"], "odd"),
        (&["even"], "even"),
        (&["number"], "number"),
        (&["sequence"], "sequence"),
        (&["iterable"], "iterable"),
        (&["callable"], "callable"),
        (&["lower"], "lower"),
        (&["upper"], "upper"),
    ] {
        for name in names {
            environment.add_test(*name, move |args: Rest<ValueOrKwargs>| {
                let args: Vec<Value> = args.0.into_iter().map(Value::from).collect();
                answer(test, &args)
            });
        }
    }
}
