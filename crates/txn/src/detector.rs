//! The failure detector of coordinators: each coordinator writes heartbeats, and reads the
//! heartbeats of all coordinators.
//!
//! A suspicion may be wrong. Then only the suspected life is lost, because it is fenced.

use core::time::Duration;

use crate::life_word::{LifeState, LifeWord};
use crate::lock_word::Life;
use crate::place::Location;
use crate::request::{Op, Outcome, Request};

/// The length of a coordinator's line, in bytes. Byte 0 has its life word, byte 8 its beat:
/// ⟨incarnation 16, number 48⟩.
pub const LIFE_LINE_BYTES: u32 = 64;

/// The line of a coordinator, as last read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Line {
    word: LifeWord,
    beat: u64,
    /// The time of the last READ that found a change: of the word, or of a beat that counts
    /// (`Line::update`). `None` before the first READ.
    changed: Option<Duration>,
}

impl Line {
    /// Updates the line after a READ. A beat counts if its life is the life that the word names, or
    /// if the word's life is recovered. After a claim by the coordinator's next life, only beats of
    /// the next life count.
    fn update(&mut self, coordinator: u16, word: LifeWord, beat: u64, now: Duration) {
        let incarnation = (beat >> 48) as u16;
        let counts = match word.state() {
            LifeState::Recovered => true,
            LifeState::Claimed(by) if by.coordinator == coordinator => incarnation == by.incarnation,
            LifeState::Live | LifeState::Claimed(_) => incarnation == word.incarnation(),
        };
        if self.changed.is_none() || self.word != word || self.beat != beat && counts {
            self.changed = Some(now);
        }
        (self.word, self.beat) = (word, beat);
    }
}

/// The detector of a coordinator. Times are durations since a fixed moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Detector {
    me: Life,
    /// The beginnings of the lines on the nodes that are not known to be dead, the last node first.
    nodes: Vec<Location>,
    timeout: Duration,
    beats: u64,
    lines: Vec<Line>,
}

impl Detector {
    /// Creates the detector of a life. `nodes` has the place of coordinator 1's line on every node,
    /// in the order of the nodes. The lines of coordinators 2 to `coordinators` follow. A life
    /// whose line has not changed for `timeout` is suspected.
    pub fn new(me: Life, mut nodes: Vec<Location>, coordinators: u16, timeout: Duration) -> Detector {
        nodes.reverse();
        let line = Line { word: LifeWord::from_bits(0), beat: 0, changed: None };
        Detector { me, nodes, timeout, beats: 0, lines: vec![line; coordinators.into()] }
    }

    /// Returns the requests of an interval: the next beat, and a READ of all lines. There are none
    /// if all nodes are dead.
    pub fn requests(&mut self) -> Vec<Request> {
        let Some(&Location { node, at }) = self.nodes.last() else { return Vec::new() };
        self.beats += 1;
        let beat = u64::from(self.me.incarnation) << 48 | (self.beats & ((1 << 48) - 1));
        let own = at + u64::from(self.me.coordinator.saturating_sub(1)) * u64::from(LIFE_LINE_BYTES) + 8;
        let bytes = LIFE_LINE_BYTES * self.lines.len() as u32;
        vec![
            Request { node, at: own, op: Op::Write(beat.to_le_bytes().to_vec()) },
            Request { node, at, op: Op::Read(bytes) },
        ]
    }

    /// Continues with the outcomes of [`Detector::requests`]. Returns the lives of other
    /// coordinators that are to be taken over.
    pub fn on_outcomes(&mut self, outcomes: &[Outcome], now: Duration) -> Vec<Life> {
        match outcomes.last() {
            Some(Outcome::NodeDead) => {
                self.nodes.pop();
                self.lines.iter_mut().for_each(|line| line.changed = None);
                return Vec::new();
            }
            Some(Outcome::Executed(bytes)) => {
                let words = |line: &[u8]| {
                    let (word, rest) = line.split_first_chunk()?;
                    Some((u64::from_le_bytes(*word), u64::from_le_bytes(*rest.first_chunk()?)))
                };
                let read = bytes.chunks(LIFE_LINE_BYTES as usize).filter_map(words);
                for ((coordinator, line), (word, beat)) in (1..=u16::MAX).zip(&mut self.lines).zip(read) {
                    line.update(coordinator, LifeWord::from_bits(word), beat, now);
                }
            }
            _ => return Vec::new(),
        }
        let lines =
            (1..=u16::MAX).zip(&self.lines).filter(|(coordinator, _)| *coordinator != self.me.coordinator);
        lines
            .filter_map(|(coordinator, line)| {
                let life = Life { coordinator, incarnation: line.word.incarnation() };
                let active = match line.word.state() {
                    LifeState::Recovered => return None,
                    LifeState::Live => life,
                    LifeState::Claimed(recoverer) => recoverer,
                };
                (active != self.me && self.is_silent(active, now)).then_some(life)
            })
            .collect()
    }

    /// Returns whether a life seems to have ended.
    pub fn is_silent(&self, life: Life, now: Duration) -> bool {
        let Some(line) = self.line(life) else { return true };
        let Some(changed) = line.changed else { return false };
        let is_followed = (line.beat >> 48) as u16 > life.incarnation;
        is_followed || line.word.is_recovered(life) || now.saturating_sub(changed) >= self.timeout
    }

    /// Returns whether another life has claimed or recovered this life. This life should then end,
    /// because it is going to be fenced. The claim may stay although the recoverer has ended:
    /// without a third coordinator, only the next life of this coordinator can replace it, because
    /// a life does not suspect itself.
    pub fn is_taken_over(&self) -> bool {
        let word = self.line(self.me).map(|line| line.word);
        let is_claimed = |word: LifeWord| {
            word.incarnation() == self.me.incarnation && matches!(word.state(), LifeState::Claimed(_))
        };
        word.is_some_and(|word| is_claimed(word) || word.is_recovered(self.me))
    }

    /// Returns, for each coordinator, the latest life that was recovered when the lines were last
    /// read.
    pub fn recovered(&self) -> impl Iterator<Item = Life> {
        let read = (1..=u16::MAX).zip(&self.lines).filter(|(_, line)| line.changed.is_some());
        read.filter_map(|(coordinator, Line { word, .. })| {
            let is_over = word.state() == LifeState::Recovered;
            let incarnation = word.incarnation().checked_sub(u16::from(!is_over))?;
            (incarnation > 0).then_some(Life { coordinator, incarnation })
        })
    }

    fn line(&self, life: Life) -> Option<&Line> {
        self.lines.get(usize::from(life.coordinator).checked_sub(1)?)
    }
}
