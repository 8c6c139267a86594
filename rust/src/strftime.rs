//! strftime for a civil time given by the caller: the directives of chat templates, in English.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Civil {
    year: i64,
    month: usize, // 1 to 12
    day: i64,
    year_day: i64, // 1 to 366
    week_day: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

/// The proleptic Gregorian date of `seconds` since 1970-01-01 00:00.
fn civil(seconds: i64) -> Civil {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years of 365.2425 days that begin on 1 March, so that the leap day comes last.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let year_day = if month <= 2 { day_of_year - 305 } else { day_of_year + 60 + i64::from(leap) };
    Civil {
        year,
        month: month as usize,
        day: day_of_year - (153 * shifted + 2) / 5 + 1,
        year_day,
        week_day: (days + 4).rem_euclid(7) as usize,
        hour: rest / 3_600,
        minute: rest / 60 % 60,
        second: rest % 60,
    }
}

/// None for a directive outside the supported set.
pub fn strftime(format: &str, seconds: i64) -> Option<String> {
    let c = civil(seconds);
    let hour12 = (c.hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        let mut directive = chars.next()?;
        let unpadded = directive == '-';
        if unpadded {
            directive = chars.next()?;
        }
        let number = |value: i64, width: usize| {
            if unpadded {
                value.to_string()
            } else {
                format!("{value:0width$}")
            }
        };
        out.push_str(&match directive {
            'Y' => c.year.to_string(),
            'y' => number(c.year.rem_euclid(100), 2),
            'm' => number(c.month as i64, 2),
            'd' => number(c.day, 2),
            'e' => format!("{:2}", c.day),
            'H' => number(c.hour, 2),
            'I' => number(hour12, 2),
            'M' => number(c.minute, 2),
            'S' => number(c.second, 2),
            'f' => "000000".to_string(),
            'j' => number(c.year_day, 3),
            'p' => if c.hour < 12 { "AM" } else { "PM" }.to_string(),
            'B' => MONTHS[c.month - 1].to_string(),
            'b' | 'h' => MONTHS[c.month - 1][..3].to_string(),
            'A' => DAYS[c.week_day].to_string(),
            'a' => DAYS[c.week_day][..3].to_string(),
            'w' => c.week_day.to_string(),
            'F' => format!("{:04}-{:02}-{:02}", c.year, c.month, c.day),
            'T' => format!("{:02}:{:02}:{:02}", c.hour, c.minute, c.second),
            'D' => format!("{:02}/{:02}/{:02}", c.month, c.day, c.year.rem_euclid(100)),
            'R' => format!("{:02}:{:02}", c.hour, c.minute),
            'z' | 'Z' => String::new(), // as Python prints a time without a zone
            '%' => "%".to_string(),
            _ => return None,
        });
    }
    Some(out)
}
