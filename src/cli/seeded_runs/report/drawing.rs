//! The time line as an SVG drawing.

use mitra_page::{Drawing, Escaped, Point};
use mitra_sim::timeline::{EventKind, NoteKind, PacketStep, Subject, Timeline, TimelineEvent};

use super::lanes::Lanes;
use super::time_axis::{TimeAxis, format_time};

const MAX_DRAWN: usize = 5_000;
/// The height of a row of labels above the lanes, the number of rows, and the mean width of a
/// letter.
const ROW: f64 = 15.0;
const ROWS: usize = 7;
const LETTER: f64 = 6.2;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 120.0;
/// The drawing of a time line, and what the page says about it.
pub(super) struct DrawnTimeline {
    /// The names of the lanes, and the lanes: two elements `svg`.
    pub(super) svgs: [String; 2],
    pub(super) moments: Vec<Moment>,
    /// The places to which the head of the page links.
    pub(super) jumps: Vec<Jump>,
    /// The number of records that are not drawn.
    pub(super) omitted: u64,
}

/// The layers of a drawing that is being made, in the order in which they cover each other.
struct Layers<'a> {
    timeline: &'a Timeline,
    axis: TimeAxis,
    lanes: Lanes,
    axis_y: f64,
    /// For each row of labels, the end of its last label.
    rows: [f64; ROWS],
    lines: Drawing,
    packets: Drawing,
    marks: Drawing,
    labels: Drawing,
    has_failed_mark: bool,
    moments: Vec<Moment>,
    jumps: Vec<Jump>,
}

/// A link from the head of the page to a place in the drawing.
pub(super) struct Jump {
    /// The id of the place.
    pub(super) to: String,
    pub(super) text: String,
}

/// The id of the first operation that ends without success, and of the end of the drawing.
const FAILED: &str = "failed";
const END: &str = "end";

/// A vertical line with a label.
pub(super) struct Moment {
    /// The number, which is part of the id to which the page links.
    pub(super) number: usize,
    pub(super) class: &'static str,
    pub(super) at: String,
    pub(super) label: String,
}

/// A cross around the current point, as a part of an SVG path.
const CROSS: &str = "m-4 -4l8 8m-8 0l8 -8";

/// The classes of packets, each with an arrow head of its own.
const PACKETS: [&str; 5] = ["request", "response", "nak", "control", "heartbeat"];

impl DrawnTimeline {
    /// Draws a time line, or returns `None` if it has no records.
    pub(super) fn new(timeline: &Timeline) -> Option<DrawnTimeline> {
        let drawn = drawn_events(timeline);
        let times: Vec<u64> = drawn.iter().map(|&i| timeline.events[i].at.as_nanos()).collect();
        let end = *times.last()?;
        let moments = drawn.iter().filter(|&&i| is_moment(timeline.events[i].kind)).count();
        let lanes = Lanes::new(timeline, ROW * (moments.min(ROWS) as f64 + 1.0));
        let axis_y = lanes.bottom + 10.0;
        let mut layers = Layers {
            timeline,
            axis: TimeAxis::new(&times, LEFT),
            lanes,
            axis_y,
            rows: [f64::MIN; ROWS],
            lines: Drawing::default(),
            packets: Drawing::default(),
            marks: Drawing::default(),
            labels: Drawing::default(),
            has_failed_mark: false,
            moments: Vec::new(),
            jumps: Vec::new(),
        };
        drawn.iter().for_each(|&i| layers.draw(&timeline.events[i]));
        let text = format!("the last record drawn, {}", format_time(end));
        layers.jumps.push(Jump { to: END.to_owned(), text });
        let height = axis_y + 26.0;
        Some(DrawnTimeline {
            svgs: [layers.lanes.names(height), layers.drawing(end, height)],
            moments: layers.moments,
            jumps: layers.jumps,
            omitted: timeline.earlier + (timeline.events.len() - drawn.len()) as u64,
        })
    }
}

