//! The time line as an SVG drawing.

use askama::Template;
use mitra_sim::timeline::{EventKind, NoteKind, PacketStep, Subject, Timeline, TimelineEvent};

use super::lanes::Lanes;
use super::time_axis::{Break, Tick, TimeAxis, format_time};
use crate::cli::svg_units::{Px, Rect};

const MAX_DRAWN: usize = 5_000;
/// The height of a row of labels above the lanes, the number of rows, and the mean width of a
/// letter.
const ROW: f64 = 15.0;
const ROWS: usize = 7;
const LETTER: f64 = 6.2;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 120.0;
/// The least width of the names of the lanes, the space around the longest name, and the mean width
/// of its bold letters.
const NAMES: f64 = 92.0;
const NAME_MARGIN: f64 = 24.0;
const BOLD_LETTER: f64 = 7.6;

#[derive(Template)]
#[template(path = "seeded_runs/report/drawing.svg")]
pub(super) struct Drawing {
    width: Px,
    names_width: Px,
    name_x: Px,
    height: Px,
    lanes: Lanes,
    lane_end: Px,
    axis_y: Px,
    label_y: Px,
    ticks: Vec<Tick>,
    breaks: Vec<Break>,
    outages: Vec<Outage>,
    packets: Vec<Arrow>,
    marks: Vec<LaneMark>,
    pub(super) moments: Vec<Moment>,
    /// The places to which the head of the page links.
    pub(super) jumps: Vec<Jump>,
    end: Px,
    /// The number of records that are not drawn.
    pub(super) omitted: u64,
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

/// A time in which a NIC or a host does not work.
struct Outage {
    rect: Rect,
    tooltip: String,
}

/// A packet between two NICs.
struct Arrow {
    class: &'static str,
    x: Px,
    y: Px,
    to_x: Px,
    to_y: Px,
    is_lost: bool,
    tooltip: String,
}

/// A record on a lane.
struct LaneMark {
    /// The id of the mark, or an empty text.
    id: &'static str,
    class: &'static str,
    shape: &'static str,
    x: Px,
    y: Px,
    tooltip: String,
}

/// A vertical line with a label.
pub(super) struct Moment {
    /// The number, which is part of the id to which the page links.
    pub(super) number: usize,
    pub(super) class: &'static str,
    pub(super) at: String,
    x: Px,
    line_y: Px,
    label_x: Px,
    label_y: Px,
    pub(super) label: String,
    tooltip: String,
}

impl Drawing {
    /// Draws a time line, or returns `None` if it has no records.
    pub(super) fn new(timeline: &Timeline) -> Option<Drawing> {
        let drawn = drawn_events(timeline);
        let times: Vec<u64> = drawn.iter().map(|&i| timeline.events[i].at.as_nanos()).collect();
        if times.is_empty() {
            return None;
        }
        let moments = drawn.iter().filter(|&&i| is_moment(timeline.events[i].kind)).count();
        let top = ROW * (moments.min(ROWS) as f64 + 1.0);
        let axis = TimeAxis::new(&times, LEFT);
        let lanes = Lanes::new(timeline, top);
        let longest = lanes.labels.iter().map(|label| label.text.chars().count()).max().unwrap_or(0);
        let names = NAMES.max(longest as f64 * BOLD_LETTER + NAME_MARGIN);
        let axis_y = lanes.bottom + 10.0;
        let mut drawing = Drawing {
            width: Px(axis.width + RIGHT),
            names_width: Px(names),
            name_x: Px(names - 10.0),
            height: Px(axis_y + 26.0),
            lane_end: Px(axis.width + RIGHT),
            axis_y: Px(axis_y),
            label_y: Px(axis_y + 18.0),
            ticks: axis.ticks(),
            breaks: axis.breaks(),
            outages: Vec::new(),
            packets: Vec::new(),
            marks: Vec::new(),
            moments: Vec::new(),
            jumps: Vec::new(),
            end: Px(axis.x(times[times.len() - 1])),
            omitted: timeline.earlier + (timeline.events.len() - drawn.len()) as u64,
            lanes,
        };
        let mut rows = [f64::MIN; ROWS];
        for i in drawn {
            drawing.draw(timeline, &timeline.events[i], &axis, &mut rows);
        }
        drawing.draw_outages(timeline, &axis);
        // The label of a late moment may end behind the last record.
        let width = rows.into_iter().fold(axis.width + RIGHT, f64::max);
        (drawing.width, drawing.lane_end) = (Px(width), Px(width));
        let end = times[times.len() - 1];
        let text = format!("the last record drawn, {}", format_time(end));
        drawing.jumps.push(Jump { to: END.to_owned(), text });
        Some(drawing)
    }

