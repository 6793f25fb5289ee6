//! Text in HTML and SVG.

use std::fmt::{Display, Formatter, Result, Write};

/// A text whose display can stand in an element or in an attribute in double quotes.
pub struct Escaped<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> Result {
        text.chars().try_for_each(|c| match c {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            c => self.0.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_of_a_text_is_shown_as_it_is() {
        assert_eq!(Escaped("<b a=\"1\">&µ").to_string(), "&lt;b a=&quot;1&quot;&gt;&amp;µ");
    }
}