impl Layers<'_> {
    fn draw(&mut self, event: &TimelineEvent) {
        let x = self.axis.x(event.at.as_nanos());
        let y = self.lanes.y(event.about);
        let tooltip = self.words(event, "\n");
        match event.kind {
            // The record of the packet's arrival or loss draws the packet.
            EventKind::Packet { step: PacketStep::Sent, .. } => self.mark("sent", event),
            EventKind::Packet { step: PacketStep::Changed, .. } => self.mark("changed", event),
            EventKind::Packet { step, sent } => {
                let is_lost = step == PacketStep::Lost;
                match (sent.map(|i| &self.timeline.events[i]), y) {
                    (Some(sent), Some(y)) => {
                        let from_y = self.lanes.y(sent.about).unwrap_or(y);
                        let from = [self.axis.x(sent.at.as_nanos()), from_y];
                        let tooltip = format!("{}\n{tooltip}", self.words(sent, " "));
                        self.packet(packet_class(&sent.text), from, [x, y], is_lost, &tooltip);
                    }
                    _ => self.mark(if is_lost { "lost" } else { "taken" }, event),
                }
            }
            EventKind::Completion => self.mark("completion", event),
            EventKind::Note(NoteKind::Operation) => self.mark(operation_class(&event.text), event),
            EventKind::Note(NoteKind::Event) => self.mark("event", event),
            EventKind::Note(kind) => {
                let class = match kind {
                    NoteKind::Fault => "fault",
                    NoteKind::Move => "move",
                    _ => "recovery",
                };
                self.mark(class, event);
                self.moment(class, event, x, &tooltip);
            }
        }
    }

    /// Returns time, place and text of a record, with a separator before the text.
    fn words(&self, event: &TimelineEvent, separator: &str) -> String {
        let (at, place) = (format_time(event.at.as_nanos()), name(self.timeline, event.about));
        format!("{at} {place}{separator}{}", event.text)
    }

    /// Draws a record on its lane.
    fn mark(&mut self, class: &str, event: &TimelineEvent) {
        let Some(y) = self.lanes.y(event.about) else { return };
        let (x, at) = (self.axis.x(event.at.as_nanos()), format_time(event.at.as_nanos()));
        let mut id = String::new();
        if class == "ends failed" && !self.has_failed_mark {
            self.has_failed_mark = true;
            id = format!("id=\"{FAILED}\" ");
            let text = format!("the first operation that ends without success, {at}");
            self.jumps.push(Jump { to: FAILED.to_owned(), text });
        }
        let attributes = format!("{id}class=\"mark {class}\" transform=\"translate({x:.1} {y:.1})\"");
        let tooltip = self.words(event, "\n");
        self.marks.group(attributes, &tooltip, |mark| mark.path("shape", shape(class)));
    }

    /// Draws a packet between two NICs.
    fn packet(&mut self, class: &str, [x, y]: Point, [to_x, to_y]: Point, is_lost: bool, tooltip: &str) {
        let way = format!("M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}");
        self.packets.group(format_args!("class=\"packet {class}\""), tooltip, |packet| {
            packet.path("hit", &way);
            if is_lost {
                packet.path("flight lost", &way);
                packet.path("cross", format_args!("M{to_x:.1} {to_y:.1}{CROSS}"));
            } else {
                packet.raw(format_args!(
                    "<path class=\"flight\" d=\"{way}\" marker-end=\"url(#to-{class})\"/>"
                ));
            }
        });
    }

    /// Draws a vertical line with a label.
    fn moment(&mut self, class: &'static str, event: &TimelineEvent, x: f64, tooltip: &str) {
        let label = format!("{} {}", name(self.timeline, event.about), event.text);
        let width = label.chars().count() as f64 * LETTER + 12.0;
        // If no row is free, the row whose last label ends first.
        let by_end = |&a: &usize, &b: &usize| self.rows[a].total_cmp(&self.rows[b]);
        let row = self.rows.iter().position(|&end| end <= x);
        let row = row.or_else(|| (0..ROWS).min_by(by_end)).unwrap_or(0);
        self.rows[row] = x + width;
        let y = ROW * (row as f64 + 0.9);
        let (number, at) = (self.moments.len(), format_time(event.at.as_nanos()));
        if class == "fault" && self.moments.iter().all(|moment| moment.class != "fault") {
            let text = format!("the first fault, {at}: {label}");
            self.jumps.push(Jump { to: format!("moment-{number}"), text });
        }
        self.lines.line(&format!("moment {class}"), [x, y - 9.0], [x, self.axis_y]);
        self.labels.raw(format_args!(
            "<text id=\"moment-{number}\" class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\"><title>{}</title>{}</text>",
            x + 4.0,
            Escaped(tooltip),
            Escaped(&label)
        ));
        self.moments.push(Moment { number, at, class, label });
    }

    /// Returns the lanes with everything on them. `end` is the time of the last record.
    fn drawing(&self, end: u64, height: f64) -> String {
        // The label of a late moment may end behind the last record.
        let width = self.rows.into_iter().fold(self.axis.width + RIGHT, f64::max);
        let mut drawing = Drawing::default();
        for class in PACKETS {
            drawing.raw(format_args!(
                "<marker id=\"to-{class}\" class=\"{class}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
                 markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 1L8 4L0 7z\"/></marker>"
            ));
        }
        self.lanes.draw(&mut drawing, width);
        for gap in self.axis.breaks() {
            drawing.rect("break", [gap.x, self.lanes.top()], [gap.width, self.axis_y]);
            let turned = format!(
                "transform=\"translate({:.1} {:.1}) rotate(-90)\"",
                gap.x + gap.width / 2.0,
                self.axis_y
            );
            drawing.group(turned, "", |text| text.text("break", [14.0, 4.0], gap.label));
        }
        self.draw_outages(&mut drawing);
        for layer in [&self.lines, &self.packets, &self.marks, &self.labels] {
            drawing.raw(layer);
        }
        drawing.raw(format_args!(
            "<path id=\"{END}\" class=\"axis\" d=\"M{:.1} {:.1}v6\"/>",
            self.axis.x(end),
            self.axis_y
        ));
        drawing.axis([0.0, self.axis_y], width, 18.0, self.axis.ticks());
        let attributes = format!("class=\"lanes\" width=\"{width:.1}\" height=\"{height:.1}\"");
        drawing.finish([width, height], &attributes)
    }

    /// Draws the times from each fault of a NIC or host to its recovery.
    fn draw_outages(&self, drawing: &mut Drawing) {
        let end = self.axis.width + RIGHT / 2.0;
        let mut open: Vec<&TimelineEvent> = Vec::new();
        let mut draw = |begin: &TimelineEvent, to: f64| {
            let (Some(y), x) = (self.lanes.y(begin.about), self.axis.x(begin.at.as_nanos())) else { return };
            let tooltip = format!("{} {}", name(self.timeline, begin.about), begin.text);
            drawing.group("", &tooltip, |outage| {
                outage.rect("outage", [x, y - 8.0], [(to - x).max(2.0), 16.0]);
            });
        };
        for event in &self.timeline.events {
            match event.kind {
                EventKind::Note(NoteKind::Fault) if !event.text.starts_with("has the address") => {
                    open.push(event)
                }
                EventKind::Note(NoteKind::Recovery) => {
                    let (ended, left) = open.into_iter().partition::<Vec<_>, _>(|fault| {
                        fault.about == event.about && is_end_of(&event.text, &fault.text)
                    });
                    open = left;
                    let to = self.axis.x(event.at.as_nanos());
                    ended.into_iter().for_each(|fault| draw(fault, to));
                }
                _ => {}
            }
        }
        open.into_iter().for_each(|fault| draw(fault, end));
    }
}

