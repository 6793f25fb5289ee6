//! The lanes of a time line: one for each host and each NIC. The NICs of a rail are next to each
//! other, and the packets are drawn between them.

use mitra_sim::timeline::{Subject, Timeline};

use crate::cli::svg_units::Px;

/// The distance of two lanes of hosts, of two NICs of a rail, and of two rails.
const HOST_PITCH: f64 = 40.0;
const NIC_PITCH: f64 = 66.0;
const RAIL_GAP: f64 = 36.0;

pub(super) struct Lanes {
    hosts: Vec<f64>,
    nics: Vec<f64>,
    pub(super) labels: Vec<LaneLabel>,
    pub(super) rails: Vec<RailBand>,
    pub(super) bottom: f64,
}

pub(super) struct LaneLabel {
    pub(super) class: &'static str,
    pub(super) text: String,
    pub(super) y: Px,
    pub(super) text_y: Px,
}

pub(super) struct RailBand {
    pub(super) y: Px,
    pub(super) height: Px,
    pub(super) text: String,
    pub(super) text_y: Px,
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
        self.rails.push(RailBand {
            y: Px(top),
            height: Px(height),
            text: format!("rail {rail}"),
            text_y: Px(top + height / 2.0 + 4.0),
        });
    }

    fn label(&mut self, class: &'static str, text: String, y: f64) {
        self.labels.push(LaneLabel { class, text, y: Px(y), text_y: Px(y + 4.0) });
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
