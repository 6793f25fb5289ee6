//! The lanes of a time line: one for each host and each NIC. The NICs of a rail are next to each
//! other, and the packets are drawn between them.

use mitra_page::Drawing;
use mitra_sim::timeline::{Subject, Timeline};

/// The distance of two lanes of hosts, of two NICs of a rail, and of two rails.
const HOST_PITCH: f64 = 40.0;
const NIC_PITCH: f64 = 66.0;
const RAIL_GAP: f64 = 36.0;
/// The least width of the names of the lanes, the space around the longest name, and the mean width
/// of its bold letters.
const NAMES: f64 = 92.0;
const NAME_MARGIN: f64 = 24.0;
const BOLD_LETTER: f64 = 7.6;

pub(super) struct Lanes {
    hosts: Vec<f64>,
    nics: Vec<f64>,
    labels: Vec<LaneLabel>,
    rails: Vec<RailBand>,
    pub(super) bottom: f64,
}

struct LaneLabel {
    class: &'static str,
    text: String,
    y: f64,
}

struct RailBand {
    number: u8,
    top: f64,
    height: f64,
}

impl Lanes {
    /// Arranges the lanes from `top` on: the first host, the rails, the other hosts.
    pub(super) fn new(timeline: &Timeline, top: f64) -> Lanes {
        let mut lanes = Lanes {
            hosts: vec![0.0; timeline.hosts.len()],
            nics: vec![0.0; timeline.nics.len()],
            labels: Vec::new(),
            rails: Vec::new(),
            bottom: top,
        };
        if !timeline.hosts.is_empty() {
            lanes.add_host(timeline, 0);
        }
        let mut rails: Vec<u8> = timeline.nics.iter().map(|nic| nic.rail).collect();
        rails.sort_unstable();
        rails.dedup();
        for rail in rails {
            lanes.add_rail(timeline, rail);
        }
        (1..timeline.hosts.len()).for_each(|host| lanes.add_host(timeline, host));
        lanes
    }

    fn add_host(&mut self, timeline: &Timeline, host: usize) {
        let y = self.bottom + HOST_PITCH / 2.0;
        self.hosts[host] = y;
        self.label("host", format!("host {}", timeline.hosts[host]), y);
        self.bottom += HOST_PITCH;
    }

    fn add_rail(&mut self, timeline: &Timeline, rail: u8) {
        let nics: Vec<usize> = (0..timeline.nics.len()).filter(|&n| timeline.nics[n].rail == rail).collect();
        let top = self.bottom + 4.0;
        self.bottom += RAIL_GAP / 2.0;
        for (i, &nic) in nics.iter().enumerate() {
            let y = self.bottom + i as f64 * NIC_PITCH;
            self.nics[nic] = y;
            self.label("nic", timeline.nics[nic].name.clone(), y);
        }
        self.bottom += (nics.len().max(1) - 1) as f64 * NIC_PITCH + RAIL_GAP / 2.0;
        let height = self.bottom - 4.0 - top;
        self.rails.push(RailBand { number: rail, top, height });
    }

    fn label(&mut self, class: &'static str, text: String, y: f64) {
        self.labels.push(LaneLabel { class, text, y });
    }

    /// Returns the height of the first lane.
    pub(super) fn top(&self) -> f64 {
        self.labels.first().map_or(self.bottom, |label| label.y)
    }

    /// Returns the drawing of the names, which stays in view, with this height.
    pub(super) fn names(&self, height: f64) -> String {
        let longest = self.labels.iter().map(|label| label.text.chars().count()).max().unwrap_or(0);
        let width = NAMES.max(longest as f64 * BOLD_LETTER + NAME_MARGIN);
        let mut names = Drawing::default();
        for RailBand { number, top, height } in &self.rails {
            names.rect("rail", [4.0, *top], [width, *height]);
            names.text("rail", [14.0, top + height / 2.0 + 4.0], format_args!("rail {number}"));
        }
        for label in &self.labels {
            names.text(label.class, [width - 10.0, label.y + 4.0], &label.text);
        }
        let attributes = format!("class=\"names\" width=\"{width:.1}\" height=\"{height:.1}\"");
        names.finish([width, height], &attributes)
    }

    /// Draws the rails and the lanes, from the left edge to `right`.
    pub(super) fn draw(&self, drawing: &mut Drawing, right: f64) {
        for rail in &self.rails {
            drawing.rect("rail", [0.0, rail.top], [right, rail.height]);
        }
        for label in &self.labels {
            drawing.line(&format!("lane {}", label.class), [0.0, label.y], [right, label.y]);
        }
    }

    /// Returns the y coordinate of the subject's lane, or `None` for the whole world, which has no
    /// lane.
    pub(super) fn y(&self, subject: Subject) -> Option<f64> {
        match subject {
            Subject::World => None,
            Subject::Host(host) => self.hosts.get(host).copied(),
            Subject::Nic(nic) => self.nics.get(nic).copied(),
        }
    }
}