    fn draw(&mut self, timeline: &Timeline, event: &TimelineEvent, axis: &TimeAxis, rows: &mut [f64; ROWS]) {
        let x = axis.x(event.at.as_nanos());
        let y = self.lanes.y(event.about);
        let tooltip =
            format!("{} {}\n{}", format_time(event.at.as_nanos()), name(timeline, event.about), event.text);
        let mark = |class: &'static str| {
            y.map(|y| LaneMark {
                id: "",
                class,
                shape: shape(class),
                x: Px(x),
                y: Px(y),
                tooltip: tooltip.clone(),
            })
        };
        match event.kind {
            // The record of the packet's arrival or loss draws the packet.
            EventKind::Packet { step: PacketStep::Sent, .. } => self.marks.extend(mark("sent")),
            EventKind::Packet { step: PacketStep::Changed, .. } => self.marks.extend(mark("changed")),
            EventKind::Packet { step, sent } => {
                let is_lost = step == PacketStep::Lost;
                match (sent.map(|i| &timeline.events[i]), y) {
                    (Some(sent), Some(to_y)) => {
                        let at = sent.at.as_nanos();
                        let from = name(timeline, sent.about);
                        self.packets.push(Arrow {
                            class: packet_class(&sent.text),
                            x: Px(axis.x(at)),
                            y: Px(self.lanes.y(sent.about).unwrap_or(to_y)),
                            to_x: Px(x),
                            to_y: Px(to_y),
                            is_lost,
                            tooltip: format!("{} {from} {}\n{tooltip}", format_time(at), sent.text),
                        });
                    }
                    _ => self.marks.extend(mark(if is_lost { "lost" } else { "taken" })),
                }
            }
            EventKind::Completion => self.marks.extend(mark("completion")),
            EventKind::Note(NoteKind::Operation) => {
                let class = operation_class(&event.text);
                let is_first = class == "ends failed" && self.marks.iter().all(|mark| mark.id != FAILED);
                let id = if is_first { FAILED } else { "" };
                self.marks.extend(mark(class).map(|mark| LaneMark { id, ..mark }));
                if is_first {
                    let at = format_time(event.at.as_nanos());
                    let text = format!("the first operation that ends without success, {at}");
                    self.jumps.push(Jump { to: FAILED.to_owned(), text });
                }
            }
            EventKind::Note(NoteKind::Event) => self.marks.extend(mark("event")),
            EventKind::Note(kind) => {
                let class = match kind {
                    NoteKind::Fault => "fault",
                    NoteKind::Move => "move",
                    _ => "recovery",
                };
                self.marks.extend(mark(class));
                let label = format!("{} {}", name(timeline, event.about), event.text);
                let width = label.chars().count() as f64 * LETTER + 12.0;
                // If no row is free, the row whose last label ends first.
                let row = rows.iter().position(|&end| end <= x);
                let row = row
                    .unwrap_or_else(|| (0..ROWS).min_by(|&a, &b| rows[a].total_cmp(&rows[b])).unwrap_or(0));
                rows[row] = x + width;
                let label_y = ROW * (row as f64 + 0.9);
                if class == "fault" && self.moments.iter().all(|moment| moment.class != "fault") {
                    let text = format!("the first fault, {}: {label}", format_time(event.at.as_nanos()));
                    self.jumps.push(Jump { to: format!("moment-{}", self.moments.len()), text });
                }
                self.moments.push(Moment {
                    number: self.moments.len(),
                    at: format_time(event.at.as_nanos()),
                    class,
                    x: Px(x),
                    line_y: Px(label_y - 9.0),
                    label_x: Px(x + 4.0),
                    label_y: Px(label_y),
                    label,
                    tooltip,
                });
            }
        }
    }

    /// Draws the times from each fault of a NIC or host to its recovery.
    fn draw_outages(&mut self, timeline: &Timeline, axis: &TimeAxis) {
        let end = axis.width + RIGHT / 2.0;
        let mut open: Vec<&TimelineEvent> = Vec::new();
        let mut draw = |begin: &TimelineEvent, to: f64| {
            let (Some(y), x) = (self.lanes.y(begin.about), axis.x(begin.at.as_nanos())) else { return };
            let tooltip = format!("{} {}", name(timeline, begin.about), begin.text);
            self.outages.push(Outage { rect: Rect::new(x, y - 8.0, (to - x).max(2.0), 16.0), tooltip });
        };
        for event in &timeline.events {
            match event.kind {
                EventKind::Note(NoteKind::Fault) if !event.text.starts_with("has the address") => {
                    open.push(event)
                }
                EventKind::Note(NoteKind::Recovery) => {
                    let (ended, left) = open.into_iter().partition::<Vec<_>, _>(|fault| {
                        fault.about == event.about && is_end_of(&event.text, &fault.text)
                    });
                    open = left;
                    ended.into_iter().for_each(|fault| draw(fault, axis.x(event.at.as_nanos())));
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
        "lost" => "M-4 -4L4 4M-4 4L4 -4",
        "changed" => "M0 -5L5 0L0 5L-5 0z",
        "completion" => "M-3 7a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        "posts" => "M0 -10L5 -1H-5z",
        "ends" | "ends failed" => "M0 10L5 1H-5z",
        _ => "M-4.5 -4.5h9v9h-9z",
    }
}