/// Returns the indices of the events to draw: the first ones, without heartbeats if there are too
/// many.
fn drawn_events(timeline: &Timeline) -> Vec<usize> {
    let all = 0..timeline.events.len();
    if timeline.events.len() <= MAX_DRAWN {
        return all.collect();
    }
    all.filter(|&i| !timeline.events[i].text.contains("Heartbeat")).take(MAX_DRAWN).collect()
}

/// Returns whether a record has a vertical line with a label.
fn is_moment(kind: EventKind) -> bool {
    matches!(kind, EventKind::Note(NoteKind::Fault | NoteKind::Recovery | NoteKind::Move))
}

/// Returns whether a recovery ends a fault. A dead or hung NIC stays dead or hung when its link is
/// up again.
fn is_end_of(recovery: &str, fault: &str) -> bool {
    match recovery {
        "link up" => fault == "link down",
        "wakes" => fault == "pauses",
        "runs again" => fault == "is starved",
        _ => fault.starts_with("holds back"),
    }
}

fn name(timeline: &Timeline, subject: Subject) -> String {
    match subject {
        Subject::World => String::new(),
        Subject::Host(host) => {
            timeline.hosts.get(host).map(|name| format!("host {name}")).unwrap_or_default()
        }
        Subject::Nic(nic) => timeline.nics.get(nic).map(|nic| nic.name.clone()).unwrap_or_default(),
    }
}

/// Returns the class of a packet by its description.
fn packet_class(text: &str) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match text {
        _ if has(&["Heartbeat"]) => "heartbeat",
        _ if has(&["UD_"]) => "control",
        _ if has(&["NAK", "RNR"]) => "nak",
        _ if has(&["ACKNOWLEDGE", "RESPONSE"]) => "response",
        _ => "request",
    }
}

fn operation_class(text: &str) -> &'static str {
    match text {
        _ if text.starts_with("posts") => "posts",
        _ if text.matches(": ").count() == text.matches(": Success").count() => "ends",
        _ => "ends failed",
    }
}

/// Returns the outline of a mark, as an SVG path around its place on the lane.
fn shape(class: &str) -> &'static str {
    match class {
        "sent" | "taken" | "event" => "M0 -4V4",
        "lost" => "M0 0m-4 -4l8 8m-8 0l8 -8",
        "changed" => "M0 -5L5 0L0 5L-5 0z",
        "completion" => "M-3 7a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        "posts" => "M0 -10L5 -1H-5z",
        "ends" | "ends failed" => "M0 10L5 1H-5z",
        _ => "M-4.5 -4.5h9v9h-9z",
    }
}
