//! Reports: one static page each, drawn by ourselves, that needs nothing from elsewhere.

const STYLE: &str = include_str!("page.css");

/// The whole page around `body`, with what this report adds to the style.
pub(crate) fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}{style}</style></head>\n<body><main>\n{body}</main></body></html>\n",
        escape(title)
    )
}

/// Text as HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
